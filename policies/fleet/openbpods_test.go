package fleet

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const podHead = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"

const somePods = podHead + `p-0,12000,16384,1,1000,,LS,Running,0,9,0
p-1,500,100,0,0,,BE,Running,1,9,1
p-2,6000,12288,1,460,V100M16|V100M32|V100M32,LS,Failed,3600,9,2
p-3,6000,12288,4,1000,V100M32|V100M16,LS,Pending,86400,,
p-4,6000,12288,1,1000,V100M16|V100M32,LS,Running,86401,9,9
`

func TestOpenBPods(t *testing.T) {
	w, err := OpenBPods(strings.NewReader(somePods), 0)
	if err != nil {
		t.Fatal(err)
	}
	var names, policies []string
	for _, pod := range w.Pods {
		names = append(names, pod.Name+"="+pod.Labels[v1alpha1.LabelPolicy])
	}
	for _, policy := range w.Policies {
		text := policy.Name + ":"
		for _, tier := range policy.Spec.Tiers {
			text += " " + tier.Name + strings.Join(tier.Models, ",")
		}
		policies = append(policies, text)
	}
	if got, want := names, []string{
		"p-0=openb-any-x1", "p-2=openb-v100m16-v100m32-x1", "p-3=openb-v100m32-v100m16-x4", "p-4=openb-v100m16-v100m32-x1",
	}; !slices.Equal(got, want) {
		t.Errorf("pods: got %v, want %v", got, want)
	}
	if got, want := policies, []string{
		"openb-any-x1: any",
		"openb-v100m16-v100m32-x1: v100m16V100M16 v100m32V100M32",
		"openb-v100m32-v100m16-x4: v100m32V100M32 v100m16V100M16",
	}; !slices.Equal(got, want) {
		t.Errorf("policies: got %v, want %v", got, want)
	}
	if got := *w.Policies[2].Spec.Count; got != 4 {
		t.Errorf("count: got %d, want 4", got)
	}
	pod := w.Pods[2]
	requests := pod.Spec.Containers[0].Resources.Requests
	if requests.Cpu().String() != "6" || requests.Memory().String() != "12Gi" {
		t.Errorf("unexpected requests %v", requests)
	}
	if want := OpenBStart.Add(24 * time.Hour); !pod.CreationTimestamp.Time.Equal(want) {
		t.Errorf("created %v, want %v", pod.CreationTimestamp, want)
	}
	if pod.Spec.SchedulerName != v1alpha1.SchedulerName || pod.Spec.NodeName != "" {
		t.Errorf("unexpected spec %+v", pod.Spec)
	}
}

func TestOpenBPodsLimitCountsPodsWithGPUs(t *testing.T) {
	w, err := OpenBPods(strings.NewReader(somePods), 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Pods) != 2 || w.Pods[1].Name != "p-2" || len(w.Policies) != 2 {
		t.Errorf("got %d pods and %d policies", len(w.Pods), len(w.Policies))
	}
	// What comes after the limit is not looked at.
	if _, err := OpenBPods(strings.NewReader(somePods+"broken\n"), 4); err != nil {
		t.Error(err)
	}
}

func TestOpenBPodsRefuses(t *testing.T) {
	for name, test := range map[string]struct{ row, want string }{
		"name":         {"P_0,1,1,1,1000,,,,0,,\n", `line 2, column "name"`},
		"cpu":          {"p,x,1,1,1000,,,,0,,\n", `line 2, column "cpu_milli"`},
		"memory":       {"p,1,-1,1,1000,,,,0,,\n", `line 2, column "memory_mib"`},
		"gpus":         {"p,1,1,33,1000,,,,0,,\n", `line 2, column "num_gpu": must be 0 to 32, is 33`},
		"gpu share":    {"p,1,1,1,1001,,,,0,,\n", `line 2, column "gpu_milli"`},
		"created":      {"p,1,1,1,1000,,,,soon,,\n", `line 2, column "creation_time"`},
		"alternative":  {"p,1,1,1,1000,T4||A10,,,0,,\n", `line 2, column "gpu_spec": "T4||A10" has an alternative without a name`},
		"nine of them": {"p,1,1,1,1000,a|b|c|d|e|f|g|h|i,,,0,,\n", "spec.tiers"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenBPods(strings.NewReader(podHead+test.row), 0)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
	if _, err := OpenBPods(strings.NewReader(podHead), -1); err == nil {
		t.Error("a negative limit was accepted")
	}
}

func TestPolicyNameIsBoundAndUnique(t *testing.T) {
	long := []string{"a-model-with-a-long-name", "another-model-with-a-long-name", "x"}
	other := append(slices.Clone(long[:2]), "y")
	first, second := policyName(long, 1), policyName(other, 1)
	if len(first) > maxPolicyName || first == second {
		t.Errorf("got %q and %q", first, second)
	}
	for _, message := range validation.IsDNS1123Label(first) {
		t.Error(message)
	}
}

// TestRealOpenBPods converts the whole trace: every Pod with GPUs is there, in
// order, and names a policy that is valid and reads back.
func TestRealOpenBPods(t *testing.T) {
	w, err := OpenBPods(data(t, "openb_pod_list_gpuspec33.csv"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Pods) != 7064 {
		t.Errorf("got %d pods with GPUs, want 7064", len(w.Pods))
	}
	policies := map[string]*v1alpha1.AcceleratorPolicy{}
	for _, policy := range w.Policies {
		if policies[policy.Name] != nil {
			t.Errorf("policy %s is there twice", policy.Name)
		}
		policies[policy.Name] = policy
	}
	for i, pod := range w.Pods {
		if policies[pod.Labels[v1alpha1.LabelPolicy]] == nil {
			t.Fatalf("pod %s names %q", pod.Name, pod.Labels[v1alpha1.LabelPolicy])
		}
		if i > 0 && pod.CreationTimestamp.Before(&w.Pods[i-1].CreationTimestamp) {
			t.Fatalf("pod %s is older than the one before it", pod.Name)
		}
	}
}

// TestRealOpenBPodsAreTheSameBytes converts the first 500 twice.
func TestRealOpenBPodsAreTheSameBytes(t *testing.T) {
	var outputs [2]bytes.Buffer
	for i := range outputs {
		w, err := OpenBPods(data(t, "openb_pod_list_gpuspec33.csv"), 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.Pods) != 500 {
			t.Fatalf("got %d pods, want 500", len(w.Pods))
		}
		if err := w.WriteManifests(&outputs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(outputs[0].Bytes(), outputs[1].Bytes()) {
		t.Error("two conversions differ")
	}
}

func TestWorkloadDecodesStrictly(t *testing.T) {
	w, err := OpenBPods(strings.NewReader(somePods), 0)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := w.WriteManifests(&out); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for document := range strings.SplitSeq(strings.TrimPrefix(out.String(), "---\n"), "\n---\n") {
		var object any = &corev1.Pod{}
		if strings.Contains(document, "kind: AcceleratorPolicy\n") {
			object = &v1alpha1.AcceleratorPolicy{}
			count["policies"]++
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%v in\n%s", err, document)
		}
		count["documents"]++
	}
	if count["policies"] != 3 || count["documents"] != 7 {
		t.Errorf("read back %v, want 3 policies and 4 pods", count)
	}
}
