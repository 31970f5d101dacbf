package simulate

// This file takes the input: who the tenants are, what the fleet has, and what
// each job asks for.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// Input is what is simulated. It is not changed.
type Input struct {
	Trace *Trace
	Fleet *fleet.Fleet
	// Policies in the order in which they are tried, validated.
	Policies []*v1alpha1.AcceleratorPolicy
	// Namespaces whose labels policies select; others have only their name.
	Namespaces []*corev1.Namespace
	Quotas     []*v1alpha1.TenantQuota
	Options    Options
}

// Options are the rules that no file says. They are whole milliseconds.
type Options struct {
	// Costs of one device, by model; 1 where nothing is said.
	Costs map[string]int64
	// Aging, ReserveAfter, KeepAfter, PriorityAging, Notice, Cooldown and
	// LendAfter are those of [fair.Config], zero and negative values included.
	Aging, ReserveAfter, KeepAfter, PriorityAging, Notice, Cooldown, LendAfter time.Duration
	// Release is the time from an eviction until the devices are free.
	Release time.Duration
	// Checkpoint is the interval at which running work is saved; zero: never.
	Checkpoint time.Duration
	// Watch, where not nil, is told now and then how many jobs have ended.
	Watch func(ended, jobs int)
}

// maxCost is that of [fair.Model].
const maxCost = 1_000_000_000

// Validate refuses what can't be. The message opens with the option's name, as
// the command line has it.
func (o *Options) Validate() error {
	for _, d := range []struct {
		name  string
		at    time.Duration
		least time.Duration
	}{
		{"aging", o.Aging, 0},
		{"reserve-after", o.ReserveAfter, -1 << 62},
		{"keep-after", o.KeepAfter, -1 << 62},
		{"priority-aging", o.PriorityAging, -1 << 62},
		{"notice", o.Notice, -1 << 62},
		{"cooldown", o.Cooldown, -1 << 62},
		{"lend-after", o.LendAfter, 0},
		{"release", o.Release, 0},
		{"checkpoint", o.Checkpoint, 0},
	} {
		switch {
		case d.at < d.least:
			return fmt.Errorf("%s must not be negative, is %v", d.name, d.at)
		case d.at%time.Millisecond != 0:
			return fmt.Errorf("%s must be whole milliseconds, is %v", d.name, d.at)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(o.Costs)) {
		if c := o.Costs[model]; c < 1 || c > maxCost {
			return fmt.Errorf("cost of %s must be 1 to %d, is %d", model, maxCost, c)
		}
	}
	return nil
}

// complete fills in the defaults.
func (o *Options) complete() {
	for _, d := range []struct {
		at *time.Duration
		to time.Duration
	}{
		{&o.Aging, fair.DefaultAging},
		{&o.ReserveAfter, fair.DefaultReserveAfter},
		{&o.KeepAfter, fair.DefaultKeepAfter},
		{&o.PriorityAging, fair.DefaultPriorityAging},
		{&o.Notice, fair.DefaultNotice},
		{&o.Cooldown, fair.DefaultCooldown},
	} {
		if *d.at == 0 {
			*d.at = d.to
		}
	}
}

// Bound is how long guaranteed work may wait for devices to be taken back.
func (o *Options) Bound() time.Duration { return max(o.Notice, 0) + o.Release }

// fair is the configuration of the queue, but its models.
func (o *Options) fair(mode fair.Mode) fair.Config {
	return fair.Config{
		Mode: mode, Aging: o.Aging, ReserveAfter: o.ReserveAfter, KeepAfter: o.KeepAfter, PriorityAging: o.PriorityAging,
		Notice: o.Notice, Cooldown: o.Cooldown, LendAfter: o.LendAfter,
	}
}

func (o *Options) cost(model string) int64 { return max(o.Costs[model], 1) }

// Simulation is an input that has been understood. It can be run several
// times, also at once.
type Simulation struct {
	options Options
	fleet   *fleet.Fleet
	format  Format
	skipped int

	jobs    []Job // in the order of compareJobs
	kinds   []*kind
	kindOf  []int32 // by job
	largest map[narrowed]int64

	policies   []*v1alpha1.AcceleratorPolicy
	namespaces map[string]*corev1.Namespace
	quotas     []*v1alpha1.TenantQuota
	tenants    []tenant // by name
	tenantOf   []int32  // by job

	models   []string // by name
	capacity []int64  // by model
	modelOf  []int    // by group; -1: it has no GPUs
	nodes    []machine
	nodeOf   map[string]int32
	objects  []runtime.Object // of the fleet, for the decision engine
}

// tenant is who is charged.
type tenant struct {
	name       string
	quota      *v1alpha1.TenantQuota // nil: none
	weight     int64
	guaranteed []int64 // by model
	// entitled is the number of devices that are the tenant's due, in
	// thousandths: what is guaranteed, and by weight a part of the rest.
	entitled int64
}

// machine is a node of the fleet.
type machine struct {
	name         string
	group, model int
	gpus         int64
}

// New reads the input. What is wrong with a part of it is an *[Error].
func New(in Input) (*Simulation, error) {
	s := &Simulation{options: in.Options, fleet: in.Fleet, format: in.Trace.Format, skipped: in.Trace.Skipped, policies: in.Policies, quotas: in.Quotas}
	if err := s.options.Validate(); err != nil {
		return nil, err
	}
	s.options.complete()
	if len(in.Trace.Jobs) == 0 {
		return nil, &Error{Part: PartTrace, Msg: "there is no job"}
	}
	if len(in.Policies) == 0 {
		return nil, &Error{Part: PartPolicy, Msg: "there is no AcceleratorPolicy"}
	}
	s.jobs = slices.Clone(in.Trace.Jobs)
	slices.SortStableFunc(s.jobs, compareJobs)
	if err := s.readFleet(); err != nil {
		return nil, err
	}
	s.readNamespaces(in.Namespaces)
	s.readTenants()
	s.largest = map[narrowed]int64{}
	return s, s.readKinds()
}

// readFleet counts the devices of the fleet.
func (s *Simulation) readFleet() error {
	groups := map[string]int{}
	for i := range s.fleet.Groups {
		if s.fleet.Groups[i].MIG != nil {
			return &Error{Part: PartFleet, Field: fmt.Sprintf("groups[%d].mig", i), Msg: "the simulator knows whole GPUs only; leave it out"}
		}
		groups[s.fleet.Groups[i].Name] = i
		s.modelOf = append(s.modelOf, -1)
	}
	modelOf, count := map[string]string{}, map[string]int64{}
	for _, slice := range s.fleet.Slices() {
		s.objects = append(s.objects, slice)
		for i := range slice.Spec.Devices {
			model := *slice.Spec.Devices[i].Attributes[fleet.AttributeModel].StringValue
			modelOf[slice.Spec.Pool.Name] = model
			count[model]++
		}
	}
	if len(count) == 0 {
		return &Error{Part: PartFleet, Field: "groups", Msg: "no node has GPUs"}
	}
	s.models = slices.Sorted(maps.Keys(count))
	for _, model := range s.models {
		s.capacity = append(s.capacity, count[model])
	}
	s.nodeOf = map[string]int32{}
	for _, node := range s.fleet.Nodes() {
		s.objects = append(s.objects, node)
		model, ok := modelOf[node.Name]
		if !ok {
			continue
		}
		group := groups[node.Labels[fleet.LabelGroup]]
		s.modelOf[group] = s.model(model)
		s.nodeOf[node.Name] = int32(len(s.nodes))
		s.nodes = append(s.nodes, machine{node.Name, group, s.model(model), int64(s.fleet.Groups[group].GPUs)})
	}
	return nil
}

// model is the place of a model, or -1.
func (s *Simulation) model(name string) int {
	i, ok := slices.BinarySearch(s.models, name)
	if !ok {
		return -1
	}
	return i
}

// devices of the whole fleet.
func (s *Simulation) devices() int64 {
	var n int64
	for _, c := range s.capacity {
		n += c
	}
	return n
}

// readNamespaces gives every namespace the label that API servers give it.
func (s *Simulation) readNamespaces(given []*corev1.Namespace) {
	s.namespaces = map[string]*corev1.Namespace{}
	for _, ns := range given {
		ns = ns.DeepCopy()
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
		s.namespaces[ns.Name] = ns
	}
	for i := range s.jobs {
		if name := s.jobs[i].Namespace; s.namespaces[name] == nil {
			s.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{corev1.LabelMetadataName: name},
			}}
		}
	}
}

// readTenants finds whose each job is. Tenants with a quota count even if they
// have no jobs: what is guaranteed to them is not the others'.
func (s *Simulation) readTenants() {
	byNamespace, taken := map[string]string{}, map[string]bool{}
	for _, q := range s.quotas {
		t := tenant{name: q.Name, quota: q, weight: 1, guaranteed: make([]int64, len(s.models))}
		if q.Spec.Weight != nil {
			t.weight = int64(*q.Spec.Weight)
		}
		for i := range q.Spec.Models {
			if m := s.model(q.Spec.Models[i].Model); m >= 0 {
				t.guaranteed[m] = int64(q.Spec.Models[i].Guaranteed)
			}
		}
		for _, ns := range q.Spec.Namespaces {
			byNamespace[ns] = q.Name
		}
		taken[q.Name] = true
		s.tenants = append(s.tenants, t)
	}
	for i := range s.jobs {
		ns := s.jobs[i].Namespace
		if _, known := byNamespace[ns]; known {
			continue
		}
		name := ns
		if taken[name] {
			name += " (no quota)"
		}
		byNamespace[ns] = name
		s.tenants = append(s.tenants, tenant{name: name, weight: 1, guaranteed: make([]int64, len(s.models))})
	}
	slices.SortFunc(s.tenants, func(a, b tenant) int { return cmp.Compare(a.name, b.name) })
	at := map[string]int32{}
	for i := range s.tenants {
		at[s.tenants[i].name] = int32(i)
	}
	for i := range s.jobs {
		s.tenantOf = append(s.tenantOf, at[byNamespace[s.jobs[i].Namespace]])
	}
	s.entitle()
}

// entitle works out the due of each tenant.
func (s *Simulation) entitle() {
	rest, weights := s.devices(), int64(0)
	for i := range s.tenants {
		weights += s.tenants[i].weight
		for _, g := range s.tenants[i].guaranteed {
			rest -= g
		}
	}
	for i := range s.tenants {
		t := &s.tenants[i]
		for _, g := range t.guaranteed {
			t.entitled += 1000 * g
		}
		t.entitled += 1000 * max(rest, 0) * t.weight / weights
	}
}

// readKinds finds out for every job what its Pods are.
func (s *Simulation) readKinds() error {
	p, err := newProbe(s.fleet)
	if err != nil {
		return err
	}
	policyOf, known := map[string]int{}, map[asked]int32{}
	for i := range s.jobs {
		job := &s.jobs[i]
		policy, ok := policyOf[job.Namespace]
		if !ok {
			if policy, err = s.policyFor(job); err != nil {
				return err
			}
			policyOf[job.Namespace] = policy
		}
		a := asked{narrowed{policy, joined(job.Models)}, job.GPUs}
		k, ok := known[a]
		if !ok {
			made, err := s.kind(p, a, job.Models, int32(len(s.kinds)))
			if err != nil {
				return err
			}
			k = int32(len(s.kinds))
			known[a] = k
			s.kinds = append(s.kinds, made)
		}
		s.kindOf = append(s.kindOf, k)
	}
	return nil
}

// policyFor is the first policy whose selector takes the job's namespace.
func (s *Simulation) policyFor(job *Job) (int, error) {
	for i, p := range s.policies {
		if p.Spec.NamespaceSelector == nil {
			return i, nil
		}
		selector, err := metav1.LabelSelectorAsSelector(p.Spec.NamespaceSelector)
		if err != nil {
			return 0, &Error{Part: PartPolicy, Field: "AcceleratorPolicy " + p.Name, Msg: "namespaceSelector: " + err.Error()}
		}
		if selector.Matches(labels.Set(s.namespaces[job.Namespace].Labels)) {
			return i, nil
		}
	}
	return 0, &Error{Part: PartTrace, Line: job.Line, Msg: fmt.Sprintf("no policy takes namespace %s: none has a namespaceSelector that matches it", job.Namespace)}
}

// newDecider is the decision engine with the idle fleet, the quotas and the
// policies of all kinds.
func (s *Simulation) newDecider() (*decide.State, error) {
	st := decide.NewState(decide.Options{NodeChecks: decide.BuiltinNodeChecks, Examples: 1})
	objects := slices.Clone(s.objects)
	for _, name := range slices.Sorted(maps.Keys(s.namespaces)) {
		objects = append(objects, s.namespaces[name])
	}
	for _, q := range s.quotas {
		objects = append(objects, q)
	}
	for _, k := range s.kinds {
		if k.policy != nil {
			objects = append(objects, k.policy)
		}
	}
	for _, o := range objects {
		if err := st.Put(o); err != nil {
			return nil, fmt.Errorf("building the fleet, %w", err)
		}
	}
	return st, nil
}

// newQueue is the fairness engine with the fleet's capacity and the quotas.
func (s *Simulation) newQueue(mode fair.Mode, at time.Time) (*fair.State, error) {
	cfg := s.options.fair(mode)
	for _, m := range s.models {
		cfg.Models = append(cfg.Models, fair.Model{Name: m, Cost: s.options.cost(m)})
	}
	st, err := fair.New(cfg)
	if err != nil {
		return nil, err
	}
	var events []fair.Event
	for i, m := range s.models {
		events = append(events, fair.CapacitySet{Model: m, Devices: s.capacity[i]})
	}
	for i := range s.tenants {
		t := &s.tenants[i]
		if t.quota == nil {
			continue
		}
		q := fair.Quota{Tenant: t.name, Weight: t.weight}
		for j := range t.quota.Spec.Models {
			m := &t.quota.Spec.Models[j]
			own := fair.ModelQuota{Model: m.Model, Guaranteed: int64(m.Guaranteed)}
			if m.Limit != nil {
				limit := int64(*m.Limit)
				own.Limit = &limit
			}
			q.Models = append(q.Models, own)
		}
		events = append(events, fair.QuotaSet{Quota: q})
	}
	for _, ev := range events {
		if err := st.Apply(at, ev); err != nil {
			return nil, fmt.Errorf("building the queue, %w", err)
		}
	}
	return st, nil
}
