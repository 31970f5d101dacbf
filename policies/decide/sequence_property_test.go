package decide_test

// Decisions one after another: what one takes, the next one sees.

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// manyPods repeats the cluster's waiting Pods under new names.
func manyPods(c *decidetest.Cluster, times int) *decidetest.Cluster {
	out := *c
	for _, name := range c.Pending() {
		p := c.Pod(name)
		if len(p.Spec.ResourceClaims) > 0 {
			continue // a claim belongs to one Pod
		}
		for i := range times {
			again := p.DeepCopy()
			again.Name = p.Name + "-again-" + string(rune('a'+i))
			again.UID = types.UID("uid-" + again.Namespace + "-" + again.Name)
			out.Pods = append(out.Pods, again)
		}
	}
	return &out
}

// TestSequenceEqualsTwin: after Assume the engine sees the same as the twin
// does with the claims written and the Pods placed; no device is given twice,
// no counter or capacity is overdrawn, no tenant's limit is passed.
func TestSequenceEqualsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := manyPods(decidetest.Clusters().Draw(t, "cluster"), 2)
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			q, twin := question(c, name)
			want, err := c.Decide(twin)
			if err != nil {
				t.Fatalf("twin: %v", err)
			}
			got := mustDecide(t, s, q)
			compareWithTwin(t, c, got, want)
			if err := s.Assume(got, false); err != nil {
				t.Fatalf("assuming %s: %v", name, err)
			}
			if want.Outcome == v1alpha1.OutcomeAllocated {
				c = c.With(name, want)
			}
			checkUse(t, c)
			checkLimits(t, c, got)
		}
	})
}

// TestObjectsReplaceAssumed: writing the claims and placing the Pods, as
// objects, gives the digest and the answers of a State that never assumed.
func TestObjectsReplaceAssumed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		name := c.Pending()[0]
		q, twin := question(c, name)
		got := mustDecide(t, s, q)
		if got.Outcome != v1alpha1.OutcomeAllocated {
			return
		}
		if err := s.Assume(got, true); err != nil {
			t.Fatal(err)
		}
		want, err := c.Decide(twin)
		if err != nil {
			t.Fatal(err)
		}
		after := c.With(name, want)
		for _, o := range after.Objects() {
			put(t, s, o)
		}
		s.Forget(name)
		if w, g := answers(t, newState(t, decide.Options{}, after.Objects()), after), answers(t, s, after); w != g {
			t.Fatalf("written and assumed differ:\n%s\n%s", w, g)
		}
	})
}

// TestForgetRestores: Forget takes back everything that Assume did.
func TestForgetRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := manyPods(decidetest.Clusters().Draw(t, "cluster"), 1)
		s := newState(t, decide.Options{}, c.Objects())
		before := answers(t, s, c)
		inFlight := rapid.Bool().Draw(t, "in flight")
		var assumed []types.NamespacedName
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			if err := s.Assume(mustDecide(t, s, q), inFlight); err != nil {
				t.Fatal(err)
			}
			assumed = append(assumed, name)
		}
		for _, name := range rapid.Permutation(assumed).Draw(t, "order of forgetting") {
			s.Forget(name)
		}
		if after := answers(t, s, c); after != before {
			t.Fatalf("something is left:\n%s\n%s", before, after)
		}
	})
}

// TestReservedWhileInFlight: what is assumed in flight is Reserved to others,
// and InUse once it is not in flight any more.
func TestReservedWhileInFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := manyPods(decidetest.Clusters().Draw(t, "cluster"), 1)
		inUse, inFlight := newState(t, decide.Options{}, c.Objects()), newState(t, decide.Options{}, c.Objects())
		pending := c.Pending()
		q, _ := question(c, pending[0])
		first := mustDecide(t, inUse, q)
		for s, flying := range map[*decide.State]bool{inUse: false, inFlight: true} {
			if err := s.Assume(first, flying); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range pending[1:] {
			q, _ := question(c, name)
			a, b := mustDecide(t, inUse, q), mustDecide(t, inFlight, q)
			for i := range a.Tiers {
				x, y := counts(a.Tiers[i]), counts(b.Tiers[i])
				if x[v1alpha1.ReasonReserved] > 0 {
					t.Fatalf("reserved although not in flight: %s", toJSON(a))
				}
				if x[v1alpha1.ReasonInUse] != y[v1alpha1.ReasonInUse]+y[v1alpha1.ReasonReserved] {
					t.Fatalf("in use and reserved do not add up:\n%s\n%s", toJSON(a), toJSON(b))
				}
			}
			if a.Node != b.Node || a.Outcome != b.Outcome {
				t.Fatalf("being in flight changes the answer:\n%s\n%s", toJSON(a), toJSON(b))
			}
		}
	})
}

// TestCandidatesAreTheOrder: the first candidate is the decision, and with the
// nodes of the first candidates refused the next one is.
func TestCandidatesAreTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{NodeChecks: decide.ExternalNodeChecks}, c.Objects())
		q, _ := question(c, c.Pending()[0])
		candidates, err := s.Candidates(q)
		if err != nil {
			t.Fatal(err)
		}
		q.NodeRejections = map[string]string{}
		for candidate := range candidates {
			d := mustDecide(t, s, q)
			if d.Outcome != v1alpha1.OutcomeAllocated || d.Node != candidate.Node || d.Tier != candidate.Tier ||
				*d.TierIndex != candidate.TierIndex || toJSON(d.Devices) != toJSON(candidate.Devices) {
				t.Fatalf("candidate %s\ndecision %s\ninput:\n%s", toJSON(candidate), toJSON(d), documents(c))
			}
			q.NodeRejections[candidate.Node] = "tried"
		}
		if d := mustDecide(t, s, q); d.Outcome == v1alpha1.OutcomeAllocated {
			t.Fatalf("no candidate for what is decided: %s", toJSON(d))
		}
	})
}

// checkUse holds the claims against the slices: nothing is taken twice.
func checkUse(t failer, c *decidetest.Cluster) {
	t.Helper()
	devices := newest(c)
	holders := map[decidetest.DeviceID]int{}
	capacity := map[decidetest.DeviceID]map[resourceapi.QualifiedName]*resource.Quantity{}
	counters := map[string]*resource.Quantity{}
	for _, claim := range c.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			id := decidetest.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			holders[id]++
			if r.ShareID == nil && holders[id] > 1 {
				t.Fatalf("%v is allocated twice", id)
			}
			if capacity[id] == nil {
				capacity[id] = map[resourceapi.QualifiedName]*resource.Quantity{}
			}
			for name, q := range r.ConsumedCapacity {
				sum := capacity[id][name]
				if sum == nil {
					sum = &resource.Quantity{}
					capacity[id][name] = sum
				}
				sum.Add(q)
				if limit := devices[id].Capacity[name].Value; sum.Cmp(limit) > 0 {
					t.Fatalf("%v gives %s of %s", id, sum, name)
				}
			}
		}
	}
	limits := map[string]resource.Quantity{}
	for _, s := range c.Slices {
		for _, set := range s.Spec.SharedCounters {
			for name, counter := range set.Counters {
				limits[s.Spec.Pool.Name+"/"+set.Name+"/"+name] = counter.Value
			}
		}
	}
	for id := range holders {
		for _, consumes := range devices[id].ConsumesCounters {
			for name, counter := range consumes.Counters {
				key := id.Pool + "/" + consumes.CounterSet + "/" + name
				if counters[key] == nil {
					counters[key] = &resource.Quantity{}
				}
				counters[key].Add(counter.Value)
				if limit, there := limits[key]; there && counters[key].Cmp(limit) > 0 {
					t.Fatalf("counter %s is overdrawn: %s of %s", key, counters[key], &limit)
				}
			}
		}
	}
}

func newest(c *decidetest.Cluster) map[decidetest.DeviceID]resourceapi.Device {
	out := map[decidetest.DeviceID]resourceapi.Device{}
	generation := map[decidetest.DeviceID]int64{}
	for _, s := range c.Slices {
		for _, d := range s.Spec.Devices {
			id := decidetest.DeviceID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Device: d.Name}
			if g := s.Spec.Pool.Generation; g >= generation[id] {
				out[id], generation[id] = d, g
			}
		}
	}
	return out
}

// checkLimits: when a decision gave devices to a tenant, the tenant is within
// its limits for their models. What was over before stays out of it.
func checkLimits(t failer, c *decidetest.Cluster, d *decide.Decision) {
	t.Helper()
	devices := newest(c)
	given := map[string]bool{}
	for _, x := range d.Devices {
		if id := deviceID(x); metered(id) {
			given[model(id, devices[id])] = true
		}
	}
	for _, q := range c.Quotas {
		if c.Tenant(d.Namespace) != q || hasAdmin(c, d) {
			continue
		}
		usage := tenantUsage(c, q, devices)
		for m := range given {
			i := slices.IndexFunc(q.Spec.Models, func(x v1alpha1.ModelQuota) bool { return x.Model == m })
			if i < 0 || (q.Spec.Models[i].Limit != nil && usage[m] > *q.Spec.Models[i].Limit) {
				t.Fatalf("tenant %s holds %d of %s, more than its limit: %s\ninput:\n%s", q.Name, usage[m], m, toJSON(d), documents(c))
			}
		}
	}
}

// metered: devices of other drivers have no model that a quota could mean.
func metered(id decidetest.DeviceID) bool {
	return id.Driver == v1alpha1.DriverName || id.Driver == v1alpha1.NVIDIADriverName
}

func tenantUsage(c *decidetest.Cluster, q *v1alpha1.TenantQuota, devices map[decidetest.DeviceID]resourceapi.Device) map[string]int32 {
	usage := map[string]int32{}
	for _, claim := range c.Claims {
		if claim.Status.Allocation == nil || c.Tenant(claim.Namespace) != q {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			id := decidetest.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			if metered(id) && (r.AdminAccess == nil || !*r.AdminAccess) {
				usage[model(id, devices[id])]++
			}
		}
	}
	return usage
}

// model is the device's model: with NVIDIA's driver the product tells it.
func model(id decidetest.DeviceID, d resourceapi.Device) string {
	if id.Driver == v1alpha1.NVIDIADriverName {
		for _, b := range decidetest.Boards {
			if a := d.Attributes["productName"]; a.StringValue != nil && *a.StringValue == b.Product {
				return b.Model
			}
		}
		return ""
	}
	if a := d.Attributes["model"]; a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

// hasAdmin says whether the tenant asks for admin access, which is not charged.
func hasAdmin(c *decidetest.Cluster, d *decide.Decision) bool {
	asks := func(namespace string, spec *resourceapi.ResourceClaimSpec) bool {
		return namespace == d.Namespace && slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
			return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
		})
	}
	return slices.ContainsFunc(c.Claims, func(x *resourceapi.ResourceClaim) bool { return asks(x.Namespace, &x.Spec) }) ||
		slices.ContainsFunc(c.Templates, func(x *resourceapi.ResourceClaimTemplate) bool { return asks(x.Namespace, &x.Spec.Spec) })
}
