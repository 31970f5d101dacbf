package invariants

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// cluster is what is known of a cluster after some entries, taken in the order
// of versions, and since when things have been as they are.
type cluster struct {
	devices   map[DeviceID]*device
	pools     map[poolID]*pool
	nodes     map[string]*node
	rules     map[string]*rule
	pods      map[types.UID]*corev1.Pod
	claims    map[types.UID][]DeviceID
	revisions map[string]map[int64]*v1alpha1.PolicyRevision // by policy
}

func newCluster() *cluster {
	return &cluster{
		devices: map[DeviceID]*device{}, pools: map[poolID]*pool{}, nodes: map[string]*node{}, rules: map[string]*rule{},
		pods: map[types.UID]*corev1.Pod{}, claims: map[types.UID][]DeviceID{}, revisions: map[string]map[int64]*v1alpha1.PolicyRevision{},
	}
}

// device is one that was published at some time.
type device struct {
	id   DeviceID
	node string
	spec resourcev1.Device
	// slice is where it stands now; empty where it is not published.
	slice types.UID
	// holder has it for itself; empty where nobody has.
	holder types.UID
	// touched is when anything that matters to the device last changed: its
	// slice, a rule that selects it, or its holder.
	touched time.Time
	// tainted is since when it carries each taint of its slice.
	tainted map[string]time.Time
}

// pool is a driver's pool.
type pool struct {
	slices map[types.UID]*resourcev1.ResourceSlice
}

// node is a Node that is there.
type node struct {
	usable  bool
	uid     types.UID
	changed time.Time
}

// rule is a DeviceTaintRule that is there.
type rule struct {
	spec  resourcev1.DeviceTaintRuleSpec
	since time.Time
}

// apply takes in one entry.
func (c *cluster) apply(e Entry) {
	gone := e.Type == watch.Deleted
	switch {
	case e.Slice != nil:
		c.slice(e)
	case e.Node != nil:
		before := c.nodes[e.Node.Name]
		now := &node{usable: !gone && usable(e.Node), uid: e.Node.UID, changed: e.At}
		if before != nil && before.usable == now.usable && before.uid == now.uid {
			now.changed = before.changed // a heartbeat changes nothing
		}
		c.nodes[e.Node.Name] = now
	case e.Rule != nil:
		if before := c.rules[e.Rule.Name]; before != nil {
			c.touch(before.spec.DeviceSelector, e.At)
		}
		c.touch(e.Rule.Spec.DeviceSelector, e.At)
		switch before := c.rules[e.Rule.Name]; {
		case gone:
			delete(c.rules, e.Rule.Name)
		case before == nil || !apiequality.Semantic.DeepEqual(before.spec, e.Rule.Spec):
			c.rules[e.Rule.Name] = &rule{spec: e.Rule.Spec, since: e.At}
		}
	case e.Pod != nil:
		c.pods[e.Pod.UID] = e.Pod // remembered for the claim that outlives it
	case e.Claim != nil:
		c.claim(e)
	case e.Revision != nil:
		of := c.revisions[e.Revision.Spec.Policy]
		if of == nil {
			of = map[int64]*v1alpha1.PolicyRevision{}
			c.revisions[e.Revision.Spec.Policy] = of
		}
		of[e.Revision.Spec.Revision] = e.Revision
	}
}

// usable says whether new Pods without tolerations may come to a node. A node
// with a taint counts as one that may not.
func usable(n *corev1.Node) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			return false
		}
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// slice takes in a slice. Every change of it touches all devices of its pool.
func (c *cluster) slice(e Entry) {
	id := poolID{e.Slice.Spec.Driver, e.Slice.Spec.Pool.Name}
	p := c.pools[id]
	if p == nil {
		p = &pool{slices: map[types.UID]*resourcev1.ResourceSlice{}}
		c.pools[id] = p
	}
	delete(p.slices, e.Slice.UID)
	if e.Type != watch.Deleted {
		p.slices[e.Slice.UID] = e.Slice
	}
	for _, d := range c.devices {
		if d.id.Driver == id.driver && d.id.Pool == id.pool {
			d.touched = e.At
			if d.slice == e.Slice.UID {
				d.slice = ""
			}
		}
	}
	if e.Type == watch.Deleted {
		return
	}
	for i := range e.Slice.Spec.Devices {
		spec := e.Slice.Spec.Devices[i]
		key := DeviceID{id.driver, id.pool, spec.Name}
		d := c.devices[key]
		if d == nil {
			d = &device{id: key, touched: e.At}
			c.devices[key] = d
		}
		if e.Slice.Spec.NodeName != nil {
			d.node = *e.Slice.Spec.NodeName
		}
		d.slice, d.spec = e.Slice.UID, spec
		was := d.tainted
		d.tainted = map[string]time.Time{}
		for _, t := range spec.Taints {
			since, had := was[taintKey(t)]
			if !had {
				since = e.At
			}
			d.tainted[taintKey(t)] = since
		}
	}
}

func taintKey(t resourcev1.DeviceTaint) string { return t.Key + ":" + string(t.Effect) }

// published says whether the device can be seen: its slice is of the newest
// generation of a pool that is whole.
func (c *cluster) published(d *device) bool {
	p := c.pools[poolID{d.id.Driver, d.id.Pool}]
	if p == nil || d.slice == "" {
		return false
	}
	newest := int64(-1)
	for _, s := range p.slices {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	count, want := int64(0), int64(0)
	for _, s := range p.slices {
		if s.Spec.Pool.Generation == newest {
			count, want = count+1, s.Spec.Pool.ResourceSliceCount
		}
	}
	in := p.slices[d.slice]
	return in != nil && in.Spec.Pool.Generation == newest && count == want
}

// touch notes a change of all devices that a rule selects.
func (c *cluster) touch(selector *resourcev1.DeviceTaintSelector, at time.Time) {
	for _, d := range c.devices {
		if selects(selector, d.id) {
			d.touched = at
		}
	}
}

// selects says whether a rule speaks of a device; without a selector it speaks
// of none.
func selects(s *resourcev1.DeviceTaintSelector, id DeviceID) bool {
	is := func(want *string, have string) bool { return want == nil || *want == have }
	return s != nil && is(s.Driver, id.Driver) && is(s.Pool, id.Pool) && is(s.Device, id.Device)
}

// claim takes in who has which devices.
func (c *cluster) claim(e Entry) {
	var now []DeviceID
	if e.Type != watch.Deleted {
		now = heldBy(e.Claim)
	}
	for _, id := range c.claims[e.Claim.UID] {
		if d := c.devices[id]; d != nil && d.holder == e.Claim.UID {
			d.holder, d.touched = "", e.At
		}
	}
	c.claims[e.Claim.UID] = now
	if len(now) == 0 {
		delete(c.claims, e.Claim.UID)
	}
	for _, id := range now {
		if d := c.devices[id]; d != nil {
			d.holder, d.touched = e.Claim.UID, e.At
		}
	}
}

// unhealthy returns what keeps a device from being chosen, by which of its
// taints no toleration covers, and since when; "" where nothing does.
func (c *cluster) unhealthy(d *device, tolerated func(resourcev1.DeviceTaint) bool) (why string, since time.Time) {
	note := func(t resourcev1.DeviceTaint, from string, at time.Time) {
		keeps := t.Effect == resourcev1.DeviceTaintEffectNoSchedule || t.Effect == resourcev1.DeviceTaintEffectNoExecute
		if keeps && !tolerated(t) && (why == "" || at.Before(since)) {
			why, since = "taint "+taintKey(t)+" of "+from, at
		}
	}
	for _, t := range d.spec.Taints {
		note(t, "its slice", d.tainted[taintKey(t)])
	}
	for name, r := range c.rules {
		if selects(r.spec.DeviceSelector, d.id) {
			note(r.spec.Taint, "rule "+name, r.since)
		}
	}
	return why, since
}
