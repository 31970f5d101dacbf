package selector

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

func TestMatch(t *testing.T) {
	device := &resourceapi.Device{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: ptr.To("H100")}}}
	shared := device.DeepCopy()
	shared.AllowMultipleAllocations = ptr.To(true)
	c := NewCache(2)
	for _, tc := range []struct {
		expression string
		device     *resourceapi.Device
		want       bool
		err        string // part of it; empty: none
	}{
		{`device.driver == "d"`, device, true, ""},
		{`device.driver == "other"`, device, false, ""},
		{`device.attributes["d"].model == "H100"`, device, true, ""},
		{`device.attributes["d"].absent == "H100"`, device, false, "no such key"},
		{`device.allowMultipleAllocations == true`, device, false, ""},
		{`device.allowMultipleAllocations == true`, shared, true, ""},
		{`device.driver ==`, device, false, "Syntax error"},
	} {
		got, err := Match(c, tc.expression, "d", tc.device)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %t, %v; want %t and %q", tc.expression, got, err, tc.want, tc.err)
		}
	}
}
