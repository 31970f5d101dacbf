package api_test

import (
	"context"
	"slices"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// stored creates the object for the length of the test.
func stored[T client.Object](t *testing.T, object T) T {
	t.Helper()
	c := apiserver.Get(t).Client
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %s: %v", object.GetName(), err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), object); err != nil {
			t.Errorf("deleting %s: %v", object.GetName(), err)
		}
	})
	return object
}

// change is one update and the fields for which it must be refused.
type change[T any] struct {
	name    string
	do      func(*T)
	refused []string
}

func TestPolicyRevisionIsImmutable(t *testing.T) {
	old := stored(t, revision(func(r *v1alpha1.PolicyRevision) {
		r.Spec.PolicySpec.Constraints.MinDriverVersion = "550"
		r.Spec.PolicySpec.Constraints.MinMemory = ptr.To(resource.MustParse("40960Mi"))
		r.Spec.PolicySpec.Tiers[1].After = lasting(90 * time.Minute)
	}))
	for _, c := range []change[v1alpha1.PolicyRevisionSpec]{
		{name: "nothing", do: func(*v1alpha1.PolicyRevisionSpec) {}},
		{name: "state", do: func(s *v1alpha1.PolicyRevisionSpec) { s.State = v1alpha1.RevisionWithdrawn }},
		{name: "hash", do: func(s *v1alpha1.PolicyRevisionSpec) { s.Hash = (&v1alpha1.AcceleratorPolicySpec{}).ContentHash() }, refused: []string{"spec.hash"}},
		{name: "a tier", do: func(s *v1alpha1.PolicyRevisionSpec) { s.PolicySpec.Tiers[1].Count = ptr.To[int32](2) }, refused: []string{"spec.policySpec"}},
		{name: "fewer tiers", do: func(s *v1alpha1.PolicyRevisionSpec) { s.PolicySpec.Tiers = s.PolicySpec.Tiers[:1] }, refused: []string{"spec.policySpec"}},
		{name: "a constraint more", do: func(s *v1alpha1.PolicyRevisionSpec) { s.PolicySpec.Constraints.MinComputeCapability = "9" }, refused: []string{"spec.policySpec"}},
		{name: "no constraints", do: func(s *v1alpha1.PolicyRevisionSpec) { s.PolicySpec.Constraints = v1alpha1.Constraints{} }, refused: []string{"spec.policySpec"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			updated := old.DeepCopy()
			c.do(&updated.Spec)
			if got := paths(updated.ValidateUpdate(old)); !slices.Equal(got, sorted(c.refused)) {
				t.Errorf("ValidateUpdate refuses %q, want %q", got, c.refused)
			}
			err := apiserver.Get(t).Client.Update(t.Context(), updated, client.DryRunAll)
			if got := refusedFields(t, err); !slices.Equal(got, sorted(c.refused)) {
				t.Errorf("the API server refuses %q, want %q: %v", got, c.refused, err)
			}
		})
	}
	t.Run("policy and revision", func(t *testing.T) {
		updated := old.DeepCopy()
		updated.Spec.Policy, updated.Spec.Revision = "other", 4
		if got, want := paths(updated.ValidateUpdate(old)), []string{"metadata.name", "spec.policy", "spec.revision"}; !slices.Equal(got, want) {
			t.Errorf("ValidateUpdate refuses %q, want %q", got, want)
		}
		err := apiserver.Get(t).Client.Update(t.Context(), updated, client.DryRunAll)
		if got, want := refusedFields(t, err), []string{wholeObject, "spec.policy", "spec.revision"}; !slices.Equal(got, want) {
			t.Errorf("the API server refuses %q, want %q: %v", got, want, err)
		}
	})
}

func TestAllocationDecisionIsImmutable(t *testing.T) {
	old := stored(t, decision(func(*v1alpha1.AllocationDecisionSpec) {}))
	for _, c := range []change[v1alpha1.AllocationDecisionSpec]{
		{name: "nothing", do: func(*v1alpha1.AllocationDecisionSpec) {}},
		{name: "the device", do: func(s *v1alpha1.AllocationDecisionSpec) { s.Devices[0].Device = "gpu-1" }, refused: []string{"spec"}},
		{name: "the evidence", do: func(s *v1alpha1.AllocationDecisionSpec) { s.Tiers[0].Rejections = nil }, refused: []string{"spec"}},
		{name: "the tier", do: func(s *v1alpha1.AllocationDecisionSpec) { s.Tier = "a100" }, refused: []string{"spec"}},
		{name: "the node taken out", do: func(s *v1alpha1.AllocationDecisionSpec) { s.Node = "" }, refused: []string{"spec"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			updated := old.DeepCopy()
			c.do(&updated.Spec)
			if got := paths(updated.ValidateUpdate(old)); !slices.Equal(got, sorted(c.refused)) {
				t.Errorf("ValidateUpdate refuses %q, want %q", got, c.refused)
			}
			err := apiserver.Get(t).Client.Update(t.Context(), updated, client.DryRunAll)
			if got := refusedFields(t, err); !slices.Equal(got, sorted(c.refused)) {
				t.Errorf("the API server refuses %q, want %q: %v", got, c.refused, err)
			}
		})
	}
}

// TestRoundTrip writes, reads back and compares, so that no field is lost or
// changed on the way, a record's microseconds included.
func TestRoundTrip(t *testing.T) {
	for _, object := range []kind{
		policy(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Constraints.Selectors = []string{`device.driver == "gpu.gpuladder.dev"`}
			s.Tiers[1].After = lasting(90 * time.Second)
		}),
		revision(func(r *v1alpha1.PolicyRevision) { r.Name, r.Spec.Revision = "h100-first-5", 5 }),
		decision(func(*v1alpha1.AllocationDecisionSpec) {}),
	} {
		written := stored(t, object.DeepCopyObject().(kind))
		read := object.DeepCopyObject().(kind)
		if err := apiserver.Get(t).Client.Get(t.Context(), client.ObjectKeyFromObject(written), read); err != nil {
			t.Fatalf("reading back, %v", err)
		}
		if !apiequality.Semantic.DeepEqual(written, read) {
			t.Errorf("written %#v\nread %#v", written, read)
		}
		want := object.DeepCopyObject().(kind)
		want.Default()
		requireSameContent(t, want, read)
		if p, ok := read.(*v1alpha1.AcceleratorPolicy); ok {
			if got, want := p.Spec.ContentHash(), object.(*v1alpha1.AcceleratorPolicy).Spec.ContentHash(); got != want {
				t.Errorf("the server's copy hashes to %s, the original to %s", got, want)
			}
		}
	}
}

// TestStatusIsSubresource holds that users of an object can't write its status.
func TestStatusIsSubresource(t *testing.T) {
	c := apiserver.Get(t).Client
	p := policy(nil)
	p.Name = "status"
	p.Status.LatestRevision = 7
	stored(t, p)
	if p.Status.LatestRevision != 0 {
		t.Errorf("creation wrote status: %+v", p.Status)
	}
	p.Status.LatestRevision = 7
	if err := c.Status().Update(t.Context(), p); err != nil {
		t.Fatalf("updating status, %v", err)
	}
	if p.Status.LatestRevision != 7 || p.Generation != 1 {
		t.Errorf("status %+v, generation %d; want revision 7, generation 1", p.Status, p.Generation)
	}
}
