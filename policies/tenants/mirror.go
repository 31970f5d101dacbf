package tenants

// The Mirror: the objects that are there, and what the engine was told of them.

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/selector"
)

// Mirror holds the objects that count and the engine that is told of them. It
// is not safe for concurrent use. Objects that it was given must not change.
type Mirror struct {
	state       *fair.State
	now         time.Time // of the last Sync or Next
	costs       map[string]int64
	expressions *cel.Cache

	fleet     fleet
	quotas    map[string]*v1alpha1.TenantQuota
	owner     map[string]string // of a namespace
	revisions map[string]*v1alpha1.PolicyRevision
	tiers     map[string]*tiers
	pods      map[string]*corev1.Pod // by the engine's ID
	podAt     map[types.NamespacedName]string
	podOf     map[types.UID]string // and the gang of a PodGroup's
	claims    map[types.NamespacedName]*resourceapi.ResourceClaim
	owned     map[string]map[types.NamespacedName]bool // claims made for a Pod, as they say
	users     map[types.NamespacedName]map[string]bool // Pods that name a claim
	made      map[types.NamespacedName]map[string]bool // Pods that a claim was made for, as they say
	grouped   bool                                     // the cluster serves PodGroups
	groups    map[types.NamespacedName]*schedulingapi.PodGroup
	peers     map[types.NamespacedName]map[string]bool // Pods that name a PodGroup

	controlled map[types.UID]map[string]bool    // Pods of a controller
	estates    map[types.UID]map[string]*estate // by controller and Pod
	inherited  map[string]Reclaims              // by the Pod that has it now

	// What has changed since the last Sync.
	dirty                         map[string]bool
	newQuotas, newFleet, newHolds bool

	// What the engine was told.
	told     map[string]*work
	given    map[string]fair.Quota
	capacity map[string]int64

	blocked map[string]fair.Reason // Pods that wait for something else
	refused map[string]error       // what the engine did not take
	strays  map[string]bool        // Pods with a gate that no quota speaks of
	// Pods that are left alone for a while: neither evicted, nor opened.
	spared, paused map[string]time.Time

	// What was asked for of the Pods of gangs and is not to be seen yet.
	asked map[string]fair.Action
	// widened are Pods that may use any model again, until they say so.
	widened map[string]bool
	// turns are for whom and for which models gangs were let in, until their Pods
	// say so.
	turns map[string]opening
	// torn are gangs of which a Pod was evicted: the others have to follow.
	torn map[string]bool
	// unfinished is what a Pod has still to be given that its gang has: a restart
	// came between.
	unfinished map[string]fair.Action
	// seen are gangs as this Sync has them.
	seen map[types.NamespacedName]*gang
}

// NewMirror returns an empty Mirror.
func NewMirror(config Config) (*Mirror, error) {
	f := config.fair()
	state, err := fair.New(f)
	if err != nil {
		return nil, fmt.Errorf("making the engine, %w", err)
	}
	m := &Mirror{
		state: state, costs: map[string]int64{}, fleet: newFleet(),
		expressions: selector.NewCache(maxExpressions),
		quotas:      map[string]*v1alpha1.TenantQuota{}, owner: map[string]string{},
		revisions: map[string]*v1alpha1.PolicyRevision{}, tiers: map[string]*tiers{},
		pods: map[string]*corev1.Pod{}, podAt: map[types.NamespacedName]string{}, podOf: map[types.UID]string{},
		claims: map[types.NamespacedName]*resourceapi.ResourceClaim{},
		owned:  map[string]map[types.NamespacedName]bool{}, users: map[types.NamespacedName]map[string]bool{}, made: map[types.NamespacedName]map[string]bool{},
		groups: map[types.NamespacedName]*schedulingapi.PodGroup{}, peers: map[types.NamespacedName]map[string]bool{},
		controlled: map[types.UID]map[string]bool{}, estates: map[types.UID]map[string]*estate{}, inherited: map[string]Reclaims{},
		asked: map[string]fair.Action{}, widened: map[string]bool{}, torn: map[string]bool{}, turns: map[string]opening{}, unfinished: map[string]fair.Action{},
		dirty: map[string]bool{}, told: map[string]*work{}, given: map[string]fair.Quota{}, capacity: map[string]int64{},
		blocked: map[string]fair.Reason{}, refused: map[string]error{}, strays: map[string]bool{},
		spared: map[string]time.Time{}, paused: map[string]time.Time{},
	}
	for _, model := range f.Models {
		m.costs[model.Name] = model.Cost
	}
	return m, nil
}

// Put takes an object that is new or has changed. Kinds that do not count are
// passed over.
func (m *Mirror) Put(object metav1.Object) { m.set(object, false) }

// Delete takes an object that is gone.
func (m *Mirror) Delete(object metav1.Object) { m.set(object, true) }

func (m *Mirror) set(object metav1.Object, gone bool) {
	switch o := object.(type) {
	case *corev1.Pod:
		m.setPod(o, gone)
	case *resourceapi.ResourceClaim:
		m.setClaim(o, gone)
	case *schedulingapi.PodGroup:
		m.setGroup(o, gone)
	case *resourceapi.ResourceSlice:
		put(m.fleet.slices, o.Name, o, gone)
		m.newFleet = true
	case *corev1.Node:
		put(m.fleet.nodes, o.Name, o, gone)
		m.newFleet = true
	case *resourceapi.DeviceTaintRule:
		put(m.fleet.rules, o.Name, o, gone)
		m.newFleet = true
	case *v1alpha1.TenantQuota:
		put(m.quotas, o.Name, o, gone)
		m.newQuotas = true
	case *v1alpha1.PolicyRevision:
		put(m.revisions, o.Name, o, gone)
		m.renew(o.Name)
	}
}

func put[K comparable, T any](to map[K]T, name K, object T, gone bool) {
	if gone {
		delete(to, name)
	} else {
		to[name] = object
	}
}

// Pod is the Pod of this ID as it was last seen, or nil.
func (m *Mirror) Pod(id string) *corev1.Pod { return m.pods[id] }

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
