package fault

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		spec Spec
		want string
	}{
		"xid":                   {Spec{Kind: XID, Device: "gpu-0", Code: 1}, ""},
		"largest xid":           {Spec{Kind: XID, Device: "gpu-0", Code: MaxXID}, ""},
		"larger xid":            {Spec{Kind: XID, Device: "gpu-0", Code: MaxXID + 1}, "code: must be 1 to 1023, is 1024"},
		"negative xid":          {Spec{Kind: XID, Device: "gpu-0", Code: -1}, "code: must be 1 to 1023, is -1"},
		"nothing":               {Spec{Kind: XID}, "device: xid needs one; code: xid needs one"},
		"lost with code":        {Spec{Kind: Lost, Device: "gpu-0", Code: 79}, "code: lost takes none"},
		"longest":               {Spec{Kind: SlowPrepare, Duration: MaxDuration}, ""},
		"longer":                {Spec{Kind: SlowPrepare, Duration: MaxDuration + 1}, "duration: must be above 0 and up to 1h0m0s, is 1h0m0.000000001s"},
		"back in time":          {Spec{Kind: SlowPrepare, Duration: Duration(-time.Second)}, "duration: must be above 0 and up to 1h0m0s, is -1s"},
		"no time":               {Spec{Kind: SlowPrepare}, "duration: slow-prepare needs one"},
		"fail for ever":         {Spec{Kind: FailPrepare}, ""},
		"fail less than never":  {Spec{Kind: FailPrepare, Times: -1}, "times: must be 0 to 1048576, is -1"},
		"long message":          {Spec{Kind: FailPrepare, Message: strings.Repeat("x", MaxMessage+1)}, "message: must be at most 1024 bytes, is 1025"},
		"torn with everything":  {Spec{Kind: TornCheckpoint, Device: "gpu-0", Once: true}, "device: torn-checkpoint takes none; once: torn-checkpoint takes none"},
		"crash nowhere":         {Spec{Kind: CrashAt, Once: true}, "point: crash-at needs one"},
		"crash somewhere else":  {Spec{Kind: CrashAt, Point: "midway"}, `point: there is no "midway"; there are before-checkpoint-started, after-checkpoint-started, after-cdi, before-checkpoint-completed, after-checkpoint-completed, before-unprepare-cdi, after-unprepare-cdi, after-unprepare-checkpoint`},
		"slice of a device":     {Spec{Kind: StaleSlice, Device: "gpu-0"}, "device: stale-slice takes none"},
		"withhold with message": {Spec{Kind: WithholdSlice, Message: "x"}, "message: withhold-slice takes none"},
		"remap":                 {Spec{Kind: Remap, Device: "gpu-0"}, ""},
	} {
		got := ""
		if err := tc.spec.Validate(); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// Every kind has its line in the table, and all points are good ones.
func TestKindsAndPoints(t *testing.T) {
	if len(fields) != len(Kinds()) {
		t.Errorf("%d kinds have fields, there are %d", len(fields), len(Kinds()))
	}
	for _, kind := range Kinds() {
		if _, known := fields[kind]; !known {
			t.Errorf("%s has no fields", kind)
		}
	}
	for _, point := range CrashPoints() {
		if err := (&Spec{Kind: CrashAt, Point: point}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestDefault(t *testing.T) {
	spec := Spec{Kind: FailPrepare}
	spec.Default()
	if spec.Message != DefaultMessage {
		t.Errorf("message is %q", spec.Message)
	}
	spec.Message = "mine"
	if spec.Default(); spec.Message != "mine" {
		t.Errorf("a given message became %q", spec.Message)
	}
}

func TestNotFoundWords(t *testing.T) {
	if err := UnknownDevice("gpu-0", nil); !errors.Is(err, ErrNotFound) || err.Error() != `there is no device "gpu-0": this node has none` {
		t.Errorf("got %v", err)
	}
}

// The default socket is in the folder that kubelet knows the driver by.
func TestDefaultSocket(t *testing.T) {
	if want := "/var/lib/kubelet/plugins/" + v1alpha1.DriverName + "/fault.sock"; DefaultSocket != want {
		t.Errorf("is %s, want %s", DefaultSocket, want)
	}
}
