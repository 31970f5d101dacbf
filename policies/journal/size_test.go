package journal_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/policies/journal"
)

// counter is a Writer that counts bytes.
type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// What 1,000 decisions add to a journal: what docs/operating.md says, at most. Each
// is for one device of three tiers, with all that ladder-scheduler writes of a Pod.
func TestSizeOfAThousandDecisions(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		nodes int
		most  float64 // MiB for 1,000 decisions
	}{{500, 8}, {2000, 8}} {
		t.Run(fmt.Sprintf("%d nodes", test.nodes), func(t *testing.T) {
			var written counter
			r := journal.NewRecorder(decide.Options{NodeChecks: decide.ExternalNodeChecks}, "j", &written)
			put := func(objects ...runtime.Object) {
				t.Helper()
				for _, o := range objects {
					if err := r.Put(o); err != nil {
						t.Fatal(err)
					}
				}
			}
			size := func() float64 {
				t.Helper()
				if err := r.Flush(); err != nil {
					t.Fatal(err)
				}
				return float64(written) / mib
			}
			f := fleet.New(
				fleet.Group{Name: "h100", Nodes: test.nodes / 25, Board: "H100-SXM5-80GB", GPUs: 8},
				fleet.Group{Name: "a100", Nodes: 12 * test.nodes / 25, Board: "A100-SXM4-80GB", GPUs: 8},
				fleet.Group{Name: "l4", Nodes: 12 * test.nodes / 25, Board: "L4", GPUs: 8},
			)
			for _, node := range f.Nodes() {
				put(node)
			}
			for _, slice := range f.Slices() {
				put(slice)
			}
			policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "h100-first"}}
			for _, model := range []string{"H100", "A100", "L4"} {
				policy.Spec.Tiers = append(policy.Spec.Tiers, v1alpha1.Tier{Name: strings.ToLower(model), Models: []string{model}})
			}
			policy.Default()
			revision, err := compile.Revision(policy, 1)
			if err != nil {
				t.Fatal(err)
			}
			template, err := compile.Template(revision, "team")
			if err != nil {
				t.Fatal(err)
			}
			put(compile.DeviceClass(v1alpha1.DriverName), policy, revision)
			before := size()
			for i := range 1000 {
				serve(t, r, put, template, fmt.Sprintf("pod-%d", i))
			}
			added := size() - before
			t.Logf("the fleet: %.1f MiB; 1,000 decisions: %.1f MiB", before, added)
			if added > test.most || added < test.most/4 {
				t.Errorf("1,000 decisions added %.1f MiB, want at most %.0f", added, test.most)
			}
		})
	}
}

// serve has a Pod decided on and bound.
func serve(t *testing.T, r *journal.Recorder, put func(...runtime.Object), template *resourcev1.ResourceClaimTemplate, name string) {
	t.Helper()
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(now),
			Labels: map[string]string{v1alpha1.LabelPolicy: "h100-first"},
		},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "main", Image: "example.com/train:1"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: &template.Name}},
		},
		Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To(name + "-accelerator")}}},
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name + "-accelerator", UID: types.UID("claim-" + name), Labels: template.Spec.Labels, Annotations: template.Spec.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: ptr.To(true)}},
		},
		Spec: template.Spec.Spec,
	}
	put(claim, pod)
	d, err := r.Decide(decide.Query{Pod: types.NamespacedName{Namespace: "team", Name: name}, Now: now, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d.Outcome != v1alpha1.OutcomeAllocated {
		t.Fatal(d.Message)
	}
	if err := r.Assume(d, true); err != nil {
		t.Fatal(err)
	}
	claim = claim.DeepCopy()
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	for _, got := range d.Devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: got.Request, Driver: got.Driver, Pool: got.Pool, Device: got.Device,
		})
	}
	bound := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: pod.UID, Annotations: map[string]string{v1alpha1.AnnotationModel: d.Devices[0].Model}}}
	bound.Spec.NodeName, bound.Spec.ResourceClaims, bound.Status = d.Node, pod.Spec.ResourceClaims, pod.Status
	put(claim, bound)
}
