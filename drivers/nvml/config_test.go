package nvml

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/drivers/inventory"
)

const header = "apiVersion: gpuladder.dev/v1alpha1\nkind: NVMLDriver\n"

func TestPolicyIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(header+`
gpus:
  allow: [{model: H100}, {uuid: GPU-5a1c0000-0000-0000-0000-000000000001}]
  deny: [{pciAddress: "3b:00"}, {index: 0}]
publish: {partitions: true, wholeMIG: false, profiles: [1g.10gb]}
health:
  xids: {"13": suspect, "79": healthy}
  signals: {nvlink-down: failed}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	if policy.Publish.wholeMIG() || !policy.Publish.partitions() || policy.Publish.profile("7g.80gb") || !policy.Publish.profile("1g.10gb") {
		t.Errorf("got %+v", policy.Publish)
	}
	for code, want := range map[int]inventory.Severity{13: inventory.Suspect, 79: inventory.Healthy, 48: inventory.Suspect} {
		if got := policy.Health.severityOfXID(code); got != want {
			t.Errorf("XID %d is %v, want %v", code, got, want)
		}
	}
	if got := policy.Health.row("nvlink-down"); got.Severity != inventory.Failed || got.Reason != "NVLinkDown" {
		t.Errorf("got %+v", got)
	}
	if none, err := LoadPolicy(""); err != nil || !none.Publish.wholeMIG() || !none.Publish.partitions() || !none.Publish.profile("x") {
		t.Errorf("without a file: %+v, %v", none, err)
	}
	if _, err := LoadPolicy(path + ".not"); err == nil {
		t.Error("a file that is not there is read")
	}
}

// TestPolicyIsStrict: a mistake is told, with the field, and nothing is published
// by chance.
func TestPolicyIsStrict(t *testing.T) {
	for content, want := range map[string]string{
		"":                                 "apiVersion",
		"apiVersion: v1\nkind: NVMLDriver": "apiVersion",
		"apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet": "kind",
		header + "gpu: {}":                                                          `unknown field "gpu"`,
		header + "gpus: {allow: [{modell: H100}]}":                                  `unknown field "modell"`,
		header + "gpus: {allow: [{}]}":                                              "gpus.allow[0]",
		header + "gpus: {deny: [{index: -1}]}":                                      "gpus.deny[0].index",
		header + "gpus: {deny: [{pciAddress: 3b}]}":                                 "gpus.deny[0].pciAddress",
		header + "gpus: {allow: [{uuid: GPU-5a1c…}]}":                               "gpus.allow[0].uuid",
		header + "gpus: {deny: [{uuid: 5a1c}]}":                                     "gpus.deny[0].uuid",
		header + "gpus: {deny: [{uuid: GPU-5A1C0000-0000-0000-0000-000000000001}]}": "",
		header + "publish: {profiles: [1g.10gb, foo]}":                              "publish.profiles[1]",
		header + `publish: {profiles: [1g.10gb+me, 4g.40gb+gfx, 2g.20gb-me, 1g.10gb+me.all, "1g.24gb+gfx,me"]}`: "",
		header + "publish: {profiles: [1c.3g.40gb]}":                                                            "publish.profiles[0]",
		header + "publish: {profiles: [MIG 1g.10gb]}":                                                           "publish.profiles[0]",
		header + "publish: {partitions: false, wholeMIG: false}":                                                "", // then it is published whole
		header + "health: {xids: {x: failed}}":                                                                  "health.xids",
		header + "health: {xids: {\"13\": dead}}":                                                               "health.xids[13]",
		header + "health: {signals: {nvlink: failed}}":                                                          "health.signals",
		header + "health: {signals: {nvlink-down: ok}}":                                                         "health.signals[nvlink-down]",
		header + "gpus: {}\ngpus: {}":                                                                           `"gpus" already set`,
	} {
		_, err := ParsePolicy([]byte(content))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %s", content, err, want)
		}
	}
}

// TestLists choose the GPUs: others are neither published nor missed.
func TestLists(t *testing.T) {
	zero := 0
	for name, test := range map[string]struct {
		lists GPUs
		want  []string
	}{
		"none":                {GPUs{}, []string{"gpu-18-00", "gpu-28-00", "gpu-38-00"}},
		"a model":             {GPUs{Allow: []Match{{Model: "H100"}}}, []string{"gpu-18-00", "gpu-28-00"}},
		"a UUID":              {GPUs{Allow: []Match{{UUID: "gpu-00000000-0000-0000-0000-000000000001"}}}, []string{"gpu-28-00"}},
		"an address":          {GPUs{Deny: []Match{{PCIAddress: "28:00"}}}, []string{"gpu-18-00", "gpu-38-00"}},
		"an index":            {GPUs{Deny: []Match{{Index: &zero}}}, []string{"gpu-28-00", "gpu-38-00"}},
		"both, deny counts":   {GPUs{Allow: []Match{{Model: "H100"}}, Deny: []Match{{PCIAddress: "0000:18:00.0"}}}, []string{"gpu-28-00"}},
		"all that is said":    {GPUs{Allow: []Match{{Model: "H100", PCIAddress: "38:00"}}}, nil},
		"one of several":      {GPUs{Allow: []Match{{Model: "L4"}, {Index: &zero}}}, []string{"gpu-18-00", "gpu-38-00"}},
		"a model that is not": {GPUs{Allow: []Match{{Model: "B200"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(3)
			n.gpus[2].product = "NVIDIA L4"
			r := run(t, n, "", func(c *Config) { c.Policy.GPUs = test.lists })
			if got := r.names(t); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if report, err := r.Health(t.Context()); err != nil || len(report.Troubles) != 0 {
				t.Errorf("got %v, %v", report, err)
			}
		})
	}
}

// TestGPUThatIsDeniedLater is forgotten, not lost.
func TestGPUThatIsDeniedLater(t *testing.T) {
	n, folder := newNode(2), t.TempDir()
	r := run(t, n, folder, nil)
	r.pool(t)
	r.stop()
	r = run(t, n, folder, func(c *Config) { c.Policy.GPUs.Deny = []Match{{PCIAddress: "18:00"}} })
	if got := r.names(t); !slices.Equal(got, []string{"gpu-28-00"}) {
		t.Errorf("got %v", got)
	}
	n.gpus[0].xid(79, noInstance) // it is none of the driver's
	n.gpus[1].xid(48, noInstance)
	eventually(t, "the other is heard", func() bool { return len(r.troubles(t, "gpu-28-00")) == 1 })
}

func TestConfigIsChecked(t *testing.T) {
	n := newNode(0)
	for name, config := range map[string]Config{
		"no library": {Editor: &editor{}},
		"no editor":  {NVML: n},
		"a negative": {NVML: n, Editor: &editor{}, CallLimit: -1},
		"a policy":   {NVML: n, Editor: &editor{}, Policy: Policy{Health: Health{XIDs: map[string]string{"0": "failed"}}}},
	} {
		if _, err := New(t.Context(), config); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	made, err := New(t.Context(), Config{NVML: n, Editor: &editor{}})
	if err != nil {
		t.Fatal(err)
	}
	if made.config.CallLimit != DefaultCallLimit || made.config.Settle != DefaultSettle || made.config.Clock == nil {
		t.Errorf("got %+v", made.config)
	}
}

// TestTexts: each error says what has happened without asking NVML, which may
// be what hangs.
func TestTexts(t *testing.T) {
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_GPU_IS_LOST: "nvmlX: the GPU is lost", nvml.ERROR_DRIVER_NOT_LOADED: "nvmlX: NVIDIA's kernel driver is not loaded", 12345: "nvmlX: error 12345",
	} {
		if got := (&CallError{"nvmlX", ret}).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
