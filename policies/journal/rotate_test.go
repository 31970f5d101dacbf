package journal

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

// claimFor is the claim that was made for a Pod of the policy, allocated to what
// was decided.
func claimFor(d *decide.Decision) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Name: d.Pod + "-accelerator", Namespace: d.Namespace, UID: "uid-claim-" + d.PodUID,
		Annotations:     map[string]string{resourceapi.PodResourceClaimAnnotation: v1alpha1.ClaimRefName},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: d.Pod, UID: d.PodUID, Controller: new(true)}},
	}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
		Name:           v1alpha1.RequestName,
		FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "h100"}, {Name: "a100"}},
	}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, x := range d.Devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: x.Request, Driver: x.Driver, Pool: x.Pool, Device: x.Device,
		})
	}
	return c
}

// A journal begun in the middle of life replays by itself.
func TestRotate(t *testing.T) {
	var first, second bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &first)
	fill(t, r)
	d := mustDecide(t, r, "a", "h100")
	if err := r.Assume(d, true); err != nil {
		t.Fatal(err)
	}
	before := r.Digest()
	if err := r.Rotate("two", &second); err != nil {
		t.Fatal(err)
	}
	if r.Digest() != before {
		t.Error("rotating changed the state")
	}
	b := mustDecide(t, r, "b", "a100")
	if b.Journal != "two#8" {
		t.Errorf("the decision stands at %q, want two#8", b.Journal)
	}
	if err := r.Assume(b, true); err != nil {
		t.Fatal(err)
	}
	r.Forget(pod("a"))
	mustDecide(t, r, "a", "h100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]*bytes.Buffer{"old": &first, "new": &second} {
		report, err := Replay(text)
		if err != nil || len(report.Differences) != 0 {
			t.Errorf("the %s journal: %v, differences %v", name, err, report.Differences)
		}
	}
}

// A charge that was replaced by what was written is not charged again.
func TestRotateAfterBinding(t *testing.T) {
	var first, second bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &first)
	fill(t, r)
	waiting := objects(t)[3].Object.(*corev1.Pod).DeepCopy()
	waiting.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: new("h100-first-1")}}
	if err := r.Put(waiting); err != nil {
		t.Fatal(err)
	}
	d := mustDecide(t, r, "a", "h100")
	if err := r.Assume(d, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Put(claimFor(d)); err != nil {
		t.Fatal(err)
	}
	bound := waiting.DeepCopy()
	bound.Spec.NodeName = d.Node
	if err := r.Put(bound); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate("two", &second); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, r, "b", "a100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	if report, err := Replay(&second); err != nil || len(report.Differences) != 0 || report.Decisions != 1 {
		t.Errorf("%v, %d decisions, differences %v", err, report.Decisions, report.Differences)
	}
	// The claim goes: its device is free, and the charge does not come back.
	if err := r.Delete(claimFor(d)); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, r, "b", "h100")
}

// A device in use keeps its charge when its slice is gone, and so does the
// snapshot.
func TestRotateWithoutSlice(t *testing.T) {
	var first, second bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &first)
	fill(t, r)
	if err := r.Assume(mustDecide(t, r, "a", "h100"), true); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-1-gpus"}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate("two", &second); err != nil {
		t.Fatal(err)
	}
	if err := r.Put(objects(t)[1].Object); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, r, "b", "a100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	if report, err := Replay(&second); err != nil || len(report.Differences) != 0 || report.Decisions != 1 {
		t.Errorf("%v, %d decisions, differences %v", err, report.Decisions, report.Differences)
	}
}

// A charge can't be made anew when its policy is gone: the old journal goes on
// until the charge is settled.
func TestRotateKeepsHistory(t *testing.T) {
	var first, second bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &first)
	fill(t, r)
	if err := r.Assume(mustDecide(t, r, "a", "h100"), true); err != nil {
		t.Fatal(err)
	}
	policy := objects(t)[2].Object
	if err := r.Delete(policy); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate("two", io.Discard); !errors.Is(err, ErrHistory) {
		t.Fatalf("rotate: %v, want ErrHistory", err)
	}
	if err := r.Put(policy); err != nil {
		t.Fatal(err)
	}
	if d := mustDecide(t, r, "b", "a100"); !strings.HasPrefix(d.Journal, "one#") {
		t.Errorf("the decision stands at %q, want the old journal", d.Journal)
	}
	if err := r.Rotate("three", &second); err != nil {
		t.Fatalf("with the policy back: %v", err)
	}
	for name, text := range map[string]*bytes.Buffer{"old": &first, "new": &second} {
		if report, err := Replay(text); err != nil || len(report.Differences) != 0 {
			t.Errorf("the %s journal: %v, differences %v", name, err, report.Differences)
		}
	}
}

// A snapshot that can't be written leaves the Recorder on its old journal.
func TestRotateToBrokenWriter(t *testing.T) {
	var first bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &first)
	fill(t, r)
	if err := r.Rotate("two", &brokenWriter{left: 10}); !errors.Is(err, errBroken) {
		t.Fatalf("rotate: %v", err)
	}
	mustDecide(t, r, "a", "h100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	if report, err := Replay(&first); err != nil || report.Decisions != 1 {
		t.Errorf("%v, %d decisions", err, report.Decisions)
	}
}

// A new journal heals a failed one.
func TestRotateAfterFailure(t *testing.T) {
	var second bytes.Buffer
	r := NewRecorder(decide.Options{}, "one", &brokenWriter{left: 10})
	fill(t, r)
	if err := r.Flush(); !errors.Is(err, errBroken) {
		t.Fatalf("flush: %v", err)
	}
	if err := r.Rotate("two", &second); err != nil || r.Err() != nil {
		t.Fatalf("rotate: %v, then %v", err, r.Err())
	}
	mustDecide(t, r, "a", "h100")
	if err := r.Seal(); err != nil {
		t.Fatal(err)
	}
	if report, err := Replay(&second); err != nil || report.Decisions != 1 || len(report.Differences) != 0 {
		t.Errorf("%v, %d decisions, differences %v", err, report.Decisions, report.Differences)
	}
}
