package decidetest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// policies makes two policies, the second one with revisions.
func (d *draw) policies() {
	meta := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AcceleratorPolicy"}
	d.c.Policies = append(d.c.Policies, &v1alpha1.AcceleratorPolicy{
		TypeMeta: meta, ObjectMeta: metav1.ObjectMeta{Name: "first"}, Spec: d.policySpec(),
	})
	revised := &v1alpha1.AcceleratorPolicy{TypeMeta: meta, ObjectMeta: metav1.ObjectMeta{Name: "revised"}}
	for n := int64(1); n <= 2; n++ {
		revised.Spec = d.policySpec()
		r := &v1alpha1.PolicyRevision{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PolicyRevision"},
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.RevisionName("revised", n)},
			Spec: v1alpha1.PolicyRevisionSpec{
				Policy: "revised", Revision: n, Hash: revised.Spec.ContentHash(), PolicySpec: *revised.Spec.DeepCopy(),
			},
		}
		if d.oneIn8("withdrawn") {
			r.Spec.State = v1alpha1.RevisionWithdrawn
		}
		r.Default()
		d.c.Revisions = append(d.c.Revisions, r)
	}
	if d.oneIn4("rolled back") {
		revised.Spec.ActiveRevision = ptr.To(int64(1))
	}
	d.c.Policies = append(d.c.Policies, revised)
}

// usePolicy labels a Pod.
func (d *draw) usePolicy(p *corev1.Pod) {
	p.Labels[v1alpha1.LabelPolicy] = "first"
	if d.oneIn4("revised") {
		p.Labels[v1alpha1.LabelPolicy] = "revised"
		if d.oneIn2("pinned") {
			p.Labels[v1alpha1.LabelPolicyRevision] = fmt.Sprint(1 + d.bits(1, "revision"))
		}
	}
}

func (d *draw) policySpec() v1alpha1.AcceleratorPolicySpec {
	s := v1alpha1.AcceleratorPolicySpec{
		Driver:  v1alpha1.DriverName,
		Count:   ptr.To(int32(pickOne(d, "count", 1, 2, 1, 3))),
		Ranking: pickOne(d, "ranking", v1alpha1.RankingPacked, v1alpha1.RankingSpread),
	}
	if d.nvidia && d.oneIn2("nvidia policy") {
		s.Driver = v1alpha1.NVIDIADriverName
	}
	if d.oneIn2("mix") {
		s.MixModels = v1alpha1.MixModelsWithinTier
	}
	if d.oneIn4("wishes") {
		s.PreferAttributes = []string{numaNode, pcieRoot}
	}
	s.OnUnhealthy.Action = pickOne(d, "on unhealthy", v1alpha1.UnhealthyEvict, v1alpha1.UnhealthyKeep, v1alpha1.UnhealthyEnd)
	if s.OnUnhealthy.Action == v1alpha1.UnhealthyEvict && d.oneIn2("grace") {
		s.OnUnhealthy.GracePeriod = &metav1.Duration{Duration: time.Minute}
	}
	if d.oneIn16("namespaces") {
		s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "team-a"}}
	}
	d.constraints(&s)
	d.tiers(&s)
	return s
}

func (d *draw) constraints(s *v1alpha1.AcceleratorPolicySpec) {
	c := &s.Constraints
	if d.oneIn8("min memory") {
		c.MinMemory = ptr.To(resource.MustParse(pickOne(d, "memory", "40Gi", "16Gi", "70Gi", "100Gi")))
	}
	if d.oneIn8("min capability") {
		c.MinComputeCapability = pickOne(d, "capability", "8.0", "8.9", "9", "10.0")
	}
	if d.oneIn8("min driver") {
		c.MinDriverVersion = pickOne(d, "driver", "550", "550.54", "550.54.15")
	}
	if d.oneIn8("architectures") {
		c.Architectures = []string{"Hopper", pickOne(d, "architecture", "Ampere", "Turing")}
	}
	if d.sharing && d.oneIn4("isolation") {
		c.Isolation = v1alpha1.IsolationExclusive
	}
	if d.oneIn8("hard selector") {
		c.Selectors = []string{pickOne(d, "expression", expressions...)}
	}
	if len(s.PreferAttributes) == 0 && d.oneIn2("match") {
		c.MatchAttributes = []string{pickOne(d, "match attribute", numaNode, pcieRoot)}
	}
}

// tiers adds 1 to 4 tiers; one that could never be used is left out, since the
// API refuses it.
func (d *draw) tiers(s *v1alpha1.AcceleratorPolicySpec) {
	for i := range 1 + d.bits(1, "tiers") + d.bits(1, "tiers") + d.bits(1, "tiers") {
		t := v1alpha1.Tier{Name: fmt.Sprintf("tier-%d", i)}
		t.Models = pickOne(d, "models", []string{"H100"}, []string{"A100"}, nil, []string{"H100", "A100"}, []string{"L4", "T4"})
		if d.oneIn8("tier selector") {
			t.Selectors = []string{pickOne(d, "expression", expressions...)}
		}
		if d.oneIn4("tier count") {
			t.Count = ptr.To(int32(rapid.IntRange(1, 4).Draw(d.T, "tier count")))
		}
		if d.oneIn4("after") {
			t.After = &metav1.Duration{Duration: pickOne(d, "after", 5*time.Minute, 10*time.Minute)}
		}
		longer := s.DeepCopy()
		longer.Tiers = append(longer.Tiers, t)
		longer.Default()
		if len(longer.Validate(field.NewPath("spec"))) == 0 {
			s.Tiers = append(s.Tiers, t)
		}
	}
}

// turn says of every second Pod of a cluster with quotas which models its turn is
// for. A Pod in a namespace without a quota may get one too, where it says nothing.
func (d *draw) turn(p *corev1.Pod) {
	if len(d.c.Quotas) == 0 || !d.oneIn2("turn") {
		return
	}
	p.Annotations = map[string]string{
		v1alpha1.AnnotationTurnModels: pickOne(d, "turn's models", "A100", "H100", "A100,H100", "T4", " T4 ,, H100", " , "),
	}
}

// quotas limits the tenants of every fourth cluster; now and then two quotas list
// the same namespace.
func (d *draw) quotas() {
	if !d.oneIn4("quota") {
		return
	}
	q := &v1alpha1.TenantQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "TenantQuota"},
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
	}
	q.Spec.Namespaces = pickOne(d, "tenant", []string{"team-a"}, []string{"team-a", "team-b"})
	q.Spec.Models = []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To(int32(rapid.IntRange(0, 3).Draw(d.T, "H100 limit")))}}
	if d.oneIn2("A100 too") {
		q.Spec.Models = append(q.Spec.Models, v1alpha1.ModelQuota{Model: "A100"})
	}
	if d.oneIn2("T4 too") {
		q.Spec.Models = append(q.Spec.Models, v1alpha1.ModelQuota{Model: "T4", Limit: ptr.To(int32(2))})
	}
	q.Default()
	d.c.Quotas = append(d.c.Quotas, q)
	if d.oneIn4("overlap") {
		other := q.DeepCopy()
		other.Name = pickOne(d, "name", "another", "wider")
		other.Spec.Namespaces = pickOne(d, "another tenant", []string{"team-b"}, []string{"team-a", "team-b"})
		other.Spec.Models[0].Limit = ptr.To(int32(1))
		d.c.Quotas = append(d.c.Quotas, other)
	}
}
