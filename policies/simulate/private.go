package simulate

// This file plays each tenant alone, on a cluster of the devices that are
// guaranteed to it: what sharing is compared with.

import (
	"context"
	"fmt"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// Private is what became of the jobs where each tenant has a cluster of its own.
type Private struct {
	clusters []cluster
	// waits of jobs in milliseconds, and where every job takes the bound longer:
	// by job, unfinished for those that could not run there.
	waits, lengthened []int64
}

// cluster is one tenant's, and the place of each of its jobs among all.
type cluster struct {
	tenant string
	alone  *Simulation
	at     []int32
}

// Private plays the private clusters in the set-up ladder: of each model as
// many devices as the tenant's guarantee, on nodes as the fleet has them, the
// last one with the rest. It does so twice: as the trace says, and with jobs
// that each take Options.Bound longer, which is what the guarantee allows for
// every job in front.
func (s *Simulation) Private(ctx context.Context) (*Private, error) {
	p := &Private{}
	for t := range s.tenants {
		alone, at, err := s.alone(int32(t))
		if err != nil {
			return nil, fmt.Errorf("building the private cluster of %s, %w", s.tenants[t].name, err)
		}
		if alone != nil {
			p.clusters = append(p.clusters, cluster{s.tenants[t].name, alone, at})
		}
	}
	var err error
	if p.waits, err = s.playAlone(ctx, p, func(int32) int64 { return 0 }); err != nil {
		return nil, err
	}
	bound := s.options.Bound().Milliseconds()
	p.lengthened, err = s.playAlone(ctx, p, func(int32) int64 { return bound })
	return p, err
}

// Account plays the private clusters once more, for one outcome: with jobs that
// each take longer by the bound and by what sharing cost it in this outcome.
// What a job waits beyond that has another cause than reclaim and scattered
// devices, its own and those of the jobs in front of it.
func (s *Simulation) Account(ctx context.Context, p *Private, o *Outcome) error {
	bound := s.options.Bound().Milliseconds()
	var err error
	o.accounted, err = s.playAlone(ctx, p, func(job int32) int64 { return bound + o.states[job].cost() })
	return err
}

// cost is what sharing cost a job, in milliseconds.
func (st *state) cost() int64 { return st.stopped + st.scattered }

// playAlone plays the private clusters with jobs that take longer, and returns
// the waits by job.
func (s *Simulation) playAlone(ctx context.Context, p *Private, longer func(job int32) int64) ([]int64, error) {
	waits := make([]int64, len(s.jobs))
	for i := range waits {
		waits[i] = unfinished
	}
	for _, c := range p.clusters {
		played := *c.alone
		played.jobs = make([]Job, len(c.at))
		for i, job := range c.alone.jobs {
			job.Duration += msDuration(longer(c.at[i]))
			played.jobs[i] = job
		}
		o, err := played.Run(ctx, fair.Ladder)
		if err != nil {
			return nil, fmt.Errorf("playing the private cluster of %s, %w", c.tenant, err)
		}
		for i, where := range c.at {
			waits[where] = played.wait(o, i)
		}
	}
	return waits, nil
}

// wait of a job in milliseconds, or unfinished.
func (s *Simulation) wait(o *Outcome, job int) int64 {
	ended := o.states[job].ended
	if ended == unfinished {
		return unfinished
	}
	return ended - s.jobs[job].Created.UnixMilli() - s.jobs[job].Duration.Milliseconds()
}

// alone is a tenant's private cluster, and the place of each of its jobs among
// all. It is nil where the tenant has no jobs or no guarantee.
func (s *Simulation) alone(t int32) (*Simulation, []int32, error) {
	var at []int32
	for i, owner := range s.tenantOf {
		if owner == t {
			at = append(at, int32(i))
		}
	}
	f := s.guaranteedFleet(&s.tenants[t])
	if len(at) == 0 || len(f.Groups) == 0 {
		return nil, nil, nil
	}
	a := &Simulation{options: s.options, fleet: f, format: s.format, policies: s.policies, namespaces: s.namespaces, largest: s.largest}
	a.options.Watch = nil
	for _, i := range at {
		a.jobs = append(a.jobs, s.jobs[i])
	}
	if err := a.readFleet(); err != nil {
		return nil, nil, err
	}
	// The guarantee is the limit: there is nobody to borrow from.
	quota := s.tenants[t].quota.DeepCopy()
	quota.Spec.Models = nil
	for m, model := range s.models {
		if n := int32(s.tenants[t].guaranteed[m]); n > 0 && a.model(model) >= 0 {
			quota.Spec.Models = append(quota.Spec.Models, v1alpha1.ModelQuota{Model: model, Guaranteed: n, Limit: &n})
		}
	}
	a.quotas = []*v1alpha1.TenantQuota{quota}
	a.readTenants()
	return a, at, a.readKinds()
}

// guaranteedFleet has the devices that a tenant is guaranteed, at most as many
// as the fleet has.
func (s *Simulation) guaranteedFleet(t *tenant) *fleet.Fleet {
	f := &fleet.Fleet{TypeMeta: s.fleet.TypeMeta, Boards: s.fleet.Boards}
	for m := range s.models {
		left := min(t.guaranteed[m], s.capacity[m])
		group := s.groupOf(m)
		whole := s.fleet.Groups[group]
		if n := left / int64(whole.GPUs); n > 0 {
			whole.Nodes = int(n)
			f.Groups = append(f.Groups, whole)
		}
		if rest := left % int64(whole.GPUs); rest > 0 {
			part := s.fleet.Groups[group]
			part.Nodes, part.Name = 1, part.Name+"-rest"
			part.Resize(int(rest))
			f.Groups = append(f.Groups, part)
		}
	}
	return f
}

// groupOf is the group with the largest nodes of a model, the first of equals.
func (s *Simulation) groupOf(model int) int {
	best := -1
	for i := range s.nodes {
		if n := &s.nodes[i]; n.model == model && (best < 0 || n.gpus > int64(s.fleet.Groups[best].GPUs)) {
			best = n.group
		}
	}
	return best
}
