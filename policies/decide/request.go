package decide

// Requests and their alternatives, read from a policy or from a claim.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// request is one request of a claim: the first alternative that can be met counts.
type request struct {
	claim *claimProblem
	name  string
	index int // among the problem's requests
	alts  []*alternative
	// wishes are attributes that the devices should share if possible.
	wishes []*constraint
}

// alternative is one way to meet a request: a tier of a policy, an alternative
// of a firstAvailable request, or the only way of an exact one.
type alternative struct {
	request *request
	name    string // of the alternative; "" for an exact request
	index   int    // in the request
	place   int    // among the problem's alternatives

	count       int
	all         bool // every matching device of the node, at least one
	admin       bool
	tolerations []resourceapi.DeviceToleration
	capacity    quantities
	after       time.Duration

	// Of a policy:
	spec *v1alpha1.AcceleratorPolicySpec
	tier *v1alpha1.Tier
	// Without one, in this order:
	selectors []string

	// constraints are those of the claim that apply here.
	constraints []*constraint
	// key identifies everything on which the static verdicts depend.
	key string
}

// requestName is how allocation results name the alternative.
func (a *alternative) requestName() string {
	if a.name == "" {
		return a.request.name
	}
	return a.request.name + "/" + a.name
}

// tierName is how records name the alternative.
func (a *alternative) tierName() string {
	switch {
	case a.tier != nil:
		return a.tier.Name
	case a.request.claim.several:
		return a.request.claim.ref + "/" + a.requestName()
	default:
		return a.requestName()
	}
}

// sameModel: the devices must be of one model.
func (a *alternative) sameModel() bool {
	return a.spec != nil && a.count > 1 && a.spec.MixModels != v1alpha1.MixModelsWithinTier
}

// policyClaimOf is the claim that a policy's template makes.
func policyClaimOf(rev *revision, ref string) *claimProblem {
	c := &claimProblem{ref: ref, policy: true}
	r := &request{claim: c, name: v1alpha1.RequestName}
	c.requests = []*request{r}
	for _, attribute := range rev.spec.Constraints.MatchAttributes {
		c.constraints = append(c.constraints, newConstraint(matchValues, attribute, nil))
	}
	for _, attribute := range rev.spec.PreferAttributes {
		r.wishes = append(r.wishes, newConstraint(matchValues, attribute, nil))
	}
	for i := range rev.spec.Tiers {
		t := &rev.spec.Tiers[i]
		a := &alternative{
			request: r, name: t.Name, spec: rev.spec, tier: t,
			count:       int(rev.spec.CountOf(t)),
			tolerations: policyTolerations(&rev.spec.OnUnhealthy),
			key:         fmt.Sprintf("tier %d of %s", i, rev.hash),
			constraints: c.constraints,
		}
		if t.After != nil {
			a.after = t.After.Duration
		}
		if a.sameModel() {
			a.constraints = append(slices.Clip(c.constraints), &constraint{kind: sameModel})
		}
		r.alts = append(r.alts, a)
	}
	return c
}

// policyTolerations is the one toleration that a policy's claim may have, as
// the compiled template has it. It keeps a bound Pod on a device that has
// failed, until the grace period is over or whoever carries out onUnhealthy has
// come. A failed device is also unhealthy, which nothing tolerates, so it never
// lets a device be chosen that would not be otherwise.
func policyTolerations(o *v1alpha1.OnUnhealthy) []resourceapi.DeviceToleration {
	if o.Action == v1alpha1.UnhealthyEvict && (o.GracePeriod == nil || o.GracePeriod.Duration == 0) {
		return nil
	}
	return []resourceapi.DeviceToleration{{
		Key:      v1alpha1.TaintFailed,
		Operator: resourceapi.DeviceTolerationOpExists,
		Effect:   resourceapi.DeviceTaintEffectNoExecute,
	}}
}

// plainClaim reads a claim that no policy made.
func (st *State) plainClaim(spec *resourceapi.ResourceClaimSpec, ref string) (*claimProblem, error) {
	c := &claimProblem{ref: ref}
	for i := range spec.Devices.Constraints {
		k := &spec.Devices.Constraints[i]
		switch {
		case k.MatchAttribute != nil:
			c.constraints = append(c.constraints, newConstraint(matchValues, string(*k.MatchAttribute), k.Requests))
		case k.DistinctAttribute != nil:
			c.constraints = append(c.constraints, newConstraint(distinctValues, string(*k.DistinctAttribute), k.Requests))
		default:
			return nil, fmt.Errorf("spec.devices.constraints[%d]: unknown kind of constraint, %w", i, ErrInvalid)
		}
	}
	for i := range spec.Devices.Requests {
		dr := &spec.Devices.Requests[i]
		path := fmt.Sprintf("spec.devices.requests[%d]", i)
		r := &request{claim: c, name: dr.Name}
		switch {
		case dr.Exactly != nil:
			e := dr.Exactly
			a := &alternative{request: r, admin: ptr.Deref(e.AdminAccess, false), tolerations: e.Tolerations}
			if err := st.readAlternative(a, e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Capacity, len(e.DerivedAttributes), path+".exactly"); err != nil {
				return nil, err
			}
			r.alts = []*alternative{a}
		case len(dr.FirstAvailable) > 0:
			for j := range dr.FirstAvailable {
				s := &dr.FirstAvailable[j]
				a := &alternative{request: r, name: s.Name, tolerations: s.Tolerations}
				if err := st.readAlternative(a, s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Capacity, len(s.DerivedAttributes), fmt.Sprintf("%s.firstAvailable[%d]", path, j)); err != nil {
					return nil, err
				}
				r.alts = append(r.alts, a)
			}
		default:
			return nil, fmt.Errorf("%s: neither exactly nor firstAvailable, %w", path, ErrInvalid)
		}
		for _, a := range r.alts {
			for _, k := range c.constraints {
				if k.appliesTo(a) {
					a.constraints = append(a.constraints, k)
				}
			}
		}
		c.requests = append(c.requests, r)
	}
	return c, nil
}

// readAlternative fills in what exact requests and subrequests share.
func (st *State) readAlternative(a *alternative, class string, selectors []resourceapi.DeviceSelector, mode resourceapi.DeviceAllocationMode,
	count int64, capacity *resourceapi.CapacityRequirements, derived int, path string,
) error {
	if derived > 0 {
		return fmt.Errorf("%s.derivedAttributes: not supported, %w", path, ErrInvalid)
	}
	switch mode {
	case resourceapi.DeviceAllocationModeExactCount, "":
		a.count = int(min(max(count, 1), maxDevicesPerClaim+1))
	case resourceapi.DeviceAllocationModeAll:
		a.all = true
	default:
		return fmt.Errorf("%s.allocationMode: unknown mode %q, %w", path, mode, ErrInvalid)
	}
	dc := st.classes[class]
	if dc == nil {
		return fmt.Errorf("%s.deviceClassName: DeviceClass %q, %w", path, class, ErrNotFound)
	}
	var key strings.Builder
	read := func(list []resourceapi.DeviceSelector, where string) error {
		for i, s := range list {
			if s.CEL == nil {
				return fmt.Errorf("%s[%d]: unknown kind of selector, %w", where, i, ErrInvalid)
			}
			if err := compileExpression(st.cel, s.CEL.Expression); err != nil {
				return fmt.Errorf("%s[%d].cel.expression: %s, %w", where, i, oneLine(err), ErrInvalid)
			}
			a.selectors = append(a.selectors, s.CEL.Expression)
			fmt.Fprintf(&key, "%q ", s.CEL.Expression)
		}
		return nil
	}
	if err := read(dc.obj.Spec.Selectors, fmt.Sprintf("DeviceClass %s, spec.selectors", class)); err != nil {
		return err
	}
	if err := read(selectors, path+".selectors"); err != nil {
		return err
	}
	if capacity != nil {
		a.capacity = capacity.Requests
		for _, name := range sortedKeys(a.capacity) {
			fmt.Fprintf(&key, "%s=%s ", name, ptr.To(a.capacity[name]).String())
		}
	}
	a.key = key.String()
	return nil
}

// maxDevicesPerClaim is the most results that an allocation can hold.
const maxDevicesPerClaim = resourceapi.AllocationResultsMaxSize
