package decide

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// EngineVersion names the rules that this engine follows. It changes whenever
// the same input could give another answer or another record.
const EngineVersion = "1"

// NodeChecks says who decides whether a Pod may run on a node.
type NodeChecks int

const (
	// BuiltinNodeChecks: the engine checks that the node exists, is Ready, not
	// cordoned, its taints tolerated, node selector and required affinity met,
	// CPU, memory and Pod count sufficient by requests.
	BuiltinNodeChecks NodeChecks = iota
	// ExternalNodeChecks: the engine checks only that the node exists;
	// Query.NodeRejections says what others, the scheduler's plugins, refused.
	ExternalNodeChecks
)

// Options are fixed for the life of a State.
type Options struct {
	NodeChecks NodeChecks
	// Examples is the number of devices named for each reason; default 3. A
	// negative value names all of them.
	Examples int
	// WholeFleet has every decision look at every device, instead of reading
	// off what is kept of the fleet and follows its changes. The answers are
	// the same; it is there to be compared with.
	WholeFleet bool
}

// defaultExamples is the number of devices named for each reason.
const defaultExamples = 3

// State is everything a decision depends on but the question itself. It is
// built up by Put and Delete, object by object, and keeps its indexes and its
// digest up to date; the cost of an update depends on the object, not on the
// fleet.
//
// A State is not safe for concurrent use, not even by two calls of Decide.
type State struct {
	opts   Options
	digest lanes

	nodes        map[string]*node // also names that only slices or Pods refer to
	nodeOrder    []*node          // those that exist, by name
	nodesVersion int64
	namespaces   map[string]*entry[*corev1.Namespace]

	slices      map[string]*slice
	pools       map[poolKey]*pool
	broken      int // pools with a problem
	poolOrder   []*pool
	shared      []*slice // slices that are not of one node, in the order of choice
	deviceCount int      // of the newest generations
	rules       map[string]*entry[*resourceapi.DeviceTaintRule]
	ruleOrder   []*resourceapi.DeviceTaintRule

	classes   map[string]*entry[*resourceapi.DeviceClass]
	claims    map[types.NamespacedName]*claim
	claimsOf  map[types.UID][]*claim // by the Pod that they were generated for
	templates map[types.NamespacedName]*entry[*resourceapi.ResourceClaimTemplate]
	pods      map[podKey]*pod
	podsByUID map[types.UID]*pod
	// reservedFor are the claims reserved for a Pod.
	reservedFor map[types.UID][]*claim
	uses        map[deviceID]*usage
	charges     map[string]map[modelKey]int

	policies      map[string]*policy
	revisions     map[string]map[int64]*revision
	revisionNames map[string]*revision
	quotas        map[string]*quota
	claimants     map[string][]*quota // by namespace the quotas that list it, by name

	standings      standings
	cel            *cel.Cache
	alternativeIDs map[string]int
	verdictEpoch   int
}

// entry is an object that needs no index of its own.
type entry[T any] struct {
	obj T
	sum lanes
}

// get returns the object, or the zero value where there is no entry.
func (e *entry[T]) get() T {
	if e == nil {
		var none T
		return none
	}
	return e.obj
}

// NewState returns an empty State.
func NewState(opts Options) *State {
	if opts.Examples == 0 {
		opts.Examples = defaultExamples
	}
	return &State{
		opts:           opts,
		nodes:          map[string]*node{},
		namespaces:     map[string]*entry[*corev1.Namespace]{},
		slices:         map[string]*slice{},
		pools:          map[poolKey]*pool{},
		rules:          map[string]*entry[*resourceapi.DeviceTaintRule]{},
		classes:        map[string]*entry[*resourceapi.DeviceClass]{},
		claims:         map[types.NamespacedName]*claim{},
		claimsOf:       map[types.UID][]*claim{},
		templates:      map[types.NamespacedName]*entry[*resourceapi.ResourceClaimTemplate]{},
		pods:           map[podKey]*pod{},
		podsByUID:      map[types.UID]*pod{},
		reservedFor:    map[types.UID][]*claim{},
		uses:           map[deviceID]*usage{},
		charges:        map[string]map[modelKey]int{},
		policies:       map[string]*policy{},
		revisions:      map[string]map[int64]*revision{},
		revisionNames:  map[string]*revision{},
		quotas:         map[string]*quota{},
		claimants:      map[string][]*quota{},
		standings:      standings{by: map[string]*standing{}, structure: 1},
		cel:            newExpressions(),
		alternativeIDs: map[string]int{},
	}
}

// named is an object's metadata.
type named interface{ GetName() string }

// invalid is the error for an object that can't be used, with the field's path.
func invalid(kind string, obj named, field, why string) error {
	return fmt.Errorf("%s %s, %s: %s, %w", kind, obj.GetName(), field, why, ErrInvalid)
}

func keyOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// putEntry replaces an object that needs no index of its own; nil removes it.
func putEntry[K comparable, T any](st *State, m map[K]*entry[T], key K, e *entry[T]) {
	if old := m[key]; old != nil {
		st.digest.sub(&old.sum)
		delete(m, key)
	}
	if e != nil {
		st.digest.add(&e.sum)
		m[key] = e
	}
}

// Put adds or replaces an object. Kinds: Node, Namespace, Pod, ResourceSlice,
// DeviceTaintRule, DeviceClass, ResourceClaim, ResourceClaimTemplate,
// AcceleratorPolicy, PolicyRevision, TenantQuota (pointers). Defaults of our
// own kinds are filled in on a copy; the object is never changed and must not
// be changed afterwards. An object of another kind, or one that is invalid by
// itself, is an error and leaves the State as it was.
func (st *State) Put(obj runtime.Object) error {
	if m, ok := obj.(metav1.Object); ok && m.GetName() == "" {
		return fmt.Errorf("%T, metadata.name: must be set, %w", obj, ErrInvalid)
	}
	switch o := obj.(type) {
	case *corev1.Node:
		st.putNode(o)
	case *corev1.Namespace:
		putEntry(st, st.namespaces, o.Name, &entry[*corev1.Namespace]{o, sumOf("Namespace", namespaceDigest{o.Name, someKeys(o.Labels)})})
	case *corev1.Pod:
		st.putPod(o)
	case *resourceapi.ResourceSlice:
		return st.putSlice(o)
	case *resourceapi.DeviceTaintRule:
		st.putRule(o)
	case *resourceapi.DeviceClass:
		putEntry(st, st.classes, o.Name, &entry[*resourceapi.DeviceClass]{o, sumOf("DeviceClass", classDigest{o.Name, some(o.Spec.Selectors)})})
	case *resourceapi.ResourceClaim:
		st.putClaim(o)
	case *resourceapi.ResourceClaimTemplate:
		putEntry(st, st.templates, keyOf(o), &entry[*resourceapi.ResourceClaimTemplate]{
			o,
			sumOf("ResourceClaimTemplate", templateDigest{o.Namespace, o.Name, o.Spec.Spec.Devices}),
		})
	case *v1alpha1.AcceleratorPolicy:
		return st.putPolicy(o)
	case *v1alpha1.PolicyRevision:
		return st.putRevision(o)
	case *v1alpha1.TenantQuota:
		st.putQuota(o)
	default:
		return fmt.Errorf("%T: the engine does not read this kind, %w", obj, ErrInvalid)
	}
	return nil
}

// Delete removes an object; one that is not there is not an error. Only type,
// namespace and name of obj are read.
func (st *State) Delete(obj runtime.Object) error {
	switch o := obj.(type) {
	case *corev1.Node:
		st.dropNode(o.Name)
	case *corev1.Namespace:
		putEntry(st, st.namespaces, o.Name, nil)
	case *corev1.Pod:
		st.dropPod(keyOf(o))
	case *resourceapi.ResourceSlice:
		st.dropSlice(o.Name)
	case *resourceapi.DeviceTaintRule:
		st.dropRule(o.Name)
	case *resourceapi.DeviceClass:
		putEntry(st, st.classes, o.Name, nil)
	case *resourceapi.ResourceClaim:
		st.dropClaim(keyOf(o))
	case *resourceapi.ResourceClaimTemplate:
		putEntry(st, st.templates, keyOf(o), nil)
	case *v1alpha1.AcceleratorPolicy:
		st.dropPolicy(o.Name)
	case *v1alpha1.PolicyRevision:
		st.dropRevision(o.Name)
	case *v1alpha1.TenantQuota:
		st.dropQuota(o.Name)
	default:
		return fmt.Errorf("%T: the engine does not read this kind, %w", obj, ErrInvalid)
	}
	return nil
}

// Query is one question: what does this Pod get?
type Query struct {
	// Pod is the Pod's key. It must have been Put.
	Pod types.NamespacedName
	// Now is the evaluation time.
	Now time.Time
	// NodeRejections are the nodes that others refused, by name; with
	// ExternalNodeChecks only.
	NodeRejections map[string]string
	// Attempt counts from 1; 0 means 1.
	Attempt int32
	// Group restricts a Pod that belongs to a group to the group's tier; nil:
	// the Pod takes what it can get.
	Group *GroupTier
}

// Decision is the record of an answer, with the Pod's namespace.
type Decision struct {
	Namespace string `json:"namespace"`
	v1alpha1.AllocationDecisionSpec
}

// Sentinel errors of Put, Decide and Candidates. They are wrapped with the
// object and field that they speak of.
var (
	// ErrNotFound occurs when the Pod, or something that it names (policy,
	// revision, claim, template, device class), is not in the State.
	ErrNotFound = errors.New("not found")
	// ErrInvalid occurs when an object can't be used, for instance when a CEL
	// expression does not compile or a claim was not made from the policy that
	// the Pod names.
	ErrInvalid = errors.New("invalid")
)

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
