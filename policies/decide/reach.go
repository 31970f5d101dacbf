package decide

// Which nodes can reach a device.

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
)

// reach is the node selection of a slice or, where the slice leaves it to its
// devices, of one device.
type reach struct {
	node     string // the only node, or ""
	home     *node  // its entry in the State, where a whole slice is meant
	all      bool
	selector *nodeaffinity.NodeSelector // may be nil: nothing

	// matched caches the nodes that the selector matches, at this version of
	// the State's nodes.
	matched map[string]bool
	version int64
}

// newReach reads a node selection. One that says nothing, or that can't be
// parsed, reaches no node.
func newReach(nodeName *string, allNodes *bool, selector *corev1.NodeSelector) *reach {
	r := &reach{node: ptr.Deref(nodeName, ""), version: -1}
	switch {
	case r.node != "":
	case ptr.Deref(allNodes, false):
		r.all = true
	case selector != nil:
		if sel, err := nodeaffinity.NewNodeSelector(selector); err == nil {
			r.selector = sel
		}
	}
	return r
}

// reaches says whether the node, which must exist, can use the device.
func (st *State) reaches(r *reach, n *node) bool {
	switch {
	case r.node != "":
		return r.node == n.name
	case r.all:
		return true
	case r.selector == nil:
		return false
	}
	if r.version != st.nodesVersion {
		r.matched, r.version = make(map[string]bool), st.nodesVersion
	}
	match, known := r.matched[n.name]
	if !known {
		match = r.selector.Match(n.obj)
		r.matched[n.name] = match
	}
	return match
}
