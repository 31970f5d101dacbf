package perf

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/bench"
	"gpuladder.dev/ladder/scheduler/ladder"
)

func upstreamFolder(t *testing.T) string {
	t.Helper()
	folder, err := bench.UpstreamFolder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func specOf(t *testing.T, name string, s bench.Scheduler, nodes int) bench.Spec {
	t.Helper()
	workloads, err := bench.Select("^" + name + "$")
	if err != nil || len(workloads) != 1 {
		t.Fatalf("%v, %v", workloads, err)
	}
	return bench.Spec{
		Run: bench.Run{Workload: workloads[0], Scheduler: s, Repeat: 1, Nodes: nodes}, Upstream: upstreamFolder(t), Out: t.TempDir(),
	}
}

// configured writes the files of a run and reads the test case back.
func configured(t *testing.T, spec bench.Spec) (testCase, params object, threshold float64) {
	t.Helper()
	path, threshold, err := configure(spec)
	if err != nil {
		t.Fatal(err)
	}
	var cases []object
	if err := readYAML(path, &cases); err != nil || len(cases) != 1 {
		t.Fatalf("%v, %v", cases, err)
	}
	workloads := objects(cases[0]["workloads"])
	if len(workloads) != 1 {
		t.Fatalf("workloads %v", workloads)
	}
	params, _ = workloads[0]["params"].(object)
	return cases[0], params, threshold
}

// Every workload can be configured, has its threshold in full size, and names
// only templates that are there.
func TestEveryWorkload(t *testing.T) {
	for _, w := range bench.Workloads() {
		t.Run(w.Name, func(t *testing.T) {
			spec := specOf(t, w.Name, bench.Ladder, bench.FullNodes)
			testCase, _, threshold := configured(t, spec)
			if (threshold > 0) == w.Ours() {
				t.Errorf("threshold %v", threshold)
			}
			text, err := yaml.Marshal(testCase)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "threshold") {
				t.Error("a threshold would fail the run")
			}
			paths := 0
			for line := range strings.Lines(string(text)) {
				key, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- ")), ": ")
				if !strings.HasSuffix(strings.ToLower(key), "templatepath") {
					continue
				}
				paths++
				if found, err := filepath.Glob(value); err != nil || len(found) != 1 || !filepath.IsAbs(value) {
					t.Errorf("%s: %q is no file", key, value)
				}
			}
			if paths < 2 {
				t.Errorf("%d templates in\n%s", paths, text)
			}
		})
	}
}

func TestResize(t *testing.T) {
	const claims = "SchedulingWithResourceClaimTemplate/"
	for name, want := range map[string]object{
		claims + "5000pods_500nodes":   {"nodesWithDRA": 20.0, "initClaims": 100.0, "measurePods": 100.0, "duration": "0s"},
		claims + "half_500nodes":       {"nodesWithDRA": 20.0, "initClaims": 100.0, "measurePods": 10.0, "duration": "3s"},
		claims + "full_500nodes":       {"nodesWithDRA": 20.0, "initClaims": 190.0, "measurePods": 10.0, "duration": "3s"},
		"ExtendedResource/.*50class.*": {"nodesWithDRA": 20.0, "initPods": 100.0, "measurePods": 100.0, "classes": 50.0},
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(t, name, bench.StockDefault, 20)
			spec.Steady = 3 * time.Second
			_, params, threshold := configured(t, spec)
			for key, value := range want {
				if params[key] != value {
					t.Errorf("%s is %v, want %v", key, params[key], value)
				}
			}
			if threshold != 0 {
				t.Errorf("threshold %v of another size", threshold)
			}
		})
	}
}

func TestFullSizeIsUpstreams(t *testing.T) {
	_, params, threshold := configured(t, specOf(t, "SchedulingWithResourceClaimTemplate/full_500nodes", bench.StockDefault, bench.FullNodes))
	if params["nodesWithDRA"] != 500.0 || params["initClaims"] != 4990.0 || params["duration"] != "10s" || threshold != 60 {
		t.Errorf("%v, threshold %v", params, threshold)
	}
}

// What kube-scheduler makes of each configuration.
func TestSchedulers(t *testing.T) {
	for _, s := range bench.Schedulers {
		t.Run(string(s), func(t *testing.T) {
			spec := specOf(t, "ExtendedResourceScoring/5000pods_500nodes", s, 20)
			configured(t, spec)
			external := &configv1.KubeSchedulerConfiguration{}
			if err := readYAML(filepath.Join(spec.Out, "scheduler.yaml"), external); err != nil {
				t.Fatal(err)
			}
			configscheme.Scheme.Default(external)
			c := &config.KubeSchedulerConfiguration{}
			if err := configscheme.Scheme.Convert(external, c, nil); err != nil {
				t.Fatal(err)
			}
			c.APIVersion = configv1.SchemeGroupVersion.String()
			if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
				t.Fatal(err)
			}
			profile := c.Profiles[0]
			weights := map[string]int32{}
			for _, p := range profile.Plugins.MultiPoint.Enabled {
				weights[p.Name] = p.Weight
			}
			percentage := ptr.Deref(c.PercentageOfNodesToScore, 0)
			switch {
			case s.IsLadder():
				if weights[ladder.Name] < 1000 || weights[names.DynamicResources] != 0 || percentage != 0 || profile.PercentageOfNodesToScore != nil {
					t.Errorf("%v, %+v", weights, profile)
				}
			case s == bench.StockConfigured:
				if weights[names.DynamicResources] != 100 || percentage != 100 {
					t.Errorf("%v, percentage %d", weights, percentage)
				}
			default:
				if weights[names.DynamicResources] == 0 || weights[names.DynamicResources] == 100 || percentage != 0 {
					t.Errorf("%v, percentage %d", weights, percentage)
				}
			}
			text, err := yaml.Marshal(external)
			if err != nil || !strings.Contains(string(text), "example.com/gpu") {
				t.Errorf("the workload's own configuration is lost: %v\n%s", err, text)
			}
		})
	}
}

func TestSceneClaims(t *testing.T) {
	slices := sceneFleet(bench.FullNodes).Slices()
	for scene, want := range map[bench.Scene]int{bench.SceneEmpty: 0, bench.SceneHalf: 2000, bench.SceneFirstTierFull: 160} {
		claims := sceneClaims(scene, slices)
		devices, boards := map[string]bool{}, map[string]int{}
		for _, c := range claims {
			r := c.Status.Allocation.Devices.Results[0]
			devices[r.Pool+"/"+r.Device] = true
			boards[boardOf(r.Pool)]++
			if !isDevice(slices, r) {
				t.Errorf("%s/%s is no device", r.Pool, r.Device)
			}
		}
		if len(claims) != want || len(devices) != want {
			t.Errorf("%s: %d claims on %d devices, want %d", scene, len(claims), len(devices), want)
		}
		if scene == bench.SceneFirstTierFull && boards["h100"] != want || scene == bench.SceneHalf && boards["h100"] != 80 {
			t.Errorf("%s: %v", scene, boards)
		}
	}
}

func isDevice(slices []*resourcev1.ResourceSlice, r resourcev1.DeviceRequestAllocationResult) bool {
	for _, s := range slices {
		if s.Spec.Pool.Name != r.Pool {
			continue
		}
		for _, d := range s.Spec.Devices {
			if d.Name == r.Device {
				return true
			}
		}
	}
	return false
}

// The Pods of a scene ask for three tiers, best first.
func TestScenePolicy(t *testing.T) {
	_, revision, template, err := scenePolicy()
	if err != nil {
		t.Fatal(err)
	}
	requests := template.Spec.Spec.Devices.Requests
	if len(requests) != 1 || len(requests[0].FirstAvailable) != 3 || requests[0].FirstAvailable[0].Name != "h100" {
		t.Errorf("%+v", requests)
	}
	if revision.Spec.Policy != policy || scenePod(template.Name).Spec.ResourceClaims[0].ResourceClaimTemplateName == nil {
		t.Errorf("%+v", revision.Spec)
	}
}
