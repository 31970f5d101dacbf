package decide

// Digests. A State's digest is a sum over its objects, so that an object's
// change costs what the object costs. Only what a decision can depend on goes
// in: no resourceVersion, no managed fields, no heartbeat.

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// lanes is one element, or the sum of many, of a multiset hash: the object's
// SHA-512 expanded to 2048 bits, added lane by lane (after Bellare and
// Micciancio's AdHash; many lanes make collisions of sums hard to find).
type lanes [32]uint64

func (l *lanes) add(o *lanes) {
	for i := range l {
		l[i] += o[i]
	}
}

func (l *lanes) sub(o *lanes) {
	for i := range l {
		l[i] -= o[i]
	}
}

func (l *lanes) bytes() []byte {
	out := make([]byte, 0, len(l)*8)
	for _, lane := range l {
		out = binary.BigEndian.AppendUint64(out, lane)
	}
	return out
}

// sumOf hashes one object's decision-relevant content.
func sumOf(kind string, content any) lanes {
	raw, err := json.Marshal(content)
	if err != nil {
		// The contents are plain data that JSON can write.
		panic(fmt.Sprintf("hashing %s, %v", kind, err))
	}
	seed := sha512.Sum512(append([]byte(kind+"\x00"), raw...))
	var l lanes
	block := make([]byte, len(seed)+1)
	copy(block, seed[:])
	for i := 0; i < len(l); i += 8 {
		block[len(seed)] = byte(i)
		h := sha512.Sum512(block)
		for j := range 8 {
			l[i+j] = binary.BigEndian.Uint64(h[j*8:])
		}
	}
	return l
}

func hashString(parts ...any) string {
	raw, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("hashing a query, %v", err))
	}
	sum := sha256.Sum256(raw)
	return v1alpha1.HashPrefix + hex.EncodeToString(sum[:])
}

// Digest identifies the State's content, independent of the order in which it
// came to be: "sha256:" and 64 hex digits.
func (st *State) Digest() string {
	sum := sha256.Sum256(st.digest.bytes())
	return v1alpha1.HashPrefix + hex.EncodeToString(sum[:])
}

// inputDigest identifies everything that a decision depends on.
func (st *State) inputDigest(q *Query) string {
	refused := make([]string, 0, len(q.NodeRejections))
	if st.opts.NodeChecks == ExternalNodeChecks {
		for _, name := range sortedKeys(q.NodeRejections) {
			refused = append(refused, name, q.NodeRejections[name])
		}
	}
	parts := []any{
		EngineVersion, st.Digest(), q.Pod.String(), q.Now.UTC().UnixNano(), refused,
		max(q.Attempt, 1), st.opts.NodeChecks, st.opts.Examples,
	}
	if q.Group != nil {
		parts = append(parts, q.Group)
	}
	return hashString(parts...)
}

// The contents below are what enters the digest. An empty list or map is the same as
// none: it is lost where an object is written and read again.

func some[E any](list []E) []E {
	if len(list) == 0 {
		return nil
	}
	return list
}

func someKeys(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}

type nodeDigest struct {
	Name        string
	Labels      map[string]string
	Cordoned    bool
	Ready       bool
	Taints      [][3]string
	CPU, Memory int64
	Pods        int64
}

func nodeContent(obj *corev1.Node, ready bool) nodeDigest {
	r := resourcesOf(obj.Status.Allocatable)
	d := nodeDigest{Name: obj.Name, Labels: someKeys(obj.Labels), Cordoned: obj.Spec.Unschedulable, Ready: ready, CPU: r.cpu, Memory: r.memory, Pods: r.pods}
	for _, t := range obj.Spec.Taints {
		d.Taints = append(d.Taints, [3]string{t.Key, t.Value, string(t.Effect)})
	}
	return d
}

type namespaceDigest struct {
	Name   string
	Labels map[string]string
}

type podDigest struct {
	Namespace, Name  string
	UID              types.UID
	Policy, Revision string
	Pinned           bool
	Model            string
	Created          int64
	Node             string
	Done             bool
	Claims           []corev1.PodResourceClaim
	Statuses         []corev1.PodResourceClaimStatus
	NodeSelector     map[string]string
	NodeAffinity     *corev1.NodeSelector
	Tolerations      []corev1.Toleration
	CPU, Memory      int64
	// Turn is left out where it is empty, so that Pods without one have the digests
	// that they had before there was any.
	Turn string `json:",omitempty"`
}

func podContent(obj *corev1.Pod, r resources) podDigest {
	revision, pinned := obj.Labels[v1alpha1.LabelPolicyRevision]
	d := podDigest{
		Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID,
		Policy: obj.Labels[v1alpha1.LabelPolicy], Revision: revision, Pinned: pinned,
		Created: obj.CreationTimestamp.UTC().UnixNano(),
		Model:   obj.Annotations[v1alpha1.AnnotationModel],
		Node:    obj.Spec.NodeName,
		Done:    obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed,
		Claims:  some(obj.Spec.ResourceClaims), Statuses: some(obj.Status.ResourceClaimStatuses),
		NodeSelector: someKeys(obj.Spec.NodeSelector), Tolerations: some(obj.Spec.Tolerations),
		CPU: r.cpu, Memory: r.memory,
		Turn: obj.Annotations[v1alpha1.AnnotationTurnModels],
	}
	if a := obj.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		d.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return d
}

// sliceContent leaves the slice's name out: it can carry a random suffix.
func sliceContent(obj *resourceapi.ResourceSlice) *resourceapi.ResourceSliceSpec {
	spec := obj.Spec
	if slices.ContainsFunc(spec.Devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.TimeAdded != nil })
	}) {
		spec.Devices = slices.Clone(spec.Devices)
		for i := range spec.Devices {
			spec.Devices[i].Taints = slices.Clone(spec.Devices[i].Taints)
			for j := range spec.Devices[i].Taints {
				spec.Devices[i].Taints[j].TimeAdded = nil
			}
		}
	}
	return &spec
}

type ruleDigest struct {
	Name string
	Spec resourceapi.DeviceTaintRuleSpec
}

func ruleContent(obj *resourceapi.DeviceTaintRule) ruleDigest {
	d := ruleDigest{Name: obj.Name, Spec: obj.Spec}
	d.Spec.Taint.TimeAdded = nil
	return d
}

type classDigest struct {
	Name      string
	Selectors []resourceapi.DeviceSelector
}

type claimDigest struct {
	Namespace, Name string
	UID             types.UID
	Owner           types.UID
	Entry           string
	Spec            resourceapi.DeviceClaim
	Allocation      *resourceapi.AllocationResult
	ReservedFor     []types.UID
}

func claimContent(obj *resourceapi.ResourceClaim) claimDigest {
	d := claimDigest{
		Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID, Owner: podOwner(obj),
		Entry: obj.Annotations[resourceapi.PodResourceClaimAnnotation],
		Spec:  obj.Spec.Devices, Allocation: obj.Status.Allocation,
		ReservedFor: podsOf(obj),
	}
	if d.Allocation != nil {
		a := *d.Allocation
		a.AllocationTimestamp = nil
		d.Allocation = &a
	}
	return d
}

type templateDigest struct {
	Namespace, Name string
	Spec            resourceapi.DeviceClaim
}

type policyDigest struct {
	Name   string
	Hash   string
	Pinned *int64
	Active int64
}

func policyContent(obj *v1alpha1.AcceleratorPolicy) policyDigest {
	return policyDigest{Name: obj.Name, Hash: obj.Spec.ContentHash(), Pinned: obj.Spec.ActiveRevision, Active: obj.Status.ActiveRevision}
}

type revisionDigest struct {
	Name, Policy, Hash string
	Number             int64
	Withdrawn          bool
}

func revisionContent(r *revision) revisionDigest {
	return revisionDigest{Name: r.name, Policy: r.policy, Hash: r.hash, Number: r.number, Withdrawn: r.withdrawn}
}

type quotaDigest struct {
	Name       string
	Namespaces []string
	Models     []v1alpha1.ModelQuota
}

func quotaContent(obj *v1alpha1.TenantQuota) quotaDigest {
	d := quotaDigest{Name: obj.Name, Namespaces: slices.Sorted(slices.Values(obj.Spec.Namespaces)), Models: some(slices.Clone(obj.Spec.Models))}
	for i := range d.Models {
		d.Models[i].Guaranteed = 0 // the fair queue's affair
	}
	return d
}

type assumedDigest struct {
	Namespace, Pod, Node string
	Holds                []holdDigest
}

type holdDigest struct {
	Device, Model   string
	Reserved, Share bool
	Takes           quantities
}

func assumedContent(pod podKey, a *assumption) assumedDigest {
	d := assumedDigest{Namespace: pod.Namespace, Pod: pod.Name, Node: a.node}
	for _, h := range a.holds {
		d.Holds = append(d.Holds, holdDigest{h.use.id.String(), h.decided, h.reserved, h.share, h.takes})
	}
	return d
}
