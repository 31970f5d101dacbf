package quota

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Scene is what is there at one moment.
type Scene struct {
	Pods     []*corev1.Pod
	Claims   []*resourcev1.ResourceClaim
	Slices   []*resourcev1.ResourceSlice
	Quotas   []*v1alpha1.TenantQuota
	Policies []*v1alpha1.AcceleratorPolicy
}

// Idle is a Pod that waits although nothing keeps it from devices.
type Idle struct {
	Pod string `json:"pod"`
	// Gated: it waits for its turn. Otherwise it waits for the scheduler.
	Gated bool `json:"gated"`
	// Tier is the first that would serve it, Node where, and Free what is free
	// there of the tier's model.
	Tier  string `json:"tier"`
	Model string `json:"model"`
	Node  string `json:"node"`
	Free  int    `json:"free"`
	// Used and Limit are the tenant's of that model.
	Used  int `json:"used"`
	Limit int `json:"limit"`

	tenant string // empty for none
	count  int    // devices that the tier asks for
}

func (i Idle) String() string {
	waits := "for the scheduler"
	if i.Gated {
		waits = "at its gate"
	}
	return fmt.Sprintf("Pod %s waits %s: tier %s, %d %s are free on node %s and the tenant has %d of %d",
		i.Pod, waits, i.Tier, i.Free, i.Model, i.Node, i.Used, i.Limit)
}

// Waiting are the Pods of a scene that have no node.
func (s *Scene) Waiting() []*corev1.Pod {
	var waiting []*corev1.Pod
	for _, p := range s.Pods {
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && p.Labels[v1alpha1.LabelPolicy] != "" {
			waiting = append(waiting, p)
		}
	}
	return waiting
}

// LeftWaiting finds Pods that wait although a tier of theirs has enough free
// devices of one model on one node and their tenant's limit has room. It asks of
// a scene in which nothing moves any more. In doubt it finds nothing: what Pods
// may still take whose gate is open counts in full against those at their gate,
// and tiers that have to be waited for count as out of reach. Pods that can't be
// evicted are passed over, since they may not borrow what others are guaranteed.
func LeftWaiting(s Scene) []Idle {
	f := s.count()
	var found []Idle
	var open, closed []*corev1.Pod
	for _, p := range s.Waiting() {
		idle, ok := f.serves(p, s.policy(p))
		switch {
		case gated(p):
			closed = append(closed, p)
		case ok:
			f.take(idle) // the next one has to find others
			found = append(found, idle)
		default:
			open = append(open, p)
		}
	}
	for _, p := range open {
		f.expect(p, s.policy(p))
	}
	for _, p := range closed {
		if p.Labels[v1alpha1.LabelPreemptible] == "false" {
			continue
		}
		if idle, ok := f.serves(p, s.policy(p)); ok {
			idle.Gated = true
			found = append(found, idle)
		}
	}
	return found
}

func gated(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.GateQuota })
}

func (s *Scene) policy(p *corev1.Pod) *v1alpha1.AcceleratorPolicy {
	for _, policy := range s.Policies {
		if policy.Name == p.Labels[v1alpha1.LabelPolicy] {
			return policy
		}
	}
	return &v1alpha1.AcceleratorPolicy{}
}

// figures are the scene in numbers.
type figures struct {
	quotas []*v1alpha1.TenantQuota
	nodes  []string                  // with devices, in order
	free   map[string]map[string]int // by node and model
	used   map[string]map[string]int // by tenant and model
	// expected is what Pods with an open gate may still take, by model and by
	// tenant and model.
	expected map[string]int
	charged  map[string]map[string]int
}

func (s *Scene) count() *figures {
	f := &figures{
		quotas: s.Quotas, free: map[string]map[string]int{}, used: map[string]map[string]int{},
		expected: map[string]int{}, charged: map[string]map[string]int{},
	}
	taken := map[device]types.NamespacedName{}
	for _, c := range s.Claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			taken[device{r.Driver, r.Pool, r.Device}] = types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		}
	}
	for _, slice := range s.Slices {
		node := slice.Spec.Pool.Name
		if slice.Spec.NodeName != nil {
			node = *slice.Spec.NodeName
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			model := modelOf(slice.Spec.Driver, d)
			holder, isTaken := taken[device{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name}]
			switch {
			case model == "" || len(d.Taints) > 0 && !isTaken:
			case isTaken:
				if owner := ownerOf(s.Quotas, holder.Namespace); owner != nil {
					add(f.used, owner.Name, model, 1)
				}
			default:
				add(f.free, node, model, 1)
			}
		}
	}
	for node := range f.free {
		f.nodes = append(f.nodes, node)
	}
	slices.Sort(f.nodes)
	return f
}

func add(to map[string]map[string]int, key, model string, n int) {
	if to[key] == nil {
		to[key] = map[string]int{}
	}
	to[key][model] += n
}

// eachTier visits what the tiers of a policy ask for until visit says so.
func eachTier(policy *v1alpha1.AcceleratorPolicy, visit func(tier, model string, count int) bool) {
	for _, tier := range policy.Spec.Tiers {
		count := 1
		if policy.Spec.Count != nil {
			count = int(*policy.Spec.Count)
		}
		if tier.Count != nil {
			count = int(*tier.Count)
		}
		if tier.After != nil && tier.After.Duration > 0 {
			continue
		}
		for _, model := range tier.Models {
			if visit(tier.Name, model, count) {
				return
			}
		}
	}
}

// serves finds the first tier of which enough is free.
func (f *figures) serves(p *corev1.Pod, policy *v1alpha1.AcceleratorPolicy) (idle Idle, ok bool) {
	owner := ownerOf(f.quotas, p.Namespace)
	eachTier(policy, func(tier, model string, count int) bool {
		used, limit, name := 0, Unlimited, ""
		if owner != nil {
			name, limit = owner.Name, limitOf(owner, model)
			used = f.used[name][model]
		}
		if !allows(limit, used+f.charged[name][model]+count) {
			return false
		}
		all := 0
		for _, node := range f.nodes {
			all += f.free[node][model]
		}
		if all-f.expected[model] < count {
			return false
		}
		for _, node := range f.nodes {
			if n := f.free[node][model]; n >= count {
				idle = Idle{
					Pod: p.Namespace + "/" + p.Name, Tier: tier, Model: model, Node: node, Free: n,
					Used: used, Limit: limit, tenant: name, count: count,
				}
				ok = true
				return true
			}
		}
		return false
	})
	return idle, ok
}

// take gives an idle Pod what it could have.
func (f *figures) take(i Idle) {
	f.free[i.Node][i.Model] -= i.count
	add(f.used, i.tenant, i.Model, i.count)
}

// expect keeps back what a Pod with an open gate may still take.
func (f *figures) expect(p *corev1.Pod, policy *v1alpha1.AcceleratorPolicy) {
	owner := ownerOf(f.quotas, p.Namespace)
	most := map[string]int{}
	eachTier(policy, func(_, model string, count int) bool {
		most[model] = max(most[model], count)
		return false
	})
	for model, n := range most {
		f.expected[model] += n
		if owner != nil {
			add(f.charged, owner.Name, model, n)
		}
	}
}
