package decide

// Pods, and where they count.

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is a Pod and what it takes of a node.
type pod struct {
	obj      *corev1.Pod
	key      podKey
	sum      lanes
	requests resources
	placed   string // the node that its requests are counted on, or ""
	assumed  *assumption
}

func (st *State) putPod(obj *corev1.Pod) {
	key := podKey{Namespace: obj.Namespace, Name: obj.Name}
	p := st.pods[key]
	if p != nil && p.obj.UID != obj.UID {
		st.dropPod(key)
		p = nil
	}
	if p == nil {
		p = &pod{key: key}
		st.pods[key] = p
	} else {
		st.digest.sub(&p.sum)
	}
	st.place(p, "")
	p.obj, p.requests = obj, podRequests(obj)
	p.sum = sumOf("Pod", podContent(obj, p.requests))
	st.digest.add(&p.sum)
	if obj.UID != "" {
		st.podsByUID[obj.UID] = p
	}
	st.settlePlace(p)
	st.settleModelsFor(obj.UID)
}

// settleModelsFor follows a change of a Pod's annotation.
func (st *State) settleModelsFor(pod types.UID) {
	for _, c := range st.reservedFor[pod] {
		for _, h := range c.holds {
			st.settleModel(h)
		}
	}
}

// settlePlace counts the Pod where it is, or where it is assumed to go.
func (st *State) settlePlace(p *pod) {
	on := p.obj.Spec.NodeName
	if on == "" && p.assumed != nil {
		on = p.assumed.node
	}
	if p.obj.Status.Phase == corev1.PodSucceeded || p.obj.Status.Phase == corev1.PodFailed {
		on = ""
	}
	st.place(p, on)
}

func (st *State) dropPod(key podKey) {
	p := st.pods[key]
	if p == nil {
		return
	}
	st.Forget(key)
	st.place(p, "")
	st.digest.sub(&p.sum)
	delete(st.pods, key)
	delete(st.podsByUID, p.obj.UID)
	st.settleModelsFor(p.obj.UID)
}
