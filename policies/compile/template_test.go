package compile_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

func policyOf(spec v1alpha1.AcceleratorPolicySpec) *v1alpha1.AcceleratorPolicy {
	return &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}
}

func templateOf(t *testing.T, spec v1alpha1.AcceleratorPolicySpec) *resourcev1.ResourceClaimTemplate {
	t.Helper()
	revision, err := compile.Revision(policyOf(spec), 1)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(revision, "ns")
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func TestTolerations(t *testing.T) {
	for _, test := range []struct {
		name      string
		unhealthy v1alpha1.OnUnhealthy
		tolerated bool
		seconds   *int64
	}{
		{"default", v1alpha1.OnUnhealthy{}, false, nil},
		{"evict at once", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict}, false, nil},
		{"evict, no grace", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: &metav1.Duration{}}, false, nil},
		{
			"evict after a minute",
			v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: &metav1.Duration{Duration: time.Minute}},
			true, ptr.To[int64](60),
		},
		{"keep", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep}, true, nil},
		{"recreate is the health controller's", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}, true, nil},
		{"end is the health controller's", v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEnd}, true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			template := templateOf(t, v1alpha1.AcceleratorPolicySpec{
				Tiers:       []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}, {Name: "any"}},
				OnUnhealthy: test.unhealthy,
			})
			var want []resourcev1.DeviceToleration
			if test.tolerated {
				want = []resourcev1.DeviceToleration{{
					Key: "gpu.gpuladder.dev/failed", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: test.seconds,
				}}
			}
			for _, tier := range template.Spec.Spec.Devices.Requests[0].FirstAvailable {
				if !reflect.DeepEqual(tier.Tolerations, want) {
					t.Errorf("tier %s tolerates %+v, want %+v", tier.Name, tier.Tolerations, want)
				}
			}
		})
	}
}

func TestConstraints(t *testing.T) {
	tiers := []v1alpha1.Tier{
		{Name: "one", Models: []string{"H100"}, Count: ptr.To[int32](1)},
		{Name: "two", Models: []string{"A100"}, Count: ptr.To[int32](2)},
		{Name: "four", Models: []string{"L4"}, Count: ptr.To[int32](4)},
	}
	match := func(name string, requests ...string) resourcev1.DeviceConstraint {
		return resourcev1.DeviceConstraint{Requests: requests, MatchAttribute: ptr.To(resourcev1.FullyQualifiedName(name))}
	}
	numa := match("resource.kubernetes.io/numaNode", "accelerator")
	for _, test := range []struct {
		name string
		spec v1alpha1.AcceleratorPolicySpec
		want []resourcev1.DeviceConstraint
	}{
		{"nothing", v1alpha1.AcceleratorPolicySpec{Tiers: tiers[:1]}, nil},
		{"one model, by default", v1alpha1.AcceleratorPolicySpec{Tiers: tiers}, []resourcev1.DeviceConstraint{
			match("gpu.gpuladder.dev/model", "accelerator/two", "accelerator/four"),
		}},
		{"one product, NVIDIA", v1alpha1.AcceleratorPolicySpec{Driver: "gpu.nvidia.com", Tiers: tiers}, []resourcev1.DeviceConstraint{
			match("gpu.nvidia.com/productName", "accelerator/two", "accelerator/four"),
		}},
		{"mixing allowed", v1alpha1.AcceleratorPolicySpec{Tiers: tiers, MixModels: v1alpha1.MixModelsWithinTier}, nil},
		{"topology", v1alpha1.AcceleratorPolicySpec{
			Tiers: tiers[:1], Constraints: v1alpha1.Constraints{MatchAttributes: []string{"resource.kubernetes.io/numaNode"}},
		}, []resourcev1.DeviceConstraint{numa}},
		{"topology and model", v1alpha1.AcceleratorPolicySpec{
			Tiers: tiers[1:2], Constraints: v1alpha1.Constraints{MatchAttributes: []string{"resource.kubernetes.io/numaNode"}},
		}, []resourcev1.DeviceConstraint{numa, match("gpu.gpuladder.dev/model", "accelerator/two")}},
		{"model named already", v1alpha1.AcceleratorPolicySpec{
			Tiers: tiers[1:2], Constraints: v1alpha1.Constraints{MatchAttributes: []string{"gpu.gpuladder.dev/model"}},
		}, []resourcev1.DeviceConstraint{match("gpu.gpuladder.dev/model", "accelerator")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := templateOf(t, test.spec).Spec.Spec.Devices.Constraints; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got constraints %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	policy := policyOf(v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "any"}}, ActiveRevision: ptr.To[int64](2)})
	before := policy.DeepCopy()
	revision, err := compile.Revision(policy, 7)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(policy, before) {
		t.Error("the policy was changed")
	}
	if revision.Name != "p-7" || revision.Spec.Policy != "p" || revision.Spec.Revision != 7 {
		t.Errorf("got revision %s of %s number %d", revision.Name, revision.Spec.Policy, revision.Spec.Revision)
	}
	if revision.Spec.PolicySpec.ActiveRevision != nil {
		t.Error("a revision must not say which one is active")
	}
	if revision.Spec.PolicySpec.Driver != v1alpha1.DriverName {
		t.Error("defaults are not filled in")
	}
	if revision.Spec.Hash != policy.Spec.ContentHash() {
		t.Errorf("got hash %s, want the policy's, %s", revision.Spec.Hash, policy.Spec.ContentHash())
	}
	if _, err := compile.Revision(policy, 0); err == nil || !strings.Contains(err.Error(), "spec.revision") {
		t.Errorf("revision 0: got error %v, want one at spec.revision", err)
	}
}

func TestTemplateRefusesForgedContent(t *testing.T) {
	revision, err := compile.Revision(policyOf(v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}}), 1)
	if err != nil {
		t.Fatal(err)
	}
	revision.Spec.PolicySpec.Tiers[0].Models = nil
	if _, err := compile.Template(revision, "ns"); !errors.Is(err, compile.ErrHashMismatch) {
		t.Errorf("got error %v, want ErrHashMismatch", err)
	}
}

// TestNothingIsDropped says for each field of a policy where it went: into the
// claim, or into the list of what the scheduler carries.
func TestNothingIsDropped(t *testing.T) {
	spec := v1alpha1.AcceleratorPolicySpec{
		Tiers: []v1alpha1.Tier{
			{Name: "h100", Models: []string{"H100"}},
			{Name: "any", After: &metav1.Duration{Duration: 10 * time.Minute}},
		},
		Ranking:          v1alpha1.RankingSpread,
		MixTiers:         v1alpha1.MixTiersWithinGroup,
		PreferAttributes: []string{"resource.kubernetes.io/numaNode"},
		Preempts:         v1alpha1.PreemptsBorrowed,
	}
	template := templateOf(t, spec)
	carried := strings.Split(template.Annotations[compile.AnnotationCarried], "; ")
	for _, want := range []string{
		"tiers: strict order", "tiers[1].after: 10m0s", "ranking: Spread", "mixTiers: WithinGroup", "preferAttributes: resource.kubernetes.io/numaNode",
		"preempts: Borrowed", "retry", "onUnhealthy: Evict", "quota",
	} {
		if !slices.Contains(carried, want) {
			t.Errorf("the template does not say that the scheduler carries %q: %q", want, carried)
		}
	}
	// In the claim: driver, count, constraints, tiers, mixModels, sharing (the
	// tests above). Neither: who may use it and which revision is active.
	known := []string{
		"Driver", "Count", "Constraints", "Tiers", "MixModels", "MixTiers", "Ranking", "PreferAttributes", "Preempts", "Retry", "OnUnhealthy", "Sharing",
		"NamespaceSelector", "ActiveRevision",
	}
	fields := reflect.TypeFor[v1alpha1.AcceleratorPolicySpec]()
	for i := range fields.NumField() {
		if !slices.Contains(known, fields.Field(i).Name) {
			t.Errorf("spec has a new field, %s: compile it, carry it or refuse it, then list it here", fields.Field(i).Name)
		}
	}
}

// TestSharingGoesToTheDriver, in parameters that it reads as they were meant,
// and only where something is to be set.
func TestSharingGoesToTheDriver(t *testing.T) {
	with := func(sharing *v1alpha1.Sharing) []resourcev1.DeviceClaimConfiguration {
		return templateOf(t, v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "any"}}, Sharing: sharing}).Spec.Spec.Devices.Config
	}
	for _, none := range []*v1alpha1.Sharing{nil, {}, {Strategy: v1alpha1.SharingExclusive}} {
		if got := with(none); got != nil {
			t.Errorf("%+v became %+v", none, got)
		}
	}
	limit := resource.MustParse("2Gi")
	for _, asked := range []*v1alpha1.Sharing{
		{Strategy: v1alpha1.SharingTimeSlicing},
		{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: v1alpha1.IntervalShort}},
		{Strategy: v1alpha1.SharingMPS, MPS: &v1alpha1.MPS{ActiveThreadPercentage: ptr.To[int32](30), PinnedDeviceMemoryLimit: &limit}},
	} {
		got := with(asked)
		if len(got) != 1 || len(got[0].Requests) != 0 || got[0].Opaque == nil || got[0].Opaque.Driver != v1alpha1.DriverName {
			t.Fatalf("%+v became %+v", asked, got)
		}
		read, err := v1alpha1.DecodeGPUConfig(got[0].Opaque.Parameters.Raw)
		if err != nil {
			t.Fatal(err)
		}
		if !apiequality.Semantic.DeepEqual(read.Sharing, asked) {
			t.Errorf("%+v is read as %+v", asked, read.Sharing)
		}
	}
	for name, spec := range map[string]v1alpha1.AcceleratorPolicySpec{
		"contradicts constraints.isolation":     {Constraints: v1alpha1.Constraints{Isolation: v1alpha1.IsolationExclusive}},
		"that driver has parameters of its own": {Driver: v1alpha1.NVIDIADriverName},
	} {
		spec.Tiers, spec.Sharing = []v1alpha1.Tier{{Name: "any"}}, &v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS}
		if _, err := compile.Revision(policyOf(spec), 1); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
}

func TestDeviceClass(t *testing.T) {
	if name := compile.DeviceClass(v1alpha1.DriverName).Name; name != "gpu.gpuladder.dev" {
		t.Errorf("got class %s, want the driver's name", name)
	}
	if name := compile.DeviceClass(v1alpha1.NVIDIADriverName).Name; name == "gpu.nvidia.com" {
		t.Error("the class clashes with the one that NVIDIA installs")
	}
}
