package decide

// The record: devices and evidence in the form of AllocationDecision.

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// record writes the evidence of every alternative.
func (r *run) record(d *Decision, best *option) {
	for _, c := range r.prob.claims {
		for _, req := range c.requests {
			if c.allocated != nil {
				r.recordAllocated(d, req)
				continue
			}
			for _, a := range req.alts {
				if best != nil && a.index > best.vector[req.index] {
					r.recordNotReached(d, a)
					continue
				}
				outcome := v1alpha1.TierRejected
				if best != nil && a.index == best.vector[req.index] {
					outcome = v1alpha1.TierSelected
				}
				d.Tiers = append(d.Tiers, v1alpha1.TierEvidence{Name: a.tierName(), Outcome: outcome, Rejections: r.evidence(a, best)})
			}
		}
	}
}

// evidence counts the devices of the fleet for an alternative of which the best
// option is known.
func (r *run) evidence(a *alternative, best *option) []v1alpha1.Rejection {
	if s := r.answering(a); s != nil {
		return r.evidenceBy(s, a, best)
	}
	ev := r.evaluate(a)
	r.file(ev, best)
	return ev.rejections()
}

// rejections lists the counts in the order of the checks.
func (ev *evaluation) rejections() []v1alpha1.Rejection {
	var out []v1alpha1.Rejection
	for c, n := range ev.counts {
		if n == 0 {
			continue
		}
		rej := v1alpha1.Rejection{Code: reasons[c], Count: n}
		for _, e := range ev.examples[c] {
			rej.Examples = append(rej.Examples, v1alpha1.RejectionExample{
				Node: e.node, Pool: e.device.id.pool, Device: e.device.id.device, Detail: e.detail,
			})
		}
		out = append(out, rej)
	}
	return out
}

func (r *run) recordNotReached(d *Decision, a *alternative) {
	t := v1alpha1.TierEvidence{Name: a.tierName(), Outcome: v1alpha1.TierNotReached}
	if n := r.st.deviceCount; n > 0 {
		t.Rejections = []v1alpha1.Rejection{{Code: v1alpha1.ReasonTierNotReached, Count: int32(n)}}
	}
	d.Tiers = append(d.Tiers, t)
}

// recordUnread writes the evidence where nothing was looked at.
func (r *run) recordUnread(d *Decision) {
	for _, c := range r.prob.claims {
		for _, req := range c.requests {
			for _, a := range req.alts {
				r.recordNotReached(d, a)
			}
		}
	}
}

// recordAllocated writes the evidence of a request whose claim is allocated
// already: its devices are the answer, nothing else is looked at.
func (r *run) recordAllocated(d *Decision, req *request) {
	for _, a := range req.alts {
		t := v1alpha1.TierEvidence{Name: a.tierName(), Outcome: v1alpha1.TierNotReached}
		chosen := v1alpha1.Rejection{Code: v1alpha1.ReasonSelected}
		for _, dev := range r.allocatedDevices(a) {
			t.Outcome = v1alpha1.TierSelected
			if dev == nil {
				continue // its slice is gone
			}
			chosen.Count++
			if r.st.opts.Examples < 0 || len(chosen.Examples) < r.st.opts.Examples {
				chosen.Examples = append(chosen.Examples, v1alpha1.RejectionExample{
					Node: dev.reach.node, Pool: dev.id.pool, Device: dev.id.device, Detail: "the claim is already allocated",
				})
			}
		}
		if rest := int32(r.st.deviceCount) - chosen.Count; rest > 0 {
			t.Rejections = append(t.Rejections, v1alpha1.Rejection{Code: v1alpha1.ReasonTierNotReached, Count: rest})
		}
		if chosen.Count > 0 {
			t.Rejections = append(t.Rejections, chosen)
		}
		d.Tiers = append(d.Tiers, t)
	}
}

// allocatedDevices are the devices that the claim's allocation gives to the
// alternative; nil for one whose slice is gone.
func (r *run) allocatedDevices(a *alternative) []*device {
	var out []*device
	for i := range a.request.claim.allocated.Devices.Results {
		res := &a.request.claim.allocated.Devices.Results[i]
		if res.Request == a.requestName() {
			out = append(out, r.st.deviceOf(res))
		}
	}
	return out
}

func (st *State) deviceOf(res *resourceapi.DeviceRequestAllocationResult) *device {
	if p := st.pools[poolKey{res.Driver, res.Pool}]; p != nil {
		return p.deviceNamed(res.Device)
	}
	return nil
}

// allocatedProblem is a device that is allocated to the Pod already and may no
// longer be used by a Pod that is not running yet: tainted or unhealthy.
func (r *run) allocatedProblem() *example {
	if r.prob.pod.obj.Spec.NodeName != "" {
		return nil
	}
	for _, c := range r.prob.claims {
		if c.allocated == nil {
			continue
		}
		for i := range c.allocated.Devices.Results {
			res := &c.allocated.Devices.Results[i]
			dev := r.st.deviceOf(res)
			if dev == nil {
				continue
			}
			if t := untolerated(dev, &alternative{tolerations: res.Tolerations}); t != nil {
				return &example{dev, "", taintDetail(t)}
			}
			if dev.unhealthy {
				return &example{dev, "", "reported unhealthy by the driver"}
			}
		}
	}
	return nil
}

// devices are the chosen and the already allocated devices, in the order of
// claims and requests.
func (r *run) devices(o *option) []v1alpha1.DecidedDevice {
	var out []v1alpha1.DecidedDevice
	for _, c := range r.prob.claims {
		ref := ""
		if c.several {
			ref = c.ref
		}
		if c.allocated != nil {
			for i := range c.allocated.Devices.Results {
				res := &c.allocated.Devices.Results[i]
				out = append(out, v1alpha1.DecidedDevice{
					Driver: res.Driver, Pool: res.Pool, Device: res.Device,
					Claim: ref, Request: res.Request, Model: r.allocatedModel(c, res),
				})
			}
			continue
		}
		for i := range o.chosen {
			if ch := &o.chosen[i]; ch.alt.request.claim == c {
				out = append(out, v1alpha1.DecidedDevice{
					Driver: ch.dev.id.driver, Pool: ch.dev.id.pool, Device: ch.dev.id.device,
					Claim: ref, Request: ch.alt.requestName(), Model: r.modelFor(ch.alt, ch.dev.model),
				})
			}
		}
	}
	return out
}

// modelFor is the model under which a device is recorded: as the tier calls
// it, else as the tenant's quota does, else as its slice does.
func (r *run) modelFor(a *alternative, m modelKey) string {
	byTier, byQuota := "", ""
	if a != nil && a.tier != nil {
		byTier = m.firstOf(a.tier.Models)
	}
	if r.budget != nil {
		byQuota = m.firstOf(r.budget.models)
	}
	return cmp.Or(byTier, byQuota, m.plain())
}

func (r *run) allocatedModel(c *claimProblem, res *resourceapi.DeviceRequestAllocationResult) string {
	var m modelKey
	if dev := r.st.deviceOf(res); dev != nil {
		m = dev.model
	} else if u := r.st.uses[deviceID{res.Driver, res.Pool, res.Device}]; u != nil {
		for _, h := range u.holds {
			if h.claim == c.obj.Name && h.namespace == c.obj.Namespace {
				m = h.model
			}
		}
	}
	for _, req := range c.requests {
		for _, a := range req.alts {
			if a.requestName() == res.Request {
				return r.modelFor(a, m)
			}
		}
	}
	return r.modelFor(nil, m)
}

// mainAlternative is the tier that the record names: the policy's, else that
// of the first request.
func (r *run) mainAlternative(o *option) *alternative {
	var main *alternative
	for _, c := range r.prob.claims {
		for _, req := range c.requests {
			a := r.chosenAlternative(o, req)
			if a != nil && (main == nil || c.policy) {
				main = a
			}
		}
	}
	return main
}

func (r *run) chosenAlternative(o *option, req *request) *alternative {
	if req.claim.allocated == nil {
		return req.alts[o.vector[req.index]]
	}
	for _, a := range req.alts {
		for i := range req.claim.allocated.Devices.Results {
			if req.claim.allocated.Devices.Results[i].Request == a.requestName() {
				return a
			}
		}
	}
	return nil
}
