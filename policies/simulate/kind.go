package simulate

// This file makes of a job what the two engines know: a policy of its own for
// its Pods, and an entry of the queue.

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// maxPerPod is the most devices that a policy can ask for.
const maxPerPod = 32

// narrowed is a policy, and the models to which a job narrows it.
type narrowed struct {
	policy int
	models string
}

// asked is what tells kinds apart.
type asked struct {
	narrowed
	gpus int
}

// joined makes a key of a set of models.
func joined(models []string) string {
	return strings.Join(slices.Sorted(slices.Values(models)), "|")
}

// kind is what jobs have in common that ask for the same.
type kind struct {
	// policy that the Pods name; nil: nothing could ever serve them.
	policy   *v1alpha1.AcceleratorPolicy
	labels   map[string]string
	members  int64
	perPod   int64 // GPUs of the job for each member
	ways     []way // by the policy's tiers
	requests []fair.Request
}

// way is one tier.
type way struct {
	// preferred: it stands for the first tier of the policy that was given.
	preferred bool
	count     int64
	after     int64 // milliseconds that the job must have waited
	groups    []int // whose nodes can serve it
}

// kind makes one; number names its policy.
func (s *Simulation) kind(p *probe, a asked, models []string, number int32) (*kind, error) {
	given := s.policies[a.policy]
	largest, err := s.largestNode(p, a.narrowed, models)
	if err != nil {
		return nil, err
	}
	if largest == 0 {
		return &kind{members: 1, perPod: int64(a.gpus)}, nil
	}
	k := &kind{members: (int64(a.gpus) + largest - 1) / largest}
	for int64(a.gpus)%k.members != 0 {
		k.members++
	}
	k.perPod = int64(a.gpus) / k.members
	spec := given.Spec.DeepCopy()
	spec.ActiveRevision, spec.Tiers = nil, nil
	spec.Count = ptr.To(int32(k.perPod))
	var request fair.Request
	for _, tier := range tiers(&given.Spec, models, k.perPod) {
		groups, err := p.serve(spec, tier.Tier)
		if err != nil {
			return nil, &Error{Part: PartPolicy, Field: fmt.Sprintf("AcceleratorPolicy %s, tier %s", given.Name, tier.Name), Msg: err.Error()}
		}
		if len(groups) == 0 || slices.ContainsFunc(spec.Tiers, func(before v1alpha1.Tier) bool { return covers(&before, &tier.Tier) }) {
			continue
		}
		w := way{preferred: tier.index == 0, count: int64(*tier.Count), groups: groups}
		alternative := fair.Alternative{Count: w.count}
		if tier.After != nil {
			alternative.After = tier.After.Duration
			w.after = (tier.After.Duration.Nanoseconds() + 999_999) / 1_000_000
		}
		for _, g := range groups {
			if model := p.models[g]; !slices.Contains(alternative.Models, model) {
				alternative.Models = append(alternative.Models, model)
			}
		}
		spec.Tiers = append(spec.Tiers, tier.Tier)
		k.ways = append(k.ways, w)
		request.Alternatives = append(request.Alternatives, alternative)
	}
	if len(k.ways) == 0 {
		return k, nil
	}
	k.policy = &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kind-%d", number)}, Spec: *spec}
	k.labels = map[string]string{v1alpha1.LabelPolicy: k.policy.Name}
	k.requests = []fair.Request{request}
	return k, nil
}

// tierOf is a tier of the policy that was given, and which.
type tierOf struct {
	v1alpha1.Tier
	index int
}

// tiers are those of a policy for a Pod of so many GPUs, each with its count,
// narrowed to the models that the job names.
func tiers(spec *v1alpha1.AcceleratorPolicySpec, models []string, perPod int64) []tierOf {
	var out []tierOf
	for i := range spec.Tiers {
		tier := *spec.Tiers[i].DeepCopy()
		unit := max(int64(ptr.Deref(spec.Count, v1alpha1.DefaultCount)), 1)
		count := (perPod*int64(spec.CountOf(&tier)) + unit - 1) / unit
		if count > maxPerPod {
			continue
		}
		tier.Count = ptr.To(int32(count))
		if len(models) > 0 {
			if len(tier.Models) == 0 {
				tier.Models = slices.Clone(models)
			} else {
				tier.Models = slices.DeleteFunc(tier.Models, func(m string) bool { return !slices.Contains(models, m) })
			}
			if len(tier.Models) == 0 {
				continue
			}
		}
		out = append(out, tierOf{tier, i})
	}
	return out
}

// covers: a can be met whenever b can. Narrowing may make it so, and a policy
// with such a tier is refused.
func covers(a, b *v1alpha1.Tier) bool {
	after := func(t *v1alpha1.Tier) int64 {
		if t.After == nil {
			return 0
		}
		return int64(t.After.Duration)
	}
	within := func(list, wanted []string) bool {
		return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(list, w) })
	}
	return *a.Count <= *b.Count && after(a) <= after(b) &&
		(len(a.Models) == 0 || len(b.Models) > 0 && within(a.Models, b.Models)) && within(b.Selectors, a.Selectors)
}

// largestNode is the number of a job's GPUs that the largest node could serve
// for any tier of the policy, no more than a policy can ask for.
func (s *Simulation) largestNode(p *probe, n narrowed, models []string) (int64, error) {
	if known, ok := s.largest[n]; ok {
		return known, nil
	}
	given := s.policies[n.policy]
	spec := given.Spec.DeepCopy()
	spec.ActiveRevision, spec.Count = nil, ptr.To(int32(1))
	var largest int64
	for _, tier := range tiers(&given.Spec, models, 1) {
		groups, err := p.serve(spec, tier.Tier)
		if err != nil {
			return 0, &Error{Part: PartPolicy, Field: fmt.Sprintf("AcceleratorPolicy %s, tier %s", given.Name, tier.Name), Msg: err.Error()}
		}
		for _, g := range groups {
			largest = max(largest, min(int64(s.fleet.Groups[g].GPUs), maxPerPod)/int64(*tier.Count))
		}
	}
	if largest == 0 && len(models) == 0 {
		return 0, &Error{Part: PartPolicy, Field: "AcceleratorPolicy " + given.Name, Msg: "no node of the fleet can serve any of its tiers"}
	}
	s.largest[n] = largest
	return largest, nil
}

// canFit is false where a job could not have its devices even if nothing else
// ran: its gang is larger than what the nodes of its tiers hold, or than what
// its tenant may hold.
func (s *Simulation) canFit(k *kind, t *tenant) bool {
	var members int64
	for m, model := range s.models {
		var nodes, least int64
		for _, w := range k.ways {
			if slices.ContainsFunc(w.groups, func(g int) bool { return s.modelOf[g] == m }) && (least == 0 || w.count < least) {
				least = w.count
			}
		}
		if least == 0 {
			continue
		}
		for g := range s.fleet.Groups {
			if s.modelOf[g] == m {
				nodes += int64(s.fleet.Groups[g].Nodes) * (int64(s.fleet.Groups[g].GPUs) / least)
			}
		}
		members += min(nodes, t.most(model)/least)
	}
	return members >= k.members
}

// most is how many devices of a model the tenant may hold.
func (t *tenant) most(model string) int64 {
	if t.quota == nil {
		return math.MaxInt64
	}
	for i := range t.quota.Spec.Models {
		if m := &t.quota.Spec.Models[i]; m.Model == model {
			if m.Limit == nil {
				return math.MaxInt64
			}
			return int64(*m.Limit)
		}
	}
	return 0
}

// probe asks the decision engine what a tier can be served by: on a fleet with
// one idle node of each group.
type probe struct {
	state   *decide.State
	groupOf map[string]int
	models  []string // by group
}

const probeName = "probe"

func newProbe(f *fleet.Fleet) (*probe, error) {
	small := *f
	small.Groups = slices.Clone(f.Groups)
	p := &probe{state: decide.NewState(decide.Options{Examples: 1}), groupOf: map[string]int{}, models: make([]string, len(f.Groups))}
	for i := range small.Groups {
		small.Groups[i].Nodes = 1
		p.groupOf[small.Groups[i].NodeName(0)] = i
	}
	for _, node := range small.Nodes() {
		if err := p.state.Put(node); err != nil {
			return nil, fmt.Errorf("probing the fleet, %w", err)
		}
	}
	for _, slice := range small.Slices() {
		if err := p.state.Put(slice); err != nil {
			return nil, fmt.Errorf("probing the fleet, %w", err)
		}
		for i := range slice.Spec.Devices {
			p.models[p.groupOf[slice.Spec.Pool.Name]] = *slice.Spec.Devices[i].Attributes[fleet.AttributeModel].StringValue
		}
	}
	return p, p.state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: probeName, Name: probeName, Labels: map[string]string{v1alpha1.LabelPolicy: probeName},
	}})
}

// serve is the groups whose nodes can serve a tier, in the order of choice.
func (p *probe) serve(spec *v1alpha1.AcceleratorPolicySpec, tier v1alpha1.Tier) ([]int, error) {
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: probeName}, Spec: *spec.DeepCopy()}
	tier.After = nil
	policy.Spec.Tiers, policy.Spec.NamespaceSelector = []v1alpha1.Tier{tier}, nil
	if err := p.state.Put(policy); err != nil {
		return nil, err
	}
	candidates, err := p.state.Candidates(decide.Query{Pod: types.NamespacedName{Namespace: probeName, Name: probeName}})
	if err != nil {
		return nil, err
	}
	var groups []int
	for c := range candidates {
		groups = append(groups, p.groupOf[c.Node])
	}
	return groups, nil
}
