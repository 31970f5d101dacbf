package decide_test

// What an allocation may never break, checked straight on the devices.

import (
	"context"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/cel"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// TestHardConstraintsHold: whatever the tier, every chosen device meets every
// hard constraint of the policy, is of the tier's models, untainted, healthy
// and free, and there are as many as the tier wants.
func TestHardConstraintsHold(t *testing.T) {
	lower := 0
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			d := mustDecide(t, s, q)
			if d.Outcome != v1alpha1.OutcomeAllocated || d.Policy == "" {
				continue
			}
			if *d.TierIndex > 0 {
				lower++
			}
			checkAllocation(t, c, d)
		}
	})
	t.Logf("%d allocations from a lower tier", lower)
}

func checkAllocation(t failer, c *decidetest.Cluster, d *decide.Decision) {
	t.Helper()
	spec := revisionOf(t, c, d).Spec.PolicySpec
	devices, taken := newest(c), holders(c)
	var ours []v1alpha1.DecidedDevice
	for _, x := range d.Devices {
		if tier, ok := strings.CutPrefix(x.Request, v1alpha1.RequestName+"/"); ok {
			ours = append(ours, x)
			if len(d.Devices) == 1 && tier != d.Tier {
				t.Fatalf("device of tier %s in a decision for tier %s", tier, d.Tier)
			}
		}
	}
	if len(ours) == 0 {
		t.Fatalf("the policy got nothing: %s", toJSON(d))
	}
	i := slices.IndexFunc(spec.Tiers, func(x v1alpha1.Tier) bool { return v1alpha1.RequestName+"/"+x.Name == ours[0].Request })
	tier := &spec.Tiers[i]
	if len(ours) != int(spec.CountOf(tier)) {
		t.Fatalf("%d devices, tier %s wants %d", len(ours), tier.Name, spec.CountOf(tier))
	}
	if tier.After != nil && c.Now.Sub(decidetest.Epoch) < tier.After.Duration {
		t.Fatalf("tier %s is used before its time", tier.Name)
	}
	for _, x := range ours {
		id := deviceID(x)
		if taken[id] {
			t.Fatalf("%v is in use", id)
		}
		if broken := brokenConstraint(&spec, tier, id, devices[id], c); broken != "" {
			t.Fatalf("%v breaks %s: %s", id, broken, toJSON(d))
		}
	}
	for _, attribute := range spec.Constraints.MatchAttributes {
		first := devices[deviceID(ours[0])].Attributes[resourceapi.QualifiedName(attribute)]
		for _, x := range ours {
			have, ok := devices[deviceID(x)].Attributes[resourceapi.QualifiedName(attribute)]
			if !ok || toJSON(have) != toJSON(first) {
				t.Fatalf("devices don't share %s: %s", attribute, toJSON(d))
			}
		}
	}
}

// brokenConstraint names the first constraint that a device breaks, or "".
func brokenConstraint(spec *v1alpha1.AcceleratorPolicySpec, tier *v1alpha1.Tier, id decidetest.DeviceID, d resourceapi.Device, c *decidetest.Cluster) string {
	text := func(name string) string {
		if a := d.Attributes[resourceapi.QualifiedName(name)]; a.StringValue != nil {
			return *a.StringValue
		}
		return ""
	}
	below := func(name, least string) bool {
		a := d.Attributes[resourceapi.QualifiedName(name)]
		if least == "" {
			return false
		}
		return a.VersionValue == nil || !version.MustParseGeneric(*a.VersionValue).AtLeast(version.MustParseGeneric(padded(least)))
	}
	h := &spec.Constraints
	memory := d.Capacity["memory"].Value
	switch {
	case id.Driver != spec.Driver && spec.Driver != "":
		return "driver"
	case len(tier.Models) > 0 && spec.Driver == v1alpha1.DriverName && !slices.Contains(tier.Models, text("model")):
		return "models"
	case len(tier.Models) > 0 && spec.Driver != v1alpha1.DriverName && !slices.ContainsFunc(tier.Models, func(m string) bool {
		return strings.Contains(text("productName"), m)
	}):
		return "models"
	case h.MinMemory != nil && memory.Cmp(*h.MinMemory) < 0:
		return "minMemory"
	case below("cudaComputeCapability", h.MinComputeCapability):
		return "minComputeCapability"
	case below("driverVersion", h.MinDriverVersion):
		return "minDriverVersion"
	case len(h.Architectures) > 0 && !slices.Contains(h.Architectures, text("architecture")):
		return "architectures"
	case h.Isolation == v1alpha1.IsolationExclusive && d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations:
		return "isolation"
	case text("health") == "Unhealthy":
		return "health"
	}
	for _, e := range slices.Concat(tier.Selectors, h.Selectors) {
		yes, _, err := oracleCEL.GetOrCompile(e).DeviceMatches(context.Background(), cel.Device{
			Driver: id.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
		})
		if err != nil || !yes {
			return e
		}
	}
	// Of the taints only a confirmed failure may be tolerated.
	taints := slices.Clone(d.Taints)
	for _, r := range c.Rules {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: id.Driver, Pool: resourceapi.ResourcePool{Name: id.Pool}}}
		if ruleSelects(r.Spec.DeviceSelector, s, id.Device) {
			taints = append(taints, r.Spec.Taint)
		}
	}
	for _, x := range taints {
		if x.Effect != resourceapi.DeviceTaintEffectNone && x.Key != v1alpha1.TaintFailed {
			return "taint " + x.Key
		}
	}
	return ""
}

// padded completes a version to three numbers.
func padded(v string) string {
	for strings.Count(v, ".") < 2 {
		v += ".0"
	}
	return v
}
