package decide

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestDeviceModel(t *testing.T) {
	nvidia := v1alpha1.NVIDIADriverName
	for _, c := range []struct{ driver, attribute, value, want string }{
		{ours, "model", "H100", "H100"},
		{ours, ours + "/model", "H100", "H100"},
		{ours, "productName", "NVIDIA H100 80GB HBM3", ""},
		{nvidia, "productName", "NVIDIA H100 80GB HBM3", "H100"},
		{nvidia, "productName", "NVIDIA A100-SXM4-80GB", "A100"},
		{nvidia, "productName", "Tesla T4", "T4"},
		{nvidia, "productName", "NVIDIA GeForce RTX 4090", "4090"},
		{nvidia, "productName", "Quadro RTX 6000", "6000"},
		{nvidia, "productName", "NVIDIA", ""},
		{nvidia, "model", "H100", ""},
		{"dra.example.com", "model", "H100", ""},
	} {
		attrs := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{resourceapi.QualifiedName(c.attribute): text(c.value)}
		if got := DeviceModel(c.driver, attrs); got != c.want {
			t.Errorf("%s %s=%q: model %q, want %q", c.driver, c.attribute, c.value, got, c.want)
		}
	}
	if got := DeviceModel(ours, map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": number(100)}); got != "" {
		t.Errorf("a model that is no string is %q", got)
	}
}

func TestModelIsOneWord(t *testing.T) {
	k := modelKey{v1alpha1.NVIDIADriverName, "NVIDIA A100-SXM4-80GB"}
	for model, want := range map[string]bool{"A100": true, "SXM4": true, "80GB": true, "A10": false, "A100-SXM4-80GB": false, "NVIDIA A100": false, "": false} {
		if k.has(model) != want {
			t.Errorf("has(%q) is %v", model, !want)
		}
	}
	if (modelKey{ours, "A100-SXM4-80GB"}).has("A100") {
		t.Error("with our driver the model is the whole attribute")
	}
}

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"550.54.15", "550.54", 1},
		{"550.54", "550.54.0", 0},
		{"550.5", "550.54", -1},
		{"9.0.0", "10.0", -1},
		{"8.9.0", "8.10", -1},
		{"08.0", "8", 0},
		{"8.0.0-rc.1", "8.0", 0},
		{"99999999999999999999999.1", "99999999999999999999998", 1},
		{"1.2.", "1.2", 0},
	} {
		if got, ok := compareVersions(c.a, c.b); !ok || got != c.want {
			t.Errorf("%s against %s: %d, %v", c.a, c.b, got, ok)
		}
		if got, _ := compareVersions(c.b, c.a); got != -c.want {
			t.Errorf("%s against %s: %d", c.b, c.a, got)
		}
	}
	for _, bad := range []string{"", "v1", "x"} {
		if _, ok := compareVersions(bad, "1"); ok {
			t.Errorf("%q is a version", bad)
		}
	}
}
