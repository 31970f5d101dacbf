// Package mirror keeps the decision engine's state in step with what the
// scheduler knows: the node snapshot of the cycle, resource slices with their
// taint rules, device classes, claims with the allocations in flight, and the
// objects of Ladder's own group.
//
// Sync costs one pass over the lists and work only for what changed; the
// engine's indexes are never rebuilt. Slices are listed only after one changed,
// where changes are told.
package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"gpuladder.dev/ladder/scheduler/view"
)

// State is what a Mirror writes to: the engine's state or a recorder around it.
type State interface {
	Put(obj runtime.Object) error
	Delete(obj runtime.Object) error
	Forget(pod types.NamespacedName)
	// Assumed says whether a decision stands for the claim's allocation.
	Assumed(claim *resourceapi.ResourceClaim) bool
}

// Mirror is not safe for concurrent use but for Note, Forget and NoteSlices.
type Mirror struct {
	state    State
	inFlight *view.InFlight
	logger   klog.Logger

	nodes     *kind[*corev1.Node]
	slices    *kind[*resourceapi.ResourceSlice]
	classes   *kind[*resourceapi.DeviceClass]
	claims    *kind[*resourceapi.ResourceClaim]
	nodesPut  map[string]*corev1.Node
	pools     map[view.PoolKey][]*resourceapi.ResourceSlice
	poolOf    map[string]view.PoolKey
	synthetic map[types.UID]*resourceapi.ResourceClaim
	pods      map[types.NamespacedName]*corev1.Pod
	gains     gains

	// mu guards what event handlers touch. Changes wait here for the next Sync,
	// the last one of each object, so that a cluster in which nobody asks for
	// devices does not fill the memory.
	mu     sync.Mutex
	noted  map[noteKey]note
	forget []forgotten
	known  map[types.UID]bool
	// told says that each change of a slice is told, and changed that one was
	// since they were listed.
	told, changed bool
}

// noteKey names an object among all kinds.
type noteKey struct {
	kind string
	name types.NamespacedName
}

// note is an object that changed since the last Sync.
type note struct {
	obj     runtime.Object
	deleted bool
}

// forgotten is a Pod for which nothing is assumed any more.
type forgotten struct {
	pod types.NamespacedName
	uid types.UID
}

// New returns a Mirror that writes to state.
func New(state State, inFlight *view.InFlight, logger klog.Logger) *Mirror {
	return &Mirror{
		state:     state,
		inFlight:  inFlight,
		logger:    logger,
		nodes:     newKind[*corev1.Node](),
		slices:    newKind[*resourceapi.ResourceSlice](),
		classes:   newKind[*resourceapi.DeviceClass](),
		claims:    newKind[*resourceapi.ResourceClaim](),
		nodesPut:  map[string]*corev1.Node{},
		pools:     map[view.PoolKey][]*resourceapi.ResourceSlice{},
		poolOf:    map[string]view.PoolKey{},
		synthetic: map[types.UID]*resourceapi.ResourceClaim{},
		pods:      map[types.NamespacedName]*corev1.Pod{},
		gains:     newGains(),
		noted:     map[noteKey]note{},
		known:     map[types.UID]bool{},
	}
}

// Note takes over a change of an object that Sync cannot list: a Namespace, an
// object of Ladder's group, a Pod that is bound or one that is gone. It may be
// called from event handlers.
func (m *Mirror) Note(obj runtime.Object, deleted bool) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := noteKey{kind: fmt.Sprintf("%T", obj), name: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}}
	if _, isPod := obj.(*corev1.Pod); isPod {
		switch {
		case !deleted:
			m.known[o.GetUID()] = true
		case !m.known[o.GetUID()]:
			return
		default:
			delete(m.known, o.GetUID())
		}
	}
	m.noted[key] = note{obj: obj, deleted: deleted}
}

// TellOfSlices says that [Mirror.NoteSlices] is called for every change of a slice
// from now on, once a list shows it. Sync need not list them after nothing then,
// which takes the longer the more nodes there are.
func (m *Mirror) TellOfSlices() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told, m.changed = true, true
}

// NoteSlices says that a slice, or a rule that taints devices, changed.
func (m *Mirror) NoteSlices() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = true
}

// takeSlices says whether slices have to be listed; whoever asks does so.
func (m *Mirror) takeSlices() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := !m.told || m.changed
	m.changed = false
	return list
}

// Forget has the next Sync take back what was assumed for the Pod. It waits
// until then so that a decision that is under way sees one state throughout.
// What is assumed for another Pod that has the name by now stays.
func (m *Mirror) Forget(pod types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget = append(m.forget, forgotten{pod, uid})
}

// TakeBack does what [Mirror.Forget] asked for, and nothing else.
func (m *Mirror) TakeBack() {
	m.mu.Lock()
	forget := m.forget
	m.forget = nil
	m.mu.Unlock()
	for _, f := range forget {
		if known := m.pods[f.pod]; known == nil || known.UID == f.uid {
			m.state.Forget(f.pod)
		}
		m.gains.count++
	}
}

// Sync brings the engine's state up to date.
func (m *Mirror) Sync(nodes []fwk.NodeInfo, dra fwk.SharedDRAManager) error {
	m.TakeBack()
	m.mu.Lock()
	noted := m.noted
	m.noted = map[noteKey]note{}
	m.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(noted), noteKey.compare) {
		m.apply(noted[key])
	}
	m.syncNodes(nodes)
	classes, err := dra.DeviceClasses().List()
	if err != nil {
		return fmt.Errorf("listing device classes, %w", err)
	}
	syncKind(m, m.classes, classes, func(_ *resourceapi.DeviceClass, gone bool) { m.gains.appeared(gone) })
	if m.takeSlices() {
		patched, err := dra.ResourceSlices().ListWithDeviceTaintRules()
		if err != nil {
			m.NoteSlices()
			return fmt.Errorf("listing resource slices, %w", err)
		}
		syncKind(m, m.slices, patched, m.indexSlice)
	}
	// The order matters: see InFlight.Claims.
	inFlight := m.inFlight.Claims()
	claims, err := dra.ResourceClaims().List()
	if err != nil {
		return fmt.Errorf("listing resource claims, %w", err)
	}
	syncKind(m, m.claims, claims, m.gains.claim)
	m.syncInFlight(inFlight)
	return nil
}

// PutPod puts the part of the Pod that a decision depends on.
func (m *Mirror) PutPod(pod *corev1.Pod) error {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if m.pods[key] == pod {
		return nil
	}
	if err := m.state.Put(relevantPod(pod)); err != nil {
		return err
	}
	m.pods[key] = pod
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[pod.UID] = true
	return nil
}

// Pool returns the slices of a pool as of the last Sync, of all generations.
func (m *Mirror) Pool(key view.PoolKey) []*resourceapi.ResourceSlice { return m.pools[key] }

func (k noteKey) compare(o noteKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.name.Namespace, o.name.Namespace), cmp.Compare(k.name.Name, o.name.Name))
}

func (m *Mirror) apply(n note) {
	if pod, ok := n.obj.(*corev1.Pod); ok {
		m.applyPod(pod, n.deleted)
		return
	}
	m.gains.count++
	if n.deleted {
		m.remove(n.obj)
		return
	}
	m.put(n.obj)
}

// applyPod removes a Pod that is gone, and keeps of one that is bound the model of
// its devices, for which its tenant is charged also while their slice is away.
func (m *Mirror) applyPod(pod *corev1.Pod, gone bool) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	known := m.pods[key]
	switch {
	case !gone:
		m.put(boundPod(pod))
		m.pods[key] = pod
	case known != nil && known.UID == pod.UID:
		delete(m.pods, key)
		m.state.Forget(key)
		m.remove(pod)
	}
}

// put hands an object to the engine. One that the engine does not take is as
// good as not there: an older version of it must not be decided on.
func (m *Mirror) put(obj runtime.Object) {
	if err := m.state.Put(obj); err != nil {
		m.logger.Error(err, "Object left out of decisions", "kind", fmt.Sprintf("%T", obj), "object", objectRef(obj))
		m.remove(obj)
	}
}

func (m *Mirror) remove(obj runtime.Object) {
	if err := m.state.Delete(obj); err != nil {
		m.logger.Error(err, "Object not removed from decisions", "kind", fmt.Sprintf("%T", obj), "object", objectRef(obj))
	}
}

// syncNodes puts nodes reduced to what the engine looks at, so that heartbeats
// and image lists cause no work.
func (m *Mirror) syncNodes(infos []fwk.NodeInfo) {
	list := make([]*corev1.Node, 0, len(infos))
	for _, info := range infos {
		if node := info.Node(); node != nil {
			list = append(list, node)
		}
	}
	added, gone := m.nodes.diff(list)
	for _, node := range gone {
		m.remove(m.nodesPut[node.Name])
		delete(m.nodesPut, node.Name)
	}
	for _, node := range added {
		reduced := relevantNode(node)
		if old := m.nodesPut[node.Name]; old == nil || !sameNode(old, reduced) {
			m.put(reduced)
			m.nodesPut[node.Name] = reduced
			m.gains.appeared(false)
		}
	}
}

// indexSlice keeps the slices of each pool together.
func (m *Mirror) indexSlice(s *resourceapi.ResourceSlice, gone bool) {
	m.gains.appeared(gone)
	if before, ok := m.poolOf[s.Name]; ok {
		pool := slices.DeleteFunc(slices.Clone(m.pools[before]), func(o *resourceapi.ResourceSlice) bool { return o.Name == s.Name })
		m.pools[before] = pool
		if len(pool) == 0 {
			delete(m.pools, before)
		}
		delete(m.poolOf, s.Name)
	}
	if gone {
		return
	}
	key := view.PoolKey{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
	pool := append(slices.Clone(m.pools[key]), s)
	slices.SortFunc(pool, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	m.pools[key] = pool
	m.poolOf[s.Name] = key
}

// syncInFlight accounts for allocations in flight that no decision of the
// engine stands for, such as those that the in-tree plugin makes for Pods with
// extended resources. Their claims may not exist yet, so they are put under a
// name of their own, as nobody's.
func (m *Mirror) syncInFlight(inFlight map[types.UID]*resourceapi.ResourceClaim) {
	written := m.writtenFor(inFlight)
	for uid, claim := range m.synthetic {
		switch {
		case inFlight[uid] == nil:
			m.gains.count++
		case !written[uid]:
			continue
		}
		m.remove(claim)
		delete(m.synthetic, uid)
	}
	for uid, claim := range inFlight {
		if m.synthetic[uid] != nil || written[uid] || m.state.Assumed(claim) {
			continue
		}
		copied := claim.DeepCopy()
		copied.Name, copied.OwnerReferences = "in-flight-"+string(uid), nil
		m.put(copied)
		m.synthetic[uid] = copied
	}
}

// writtenFor says which of the allocations in flight are written already; for
// extended resources that is in a claim of another name, for the same Pod.
func (m *Mirror) writtenFor(inFlight map[types.UID]*resourceapi.ResourceClaim) map[types.UID]bool {
	byPod, written := map[types.UID]types.UID{}, map[types.UID]bool{}
	for uid, claim := range inFlight {
		if pod, ok := view.ExtendedResourcesOf(claim); ok {
			byPod[pod] = uid
		}
		known := m.claims.byKey[keyOf(claim)]
		written[uid] = known != nil && known.UID == uid && known.Status.Allocation != nil
	}
	if len(byPod) == 0 {
		return written
	}
	for _, claim := range m.claims.byKey {
		// Anybody can say that a claim is one for extended resources: it is the
		// devices that count.
		if pod, ok := view.ExtendedResourcesOf(claim); ok && byPod[pod] != "" && sameDevices(claim, inFlight[byPod[pod]]) {
			written[byPod[pod]] = true
		}
	}
	return written
}

// sameDevices says whether two claims have the same devices, by whichever requests.
func sameDevices(a, b *resourceapi.ResourceClaim) bool {
	if a.Status.Allocation == nil || b.Status.Allocation == nil {
		return false
	}
	devices := func(claim *resourceapi.ResourceClaim) sets.Set[[3]string] {
		found := sets.New[[3]string]()
		for _, r := range claim.Status.Allocation.Devices.Results {
			found.Insert([3]string{r.Driver, r.Pool, r.Device})
		}
		return found
	}
	return devices(a).Equal(devices(b))
}

// syncKind puts what is new in list, removes what is gone, and tells observe.
func syncKind[T object](m *Mirror, k *kind[T], list []T, observe func(T, bool)) {
	added, gone := k.diff(list)
	for _, obj := range gone {
		m.remove(obj)
		observe(obj, true)
	}
	for _, obj := range added {
		m.put(obj)
		observe(obj, false)
	}
}

func objectRef(obj runtime.Object) klog.ObjectRef {
	if o, ok := obj.(metav1.Object); ok {
		return klog.KObj(o)
	}
	return klog.ObjectRef{}
}
