package v1alpha1

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func configOf(t *testing.T, doc string) []byte {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDecodeGPUConfig(t *testing.T) {
	const head = "apiVersion: gpuladder.dev/v1alpha1\nkind: GPUConfig\n"
	for _, test := range []struct{ name, doc, want string }{
		{"nothing", head, "{}"},
		{"default strategy", head + "sharing: {}", `{"strategy":"Exclusive"}`},
		{"default interval", head + "sharing: {strategy: TimeSlicing, timeSlicing: {}}", `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Default"}}`},
		{
			"all of MPS", head + "sharing: {strategy: MPS, mps: {activeThreadPercentage: 30, pinnedDeviceMemoryLimit: 10Gi}}",
			`{"strategy":"MPS","mps":{"activeThreadPercentage":30,"pinnedDeviceMemoryLimit":"10Gi"}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			config, err := DecodeGPUConfig(configOf(t, test.doc))
			if err != nil {
				t.Fatal(err)
			}
			got := "{}"
			if config.Sharing != nil {
				raw, err := canonicalJSON(config.Sharing)
				if err != nil {
					t.Fatal(err)
				}
				got = string(raw)
			}
			if string(configOf(t, got)) != string(configOf(t, test.want)) {
				t.Errorf("read is %s, want %s", got, test.want)
			}
		})
	}
}

func TestDecodeGPUConfigRefuses(t *testing.T) {
	const head = "apiVersion: gpuladder.dev/v1alpha1\nkind: GPUConfig\n"
	for _, test := range []struct{ name, doc, want string }{
		{"no kind", "sharing: {}", "they are of no apiVersion and kind, and the driver knows only gpuladder.dev/v1alpha1/GPUConfig"},
		{"NVIDIA's", "apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConfig\nsharing: {strategy: Shared}", "they are resource.nvidia.com/v1beta1/GpuConfig"},
		{"another version", "apiVersion: gpuladder.dev/v9\nkind: GPUConfig\nnews: {}", "they are gpuladder.dev/v9/GPUConfig"},
		{"another kind", "apiVersion: gpuladder.dev/v1alpha1\nkind: MIGConfig", "they are gpuladder.dev/v1alpha1/MIGConfig"},
		{"a list", "[1]", "cannot unmarshal array"},
		{"unknown field", head + "sharing: {strategy: MPS, mps: {threads: 3}}", `unknown field "sharing.mps.threads"`},
		{"field in another case", head + "sharing: {Strategy: MPS}", `unknown field "sharing.Strategy"`},
		{"wrong type", head + "sharing: {mps: {activeThreadPercentage: half}}", "sharing.mps.activeThreadPercentage of type int32"},
		{"unknown strategy", head + "sharing: {strategy: Both}", `sharing.strategy: Unsupported value: "Both"`},
		{"unknown interval", head + "sharing: {strategy: TimeSlicing, timeSlicing: {interval: Tiny}}", `sharing.timeSlicing.interval: Unsupported value: "Tiny"`},
		{"interval of MPS", head + "sharing: {strategy: MPS, timeSlicing: {interval: Long}}", "sharing.timeSlicing: Invalid value: \"\": may be set only where strategy is TimeSlicing"},
		{"MPS of nothing", head + "sharing: {mps: {activeThreadPercentage: 3}}", "sharing.mps: Invalid value: \"\": may be set only where strategy is MPS"},
		{"no threads", head + "sharing: {strategy: MPS, mps: {activeThreadPercentage: 0}}", "sharing.mps.activeThreadPercentage: Invalid value: 0: must be at least 1"},
		{"too many threads", head + "sharing: {strategy: MPS, mps: {activeThreadPercentage: 101}}", "sharing.mps.activeThreadPercentage: Invalid value: 101: must be at most 100"},
		{"hardly any memory", head + "sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: 1023Ki}}", "sharing.mps.pinnedDeviceMemoryLimit: Invalid value: \"1023Ki\": must be at least 1Mi"},
		{"negative memory", head + "sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: -1Gi}}", "must be at least 1Mi"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := DecodeGPUConfig(configOf(t, test.doc)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	for _, raw := range []string{"", "{", `{"kind":"GPUConfig","kind":"GPUConfig","apiVersion":"gpuladder.dev/v1alpha1"}`} {
		if _, err := DecodeGPUConfig([]byte(raw)); err == nil {
			t.Errorf("%q was read", raw)
		}
	}
}

func TestValidateSharing(t *testing.T) {
	for _, f := range []fault{
		{"time slicing", `{sharing: {strategy: TimeSlicing, timeSlicing: {interval: Long}}, tiers: [{name: a}]}`, nil},
		{"MPS beside shared isolation", `{sharing: {strategy: MPS}, constraints: {isolation: Shared}, tiers: [{name: a}]}`, nil},
		{"exclusive twice", `{sharing: {}, constraints: {isolation: Exclusive}, tiers: [{name: a}]}`, nil},
		{"exclusive for NVIDIA's", `{sharing: {strategy: Exclusive}, driver: gpu.nvidia.com, tiers: [{name: a}]}`, nil},
		{"isolation", `{sharing: {strategy: MPS}, constraints: {isolation: Exclusive}, tiers: [{name: a}]}`, []string{"spec.sharing.strategy: FieldValueInvalid"}},
		{"NVIDIA's driver", `{sharing: {strategy: TimeSlicing}, driver: gpu.nvidia.com, tiers: [{name: a}]}`, []string{"spec.sharing.strategy: FieldValueInvalid"}},
		{"strategy", `{sharing: {strategy: x}, tiers: [{name: a}]}`, []string{"spec.sharing.strategy: FieldValueNotSupported"}},
		{"percentage", `{sharing: {strategy: MPS, mps: {activeThreadPercentage: 0}}, tiers: [{name: a}]}`, []string{"spec.sharing.mps.activeThreadPercentage: FieldValueInvalid"}},
	} {
		t.Run(f.name, func(t *testing.T) {
			errs := validate[AcceleratorPolicy](t, `{metadata: {name: p}, spec: `+f.doc+`}`)
			if got, want := strings.Join(faults(errs), "; "), strings.Join(f.want, "; "); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestSharingInTheHash: two spellings of the same have one hash, and none is
// that of Exclusive but Exclusive itself.
func TestSharingInTheHash(t *testing.T) {
	hash := func(sharing string) string {
		return decoded[AcceleratorPolicy](t, `{spec: {tiers: [{name: a}]`+sharing+`}}`).Spec.ContentHash()
	}
	groups := [][]string{
		{``, `, sharing: {}`, `, sharing: {strategy: Exclusive}`},
		{`, sharing: {strategy: TimeSlicing}`, `, sharing: {strategy: TimeSlicing, timeSlicing: {}}`, `, sharing: {strategy: TimeSlicing, timeSlicing: {interval: Default}}`},
		{`, sharing: {strategy: TimeSlicing, timeSlicing: {interval: Long}}`},
		{`, sharing: {strategy: MPS}`, `, sharing: {strategy: MPS, mps: {}}`},
		{`, sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: 1Gi}}`, `, sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: 1024Mi}}`, `, sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: "1073741830"}}`},
		{`, sharing: {strategy: MPS, mps: {pinnedDeviceMemoryLimit: 1Gi, activeThreadPercentage: 100}}`},
	}
	seen := map[string]int{}
	for n, group := range groups {
		for _, spelling := range group {
			got := hash(spelling)
			if other, known := seen[got]; known && other != n {
				t.Errorf("%q has the hash of group %d", spelling, other)
			}
			if got != hash(group[0]) {
				t.Errorf("%q and %q differ", spelling, group[0])
			}
			seen[got] = n
		}
	}
}

func TestSharingDefaultsOfNothing(t *testing.T) {
	var none *Sharing
	none.Default()
	if !none.IsExclusive() || none.Canonical() != nil || none.Interval() != IntervalDefault || len(none.Validate(nil)) != 0 {
		t.Error("nothing is not Exclusive")
	}
	long := &Sharing{Strategy: SharingTimeSlicing, TimeSlicing: &TimeSlicing{Interval: IntervalLong}}
	if long.IsExclusive() || long.Interval() != IntervalLong || long.Canonical() == long {
		t.Errorf("%+v is not what it is", long)
	}
}
