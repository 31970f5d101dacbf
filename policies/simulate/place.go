package simulate

// This file gives devices to Pods and takes them back.

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fair"
)

// podName of a member.
func (r *run) podName(i, member int32) types.NamespacedName {
	name := id(i)
	if r.kind(i).members > 1 {
		name += "-" + strconv.Itoa(int(member))
	}
	return types.NamespacedName{Namespace: r.job(i).Namespace, Name: name}
}

// place decides the members of an opened job that have no devices, one by one
// up to the first that gets none. It is true when all have theirs: then the
// job begins.
func (r *run) place(i int32) (bool, error) {
	st, k := &r.states[i], r.kind(i)
	for member := int32(len(st.placed)); int64(member) < k.members; member++ {
		st.seen, st.again = r.freed, r.nextTier(i)
		if !r.mayServe(i) {
			return false, nil
		}
		placed, err := r.decide(i, member)
		if err != nil || !placed {
			return false, err
		}
	}
	r.begin(i)
	return true, nil
}

// mayServe is false where no node has as many free devices as a tier that is
// allowed by now needs: then there is nothing to decide. What it says is
// necessary for the engine's answer, not sufficient.
func (r *run) mayServe(i int32) bool {
	waited := r.now - r.job(i).Created.UnixMilli()
	for _, w := range r.kind(i).ways {
		if w.after > waited {
			continue
		}
		for _, g := range w.groups {
			idle := r.idle[g]
			for n := int(w.count); n < len(idle); n++ {
				if idle[n] > 0 {
					return true
				}
			}
		}
	}
	return false
}

// nextTier is when the next tier is allowed to the job; 0: all are.
func (r *run) nextTier(i int32) int64 {
	next, created := int64(0), r.job(i).Created.UnixMilli()
	for _, w := range r.kind(i).ways {
		if at := created + w.after; at > r.now && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// decide asks the decision engine for the devices of a member, and takes them.
func (r *run) decide(i, member int32) (bool, error) {
	st, k, key := &r.states[i], r.kind(i), r.podName(i, member)
	if st.put <= member {
		if err := r.put(i, member); err != nil {
			return false, err
		}
	}
	d, err := r.decider.Decide(decide.Query{Pod: key, Now: instant(r.now), Attempt: 1})
	if err != nil {
		return false, fmt.Errorf("deciding Pod %s, %w", key, err)
	}
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return false, nil
	}
	if err := r.decider.Assume(d, false); err != nil {
		return false, fmt.Errorf("deciding Pod %s, %w", key, err)
	}
	if r.hooks.decided != nil {
		if err := r.hooks.decided(i, d); err != nil {
			return false, err
		}
	}
	node, ok := r.sim.nodeOf[d.Node]
	if !ok || d.TierIndex == nil || int(*d.TierIndex) >= len(k.ways) {
		return false, fmt.Errorf("deciding Pod %s, a decision that can't be: node %q, tier %q", key, d.Node, d.Tier)
	}
	p := placement{node: node, way: *d.TierIndex}
	for j := range d.Devices {
		p.add(r.sim.model(d.Devices[j].Model))
	}
	r.take(node, int64(len(d.Devices)))
	told := fair.Allocated{ID: id(i), Members: 1}
	for _, h := range p.holds {
		r.books.hold(r.tenant(i), h.model, h.n)
		told.Devices = append(told.Devices, fair.Devices{Model: r.sim.models[h.model], Count: h.n})
	}
	r.books.ask(r.tenant(i), -k.perPod)
	st.placed = append(st.placed, p)
	return true, r.tell(told)
}

// widen lets the members that have no devices use any model.
func (r *run) widen(i int32) error {
	st := &r.states[i]
	st.turn, st.seen = "", -1 // so that it is looked at again
	for member := int32(len(st.placed)); member < st.put; member++ {
		if err := r.put(i, member); err != nil {
			return err
		}
	}
	return nil
}

// put tells the decision engine of a member's Pod.
func (r *run) put(i, member int32) error {
	st, key := &r.states[i], r.podName(i, member)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, Labels: r.kind(i).labels, CreationTimestamp: metav1.NewTime(r.job(i).Created),
	}}
	if st.turn != "" {
		pod.Annotations = map[string]string{v1alpha1.AnnotationTurnModels: st.turn}
	}
	if err := r.decider.Put(pod); err != nil {
		return fmt.Errorf("deciding Pod %s, %w", key, err)
	}
	st.put = max(st.put, member+1)
	return nil
}

// add counts a device.
func (p *placement) add(model int) {
	for i := range p.holds {
		if p.holds[i].model == model {
			p.holds[i].n++
			return
		}
	}
	p.holds = append(p.holds, share{model, 1})
}

// take changes the number of free devices of a node.
func (r *run) take(node int32, n int64) {
	idle := r.idle[r.sim.nodes[node].group]
	idle[r.free[node]]--
	r.free[node] -= n
	idle[r.free[node]]++
}

// release gives back all devices of a job and forgets its Pods.
func (r *run) release(i int32) error {
	st := &r.states[i]
	for _, p := range st.placed {
		for _, h := range p.holds {
			r.books.hold(r.tenant(i), h.model, -h.n)
			r.take(p.node, -h.n)
		}
	}
	for member := range st.put {
		key := r.podName(i, member)
		if err := r.decider.Delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
			return fmt.Errorf("releasing Pod %s, %w", key, err)
		}
	}
	if len(st.placed) > 0 {
		r.freed++
	}
	if r.hooks.released != nil {
		r.hooks.released(i)
	}
	st.placed, st.put = nil, 0
	return nil
}
