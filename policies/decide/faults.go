package decide

// Selectors that fail at run time.
//
// Kubernetes refuses a Pod as soon as a selector of its claims fails on some
// device, even where others match: something is wrong with the claim, and
// placing the Pod would hide it. A policy's selectors are another matter: they
// are meant for mixed fleets, and a device on which one fails is not eligible.

import "slices"

// FaultyNodes returns the nodes that have a free device on which a selector of
// one of the Pod's plain claims fails, sorted by name; nodes that others refused
// are left out. For a Pod whose claims all come from its policy there are none.
func (st *State) FaultyNodes(q Query) ([]string, error) {
	prob, parked, err := st.read(&q)
	if err != nil || parked != nil {
		return nil, err
	}
	var r *run
	found := map[*node]bool{}
	for _, a := range prob.alts {
		if a.tier != nil || len(a.selectors) == 0 {
			continue
		}
		if r == nil {
			r = st.newRun(prob, &q, false)
		}
		r.faults(a, found)
	}
	var names []string
	for n := range found {
		names = append(names, n.name)
	}
	slices.Sort(names)
	return names, nil
}

// faults adds the nodes with a free device on which a selector fails.
func (r *run) faults(a *alternative, found map[*node]bool) {
	id := r.st.alternativeID(a)
	for _, p := range r.st.poolOrder {
		if p.problem != "" {
			continue
		}
		for _, s := range p.current {
			v := r.st.verdictsOf(s, a, id)
			if !slices.ContainsFunc(v.notOfTier, func(c codeCount) bool { return c.code == selectorError }) {
				continue
			}
			for i, d := range s.devices {
				if v.devices[i].tier != selectorError {
					continue
				}
				if c := r.useCheck(d, a); c == inUse || c == reserved {
					continue
				}
				r.reachers(d.reach, found)
			}
		}
	}
}

// reachers adds the nodes that serve the Pod and can use devices of this
// selection.
func (r *run) reachers(of *reach, found map[*node]bool) {
	if of.node != "" {
		if i := r.placeOf(of.node); i >= 0 && r.refused[i] == nodeOK {
			found[r.nodes[i]] = true
		}
		return
	}
	for i, n := range r.nodes {
		if r.refused[i] == nodeOK && r.st.reaches(of, n) {
			found[n] = true
		}
	}
}
