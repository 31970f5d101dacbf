package decide_test

// The engine against structured.Allocator, Kubernetes' own: for every claim
// that both can express, on every node.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// defaultGates are the allocator's features under the default gates of 1.37,
// with which the allocator called incubating is chosen.
var defaultGates = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	FractionalCapacityRange: true, PartitionableDevices: true, PrioritizedList: true,
}

var oracleCEL = cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})

// classes is a lister of device classes.
type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, k := range c {
		if k.Name == name {
			return k, nil
		}
	}
	return nil, fmt.Errorf("device class %s is not there", name)
}

// oracle is the allocator over a cluster.
type oracle struct {
	classes classes
	slices  []*resourceapi.ResourceSlice
	state   structured.AllocatedState
}

// newOracle shows the allocator the cluster in the engine's order: it visits
// slices by their names and devices as they stand, so copies are named and
// sorted accordingly. Taint rules are applied, as the scheduler's tracker does.
// Older generations are left out: on a node that no slice of the newest one
// means, the allocator would still use the older one; the engine does not.
func newOracle(c *decidetest.Cluster, keep func(decidetest.DeviceID) bool) *oracle {
	o := &oracle{
		classes: slices.Concat(classes(c.Classes), classes{compile.DeviceClass(v1alpha1.DriverName), compile.DeviceClass(v1alpha1.NVIDIADriverName)}),
		state: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
	}
	for i, s := range c.Slices {
		if outdated(c, s) {
			continue
		}
		s = s.DeepCopy()
		smallest := "none"
		for j := range s.Spec.Devices {
			d := &s.Spec.Devices[j]
			if j == 0 || d.Name < smallest {
				smallest = d.Name
			}
			for _, r := range c.Rules {
				if ruleSelects(r.Spec.DeviceSelector, s, d.Name) {
					d.Taints = append(d.Taints, r.Spec.Taint)
				}
			}
		}
		s.Name = fmt.Sprintf("%s.%d", smallest, i)
		slices.SortFunc(s.Spec.Devices, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
			return keep != nil && !keep(decidetest.DeviceID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Device: d.Name})
		})
		o.slices = append(o.slices, s)
	}
	for _, claim := range c.Claims {
		if claim.Status.Allocation != nil {
			o.charge(claim.Status.Allocation.Devices.Results)
		}
	}
	return o
}

func outdated(c *decidetest.Cluster, s *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(c.Slices, func(other *resourceapi.ResourceSlice) bool {
		return other.Spec.Driver == s.Spec.Driver && other.Spec.Pool.Name == s.Spec.Pool.Name &&
			other.Spec.Pool.Generation > s.Spec.Pool.Generation
	})
}

func ruleSelects(sel *resourceapi.DeviceTaintSelector, s *resourceapi.ResourceSlice, device string) bool {
	return sel != nil && (sel.Driver == nil || *sel.Driver == s.Spec.Driver) &&
		(sel.Pool == nil || *sel.Pool == s.Spec.Pool.Name) && (sel.Device == nil || *sel.Device == device)
}

func (o *oracle) charge(results []resourceapi.DeviceRequestAllocationResult) {
	for _, r := range results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		switch {
		case r.AdminAccess != nil && *r.AdminAccess:
		case r.ShareID != nil:
			o.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			o.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		default:
			o.state.AllocatedDevices.Insert(id)
		}
	}
}

func (o *oracle) allocator(ctx context.Context) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, defaultGates, o.state, o.classes, o.slices, oracleCEL)
}

// errSkip: the allocator fails as a whole where the engine has a reason for a
// device or an alternative alone.
var errSkip = errors.New("not comparable")

// allocate asks the allocator for a node; no results: it finds nothing.
func (o *oracle) allocate(t failer, node *corev1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.DeviceRequestAllocationResult, error) {
	t.Helper()
	a, err := o.allocator(context.Background())
	if err != nil {
		t.Fatalf("making the allocator: %v", err)
	}
	found, err := a.Allocate(context.Background(), node, claims)
	switch {
	case err == nil:
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, nil
	case strings.Contains(err.Error(), "CEL runtime error"), strings.Contains(err.Error(), "asks for all devices"),
		strings.Contains(err.Error(), "a claim constraint would not be satisfied"):
		return nil, errSkip
	default:
		t.Fatalf("allocator on %s: %v", node.Name, err)
	}
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range found {
		out = append(out, r.Devices.Results...)
	}
	return out, nil
}

// comparable takes out of a cluster what the allocator knows nothing of:
// quotas, waiting, wishes, who may use a policy, and health that is no taint.
func comparable(c *decidetest.Cluster) *decidetest.Cluster {
	c.Quotas = nil
	c.Now = decidetest.Epoch.Add(time.Hour)
	for _, p := range c.Policies {
		p.Spec.PreferAttributes, p.Spec.NamespaceSelector = nil, nil
	}
	for _, r := range c.Revisions {
		r.Spec.PolicySpec.PreferAttributes, r.Spec.PolicySpec.NamespaceSelector = nil, nil
		r.Spec.State = v1alpha1.RevisionUsable
		r.Spec.Hash = r.Spec.PolicySpec.ContentHash()
	}
	for _, s := range c.Slices {
		for _, d := range s.Spec.Devices {
			delete(d.Attributes, "health")
		}
	}
	return c
}

// claimsOf are the Pod's claims as the scheduler would see them: its own, then
// the one compiled from its policy.
func claimsOf(t failer, c *decidetest.Cluster, pod *corev1.Pod, d *decide.Decision) []*resourceapi.ResourceClaim {
	t.Helper()
	var out []*resourceapi.ResourceClaim
	for _, ref := range pod.Spec.ResourceClaims {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: ref.Name, UID: types.UID(ref.Name)}}
		for _, have := range c.Claims {
			if ref.ResourceClaimName != nil && have.Namespace == pod.Namespace && have.Name == *ref.ResourceClaimName {
				claim.Spec = *have.Spec.DeepCopy()
			}
		}
		for _, have := range c.Templates {
			if ref.ResourceClaimTemplateName != nil && have.Namespace == pod.Namespace && have.Name == *ref.ResourceClaimTemplateName {
				claim.Spec = *have.Spec.Spec.DeepCopy()
			}
		}
		out = append(out, claim)
	}
	if d.Policy == "" {
		return out
	}
	template, err := compile.Template(revisionOf(t, c, d), pod.Namespace)
	if err != nil {
		t.Fatalf("compiling policy %s: %v", d.Policy, err)
	}
	return append(out, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: v1alpha1.ClaimRefName, UID: "policy"},
		Spec:       template.Spec.Spec,
	})
}

func revisionOf(t failer, c *decidetest.Cluster, d *decide.Decision) *v1alpha1.PolicyRevision {
	t.Helper()
	for _, r := range c.Revisions {
		if r.Spec.Policy == d.Policy && r.Spec.Revision == d.PolicyRevision {
			return r
		}
	}
	for _, p := range c.Policies {
		if p.Name == d.Policy {
			r, err := compile.Revision(p, d.PolicyRevision)
			if err != nil {
				t.Fatalf("freezing policy %s: %v", p.Name, err)
			}
			return r
		}
	}
	t.Fatalf("policy %s is not there", d.Policy)
	return nil
}

// TestAllocatorAgrees: on every node the engine's best candidate is what the
// allocator finds there, and where the engine has none the allocator finds
// nothing either. With several requests of several alternatives the two orders
// differ (the allocator keeps the devices of the first request while it goes
// down the alternatives of the second), so there only the existence is compared.
func TestAllocatorAgrees(t *testing.T) {
	compared, agreed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := comparable(decidetest.Clusters().Draw(t, "cluster"))
		s := newState(t, decide.Options{NodeChecks: decide.ExternalNodeChecks}, c.Objects())
		o := newOracle(c, nil)
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			claims := claimsOf(t, c, c.Pod(name), mustDecide(t, s, q))
			best := map[string]decide.Candidate{}
			candidates, err := s.Candidates(q)
			if err != nil {
				t.Fatal(err)
			}
			for candidate := range candidates {
				best[candidate.Node] = candidate
			}
			for _, n := range c.Nodes {
				found, err := o.allocate(t, n, claims)
				if err != nil || brokenPool(c) {
					continue
				}
				compared++
				candidate, ok := best[n.Name]
				if ok != (found != nil) {
					t.Fatalf("pod %s on %s: engine %v, allocator %v\ninput:\n%s", name, n.Name, candidate.Devices, found, documents(c))
				}
				if !ok {
					continue
				}
				agreed++
				if oneVector(claims) && chosen(candidate.Devices) != allocated(found) {
					t.Fatalf("pod %s on %s:\nengine    %s\nallocator %s\ninput:\n%s",
						name, n.Name, chosen(candidate.Devices), allocated(found), documents(c))
				}
			}
		}
	})
	t.Logf("%d questions compared, devices found in %d", compared, agreed)
	if agreed == 0 || agreed == compared {
		t.Errorf("of %d questions %d found devices: the comparison says little", compared, agreed)
	}
}

// TestAllocatorAcceptsTheChoice: shown only the chosen devices, and of each
// request only the chosen alternative, the allocator takes exactly them; also
// under quotas, `after`, wishes and node checks.
func TestAllocatorAcceptsTheChoice(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		c := decidetest.Clusters().Draw(t, "cluster")
		s := newState(t, decide.Options{}, c.Objects())
		for _, name := range c.Pending() {
			q, _ := question(c, name)
			d := mustDecide(t, s, q)
			if d.Outcome != v1alpha1.OutcomeAllocated {
				continue
			}
			ours := map[decidetest.DeviceID]bool{}
			for _, x := range d.Devices {
				ours[deviceID(x)] = true
			}
			taken := holders(c)
			if hasAdmin(c, d) {
				taken = nil // held devices are open to admin access
			}
			o := newOracle(c, func(id decidetest.DeviceID) bool { return ours[id] || taken[id] })
			claims := onlyChosen(claimsOf(t, c, c.Pod(name), d), d)
			i := slices.IndexFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == d.Node })
			found, err := o.allocate(t, c.Nodes[i], claims)
			if err != nil && requests(claims) > 1 {
				continue // a selector of one request fails on a device of another one
			}
			same := allocated(found) == chosen(d.Devices)
			if wishing(t, c, d) && requests(claims) > 1 {
				// The allocator knows no wishes: it may give the same devices to
				// other requests.
				same = len(found) == len(d.Devices)
			}
			if err != nil || !same {
				t.Fatalf("pod %s on %s:\nengine    %s\nallocator %s, %v\ninput:\n%s",
					name, d.Node, chosen(d.Devices), allocated(found), err, documents(c))
			}
			accepted++
		}
	})
	t.Logf("%d choices accepted", accepted)
	if accepted == 0 {
		t.Error("nothing was chosen")
	}
}

func wishing(t failer, c *decidetest.Cluster, d *decide.Decision) bool {
	return d.Policy != "" && len(revisionOf(t, c, d).Spec.PolicySpec.PreferAttributes) > 0
}

// holders are the devices that claims have for themselves; the allocator must
// see them to know what they consume of the counters.
func holders(c *decidetest.Cluster) map[decidetest.DeviceID]bool {
	out := map[decidetest.DeviceID]bool{}
	for _, claim := range c.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if (r.AdminAccess == nil || !*r.AdminAccess) && r.ShareID == nil {
				out[decidetest.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}] = true
			}
		}
	}
	return out
}

// onlyChosen keeps of each request the alternative that the decision names.
func onlyChosen(claims []*resourceapi.ResourceClaim, d *decide.Decision) []*resourceapi.ResourceClaim {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			r.FirstAvailable = slices.DeleteFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
				return !slices.ContainsFunc(d.Devices, func(x v1alpha1.DecidedDevice) bool {
					return x.Request == r.Name+"/"+s.Name && (x.Claim == "" || x.Claim == claim.Name)
				})
			})
		}
	}
	return claims
}

func requests(claims []*resourceapi.ResourceClaim) (n int) {
	for _, claim := range claims {
		n += len(claim.Spec.Devices.Requests)
	}
	return n
}

func oneVector(claims []*resourceapi.ResourceClaim) bool {
	alternatives := slices.ContainsFunc(claims, func(claim *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
			return len(r.FirstAvailable) > 1
		})
	})
	return requests(claims) == 1 || !alternatives
}

// brokenPool: the allocator judges names slice by slice as nodes see them, the
// engine pool by pool.
func brokenPool(c *decidetest.Cluster) bool {
	for _, s := range c.Slices {
		seen := map[string]bool{}
		for _, d := range s.Spec.Devices {
			if seen[d.Name] {
				return true
			}
			seen[d.Name] = true
		}
	}
	return false
}

func chosen(devices []v1alpha1.DecidedDevice) string {
	var out []string
	for _, d := range devices {
		out = append(out, fmt.Sprintf("%s=%s/%s/%s", d.Request, d.Driver, d.Pool, d.Device))
	}
	return strings.Join(out, " ")
}

func allocated(results []resourceapi.DeviceRequestAllocationResult) string {
	var out []string
	for _, r := range results {
		out = append(out, fmt.Sprintf("%s=%s/%s/%s", r.Request, r.Driver, r.Pool, r.Device))
	}
	return strings.Join(out, " ")
}
