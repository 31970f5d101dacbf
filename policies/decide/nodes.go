package decide

// Nodes, and whether a Pod can run on one. Resources are counted by requests
// of the Pods that are placed, so that a decision reads two numbers per node.

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// node is a node that exists (obj is set), or a name that slices or Pods refer to.
type node struct {
	name  string
	obj   *corev1.Node
	sum   lanes
	ready bool
	local []*slice // slices of this node alone, in the order of choice
	has   resources
	used  resources
	// index is the node's place in State.nodeOrder.
	index int
}

// resources are what Pods take of a node: milli CPUs, bytes, Pods.
type resources struct{ cpu, memory, pods int64 }

func (r *resources) add(o resources) { r.cpu += o.cpu; r.memory += o.memory; r.pods += o.pods }
func (r *resources) sub(o resources) { r.cpu -= o.cpu; r.memory -= o.memory; r.pods -= o.pods }

// most is more than any node has: larger amounts count as this much, so that
// the sum over a node's Pods can't overflow.
const most = 1 << 53

func resourcesOf(list corev1.ResourceList) resources {
	return resources{
		cpu:    milli(list.Cpu()),
		memory: min(list.Memory().Value(), most),
		pods:   min(list.Pods().Value(), most),
	}
}

// milli is the quantity in thousandths, without overflow.
func milli(q *resource.Quantity) int64 {
	if q.Value() > most/1000 {
		return most
	}
	return q.MilliValue()
}

func compareNodes(a, b *node) int { return cmp.Compare(a.name, b.name) }

// nodeNamed returns the entry of this name, making one where needed.
func (st *State) nodeNamed(name string) *node {
	n := st.nodes[name]
	if n == nil {
		n = &node{name: name}
		st.nodes[name] = n
	}
	return n
}

// dropIdleNode forgets a name to which nothing refers any more.
func (st *State) dropIdleNode(n *node) {
	if n.obj == nil && len(n.local) == 0 && n.used == (resources{}) {
		delete(st.nodes, n.name)
	}
}

func (st *State) putNode(obj *corev1.Node) {
	n := st.nodeNamed(obj.Name)
	if n.obj != nil {
		st.digest.sub(&n.sum)
	} else {
		st.nodeOrder = insertSorted(st.nodeOrder, n, compareNodes)
		st.renumberNodes()
		st.restructure()
	}
	n.obj, n.ready, n.has = obj, isReady(obj), resourcesOf(obj.Status.Allocatable)
	n.sum = sumOf("Node", nodeContent(obj, n.ready))
	st.digest.add(&n.sum)
	st.nodesVersion++
}

func (st *State) dropNode(name string) {
	n := st.nodes[name]
	if n == nil || n.obj == nil {
		return
	}
	st.digest.sub(&n.sum)
	st.nodeOrder = removeSorted(st.nodeOrder, n, compareNodes)
	n.obj = nil
	st.renumberNodes()
	st.restructure()
	st.dropIdleNode(n)
	st.nodesVersion++
}

func (st *State) renumberNodes() {
	for i, n := range st.nodeOrder {
		n.index = i
	}
}

func isReady(obj *corev1.Node) bool {
	return slices.ContainsFunc(obj.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// place moves a Pod's requests to a node; "" takes them off.
func (st *State) place(p *pod, on string) {
	if p.placed == on {
		return
	}
	if p.placed != "" {
		n := st.nodeNamed(p.placed)
		n.used.sub(p.requests)
		st.dropIdleNode(n)
	}
	if on != "" {
		st.nodeNamed(on).used.add(p.requests)
	}
	p.placed = on
}

// podRequests is what the Pod takes of its node.
func podRequests(obj *corev1.Pod) resources {
	r := resourcesOf(resourcehelper.PodRequests(obj, resourcehelper.PodResourcesOptions{}))
	r.pods = 1
	return r
}

// nodeCheck is what the built-in checks need to know of a Pod, computed once
// for a decision.
type nodeCheck struct {
	pod      *pod
	affinity nodeaffinity.RequiredNodeAffinity
}

func newNodeCheck(p *pod) *nodeCheck {
	return &nodeCheck{pod: p, affinity: nodeaffinity.GetRequiredNodeAffinity(p.obj)}
}

// unschedulableTaint is the taint that stands for spec.unschedulable.
var unschedulableTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// refusal is why a Pod can't run on a node.
type refusal uint8

const (
	nodeOK refusal = iota
	refusedByOthers
	boundElsewhere
	cordoned
	notReady
	tainted
	notSelected
	tooManyPods
	tooLittleCPU
	tooLittleMemory
	claimElsewhere
)

// refuses says whether the Pod can run on the node.
func (c *nodeCheck) refuses(n *node) refusal {
	spec := &c.pod.obj.Spec
	switch {
	case spec.NodeName == n.name:
		return nodeOK
	case spec.NodeName != "":
		return boundElsewhere
	case n.obj.Spec.Unschedulable && !tolerates(spec.Tolerations, &unschedulableTaint):
		return cordoned
	case !n.ready:
		return notReady
	case c.taint(n) != nil:
		return tainted
	}
	if ok, err := c.affinity.Match(n.obj); !ok || err != nil {
		return notSelected
	}
	used := c.usedBeside(n)
	switch want := c.pod.requests; {
	case used.pods+want.pods > n.has.pods:
		return tooManyPods
	case want.cpu > 0 && used.cpu+want.cpu > n.has.cpu:
		return tooLittleCPU
	case want.memory > 0 && used.memory+want.memory > n.has.memory:
		return tooLittleMemory
	}
	return nodeOK
}

// usedBeside is what other Pods take of the node.
func (c *nodeCheck) usedBeside(n *node) resources {
	used := n.used
	if c.pod.placed == n.name {
		used.sub(c.pod.requests)
	}
	return used
}

// taint is the node's first taint that keeps the Pod away, or nil.
func (c *nodeCheck) taint(n *node) *corev1.Taint {
	for i := range n.obj.Spec.Taints {
		t := &n.obj.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(c.pod.obj.Spec.Tolerations, t) {
			return t
		}
	}
	return nil
}

// words explains a refusal.
func (c *nodeCheck) words(n *node, r refusal) string {
	want := c.pod.requests
	switch r {
	case boundElsewhere:
		return "the Pod is bound to another node"
	case cordoned:
		return "cordoned"
	case notReady:
		return "not Ready"
	case tainted:
		return "taint " + c.taint(n).ToString()
	case notSelected:
		return "node selector or affinity does not match"
	case tooManyPods:
		return fmt.Sprintf("%d of %d Pods", c.usedBeside(n).pods, n.has.pods)
	case tooLittleCPU:
		return fmt.Sprintf("cpu: %dm free, %dm wanted", n.has.cpu-c.usedBeside(n).cpu, want.cpu)
	case tooLittleMemory:
		return fmt.Sprintf("memory: %d bytes free, %d wanted", n.has.memory-c.usedBeside(n).memory, want.memory)
	case claimElsewhere:
		return "an allocated claim of the Pod is not usable there"
	default:
		return ""
	}
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Logger{}, tolerations, taint, false)
}

// podKey names a Pod.
type podKey = types.NamespacedName
