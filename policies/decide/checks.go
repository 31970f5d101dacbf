package decide

// The checks of one device against one alternative that depend on nothing but
// the two: the tier and the hard constraints. Their verdicts are cached with
// the slice.

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/selector"
)

// code is a reason's place in the order of checks.
type code uint8

// The codes, in the order of the reasons of the API package. eligible is no
// reason: every check of the device alone was passed.
const (
	eligible code = iota
	poolIncomplete
	nodeMismatch
	nodeUnsuitable
	modelMismatch
	selectorNotMatched
	selectorError
	tierNotYetAllowed
	inUse
	reserved
	countersExhausted
	deviceTainted
	deviceUnhealthy
	memoryTooSmall
	computeCapabilityTooLow
	driverTooOld
	architectureExcluded
	isolationUnsatisfied
	capacityTooSmall
	quotaExceeded
	groupNotServed
	topologyUnsatisfied
	notEnoughDevices
	tierNotReached
	lowerRank
	selected
	numCodes
)

// reasons are the codes as records name them.
var reasons = [numCodes]v1alpha1.Reason{
	poolIncomplete:          v1alpha1.ReasonPoolIncomplete,
	nodeMismatch:            v1alpha1.ReasonNodeMismatch,
	nodeUnsuitable:          v1alpha1.ReasonNodeUnsuitable,
	modelMismatch:           v1alpha1.ReasonModelMismatch,
	selectorNotMatched:      v1alpha1.ReasonSelectorNotMatched,
	selectorError:           v1alpha1.ReasonSelectorError,
	tierNotYetAllowed:       v1alpha1.ReasonTierNotYetAllowed,
	inUse:                   v1alpha1.ReasonInUse,
	reserved:                v1alpha1.ReasonReserved,
	countersExhausted:       v1alpha1.ReasonCountersExhausted,
	deviceTainted:           v1alpha1.ReasonDeviceTainted,
	deviceUnhealthy:         v1alpha1.ReasonDeviceUnhealthy,
	memoryTooSmall:          v1alpha1.ReasonMemoryTooSmall,
	computeCapabilityTooLow: v1alpha1.ReasonComputeCapabilityTooLow,
	driverTooOld:            v1alpha1.ReasonDriverTooOld,
	architectureExcluded:    v1alpha1.ReasonArchitectureExcluded,
	isolationUnsatisfied:    v1alpha1.ReasonIsolationUnsatisfied,
	capacityTooSmall:        v1alpha1.ReasonCapacityTooSmall,
	quotaExceeded:           v1alpha1.ReasonQuotaExceeded,
	groupNotServed:          v1alpha1.ReasonGroupNotServed,
	topologyUnsatisfied:     v1alpha1.ReasonTopologyUnsatisfied,
	notEnoughDevices:        v1alpha1.ReasonNotEnoughDevices,
	tierNotReached:          v1alpha1.ReasonTierNotReached,
	lowerRank:               v1alpha1.ReasonLowerRank,
	selected:                v1alpha1.ReasonSelected,
}

// verdict is what the static checks say of one device.
type verdict struct {
	tier code // eligible: the device is of the tier
	hard code // eligible: the hard constraints hold
}

// verdicts are those of one slice for one alternative.
type verdicts struct {
	devices []verdict
	// ofTier is the number of devices that are of the tier; the others are
	// counted in notOfTier, so that a slice without any is done at once.
	ofTier    int
	notOfTier []codeCount
}

type codeCount struct {
	code  code
	count int32
}

// verdictCache holds the verdicts of one slice by alternative. It goes when
// the slice goes, or when the State has seen too many alternatives.
type verdictCache struct {
	epoch int
	by    map[int]*verdicts
}

// maxAlternatives is how many alternatives the caches of verdicts remember.
const maxAlternatives = 256

// alternativeID numbers what static verdicts depend on.
func (st *State) alternativeID(a *alternative) int {
	id, ok := st.alternativeIDs[a.key]
	if !ok {
		if len(st.alternativeIDs) >= maxAlternatives {
			clear(st.alternativeIDs)
			st.verdictEpoch++
		}
		id = len(st.alternativeIDs)
		st.alternativeIDs[a.key] = id
	}
	return id
}

// verdictsOf returns the verdicts of a slice, computing them where needed.
func (st *State) verdictsOf(s *slice, a *alternative, id int) *verdicts {
	c := &s.verdicts
	if c.by == nil || c.epoch != st.verdictEpoch {
		c.by, c.epoch = map[int]*verdicts{}, st.verdictEpoch
	}
	if v := c.by[id]; v != nil {
		return v
	}
	v := &verdicts{devices: make([]verdict, len(s.devices))}
	var counts [numCodes]int32
	for i, d := range s.devices {
		v.devices[i] = verdict{tier: first(st.tierCheck(d, a)), hard: first(st.hardCheck(d, a))}
		counts[v.devices[i].tier]++
	}
	v.ofTier = int(counts[eligible])
	for c, n := range counts[1:] {
		if n > 0 {
			v.notOfTier = append(v.notOfTier, codeCount{code(c + 1), n})
		}
	}
	c.by[id] = v
	return v
}

func first(c code, _ string) code { return c }

// tierCheck says whether the device is of the tier, or is what a plain request
// selects; with words where it is not.
func (st *State) tierCheck(d *device, a *alternative) (code, string) {
	if a.tier == nil {
		return st.selectorCheck(d, a.selectors)
	}
	if d.id.driver != a.spec.Driver {
		return modelMismatch, "driver " + d.id.driver + ", not " + a.spec.Driver
	}
	if len(a.tier.Models) > 0 && d.model.firstOf(a.tier.Models) == "" {
		if d.model.name == "" {
			return modelMismatch, "no model is published"
		}
		return modelMismatch, "model " + d.model.name
	}
	return st.selectorCheck(d, a.tier.Selectors)
}

// hardCheck says whether the hard constraints hold, in the order of the fields.
func (st *State) hardCheck(d *device, a *alternative) (code, string) {
	if a.tier != nil {
		if c, detail := st.constraintsCheck(d, &a.spec.Constraints, a.spec.Driver); c != eligible {
			return c, detail
		}
	}
	if problem := capacityProblem(a.capacity, d.spec); problem != "" {
		return capacityTooSmall, problem
	}
	return eligible, ""
}

func (st *State) constraintsCheck(d *device, c *v1alpha1.Constraints, driver string) (code, string) {
	if c.MinMemory != nil {
		memory, ok := d.spec.Capacity[resourceapi.QualifiedName(driver+"/"+capMemory)]
		if !ok && d.id.driver == driver {
			memory, ok = d.spec.Capacity[capMemory]
		}
		switch {
		case !ok:
			return memoryTooSmall, "no memory is published"
		case memory.Value.Cmp(*c.MinMemory) < 0:
			return memoryTooSmall, memory.Value.String() + " < " + c.MinMemory.String()
		}
	}
	if detail := belowVersion(d, driver, attrCompute, c.MinComputeCapability); detail != "" {
		return computeCapabilityTooLow, detail
	}
	if detail := belowVersion(d, driver, attrDriver, c.MinDriverVersion); detail != "" {
		return driverTooOld, detail
	}
	if len(c.Architectures) > 0 {
		a, ok := lookupAttr(d.spec.Attributes, d.id.driver, driver, attrArch)
		switch {
		case !ok || a.StringValue == nil:
			return architectureExcluded, "no architecture is published"
		case !slices.Contains(c.Architectures, *a.StringValue):
			return architectureExcluded, "architecture " + *a.StringValue
		}
	}
	if c.Isolation == v1alpha1.IsolationExclusive && d.multi {
		return isolationUnsatisfied, "several claims may share the device"
	}
	return st.selectorCheck(d, c.Selectors)
}

// belowVersion says how a version attribute fails a minimum, or "".
func belowVersion(d *device, driver, attribute, least string) string {
	if least == "" {
		return ""
	}
	a, ok := lookupAttr(d.spec.Attributes, d.id.driver, driver, attribute)
	if !ok || a.VersionValue == nil {
		return "no " + attribute + " is published"
	}
	if order, ok := compareVersions(*a.VersionValue, least); !ok || order < 0 {
		return *a.VersionValue + " < " + least
	}
	return ""
}

// selectorCheck evaluates free selectors; each must be true.
func (st *State) selectorCheck(d *device, selectors []string) (code, string) {
	for i, s := range selectors {
		ok, err := selector.Match(st.cel, s, d.id.driver, d.spec)
		switch {
		case err != nil:
			return selectorError, fmt.Sprintf("selector %d: %s", i, oneLine(err))
		case !ok:
			return selectorNotMatched, fmt.Sprintf("selector %d", i)
		}
	}
	return eligible, ""
}

// untolerated returns the first taint that the alternative does not tolerate.
func untolerated(d *device, a *alternative) *resourceapi.DeviceTaint {
	for i := range d.taints {
		t := &d.taints[i]
		if !slices.ContainsFunc(a.tolerations, func(o resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(o, *t) }) {
			return t
		}
	}
	return nil
}

func taintDetail(t *resourceapi.DeviceTaint) string {
	if t.Value == "" {
		return "taint " + t.Key + ":" + string(t.Effect)
	}
	return "taint " + t.Key + "=" + t.Value + ":" + string(t.Effect)
}
