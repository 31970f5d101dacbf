package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/tenants"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// world is an API server with the controller beside it.
type world struct {
	t *testing.T
	client.Client
	base       client.WithWatch
	controller *Controller
	clock      *clocktesting.FakeClock
	events     *events.FakeRecorder
	// fail, if it gives an error, fails a write before it happens; lose after.
	fail, lose func(verb string, object client.Object) error
	// writes are those that happened: "patch Pod a/b".
	writes []string
	mutex  sync.Mutex // of the writes
	// told are the objects that the controller was told of.
	told map[string]client.Object
	uid  int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: clocktesting.NewFakeClock(start)}
	w.base = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.TenantQuota{}).Build()
	w.Client = w.base
	w.restart()
	return w
}

// restart puts a new controller in the place of the old one, which is dead: its
// requests do not arrive any more.
func (w *world) restart() {
	w.t.Helper()
	w.kill()
	m := &mortal{}
	m.Client = interceptor.NewClient(w.base, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write(m, "patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
			return w.write(m, name, o, func() error { return c.SubResource(name).Create(ctx, o, sub, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write(m, name, o, func() error { return c.SubResource(name).Patch(ctx, o, p, opts...) })
		},
	})
	w.events = events.NewFakeRecorder(10_000)
	var err error
	w.controller, err = NewController(w.clock, m, w.events, tenants.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.controller.mirror.ServeGroups()
	w.told = map[string]client.Object{}
}

// kill ends the controller in the middle of whatever it does.
func (w *world) kill() {
	if w.controller != nil {
		if m, ok := w.controller.client.(*mortal); ok {
			m.dead = true
		}
	}
}

// mortal is a client whose process may be killed.
type mortal struct {
	client.Client
	dead bool
}

var errDead = errors.New("the process was killed")

func (w *world) write(m *mortal, verb string, o client.Object, do func() error) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if m.dead {
		return errDead
	}
	if w.fail != nil {
		if err := w.fail(verb, o); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	name := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	w.writes = append(w.writes, verb+" "+kind[strings.LastIndex(kind, ".")+1:]+" "+name)
	if w.lose != nil {
		return w.lose(verb, o)
	}
	return nil
}

// watch tells the controller what has changed, as its cache would.
func (w *world) watch() {
	w.t.Helper()
	now := map[string]client.Object{}
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.NodeList{}, &resourcev1.ResourceClaimList{}, &resourcev1.ResourceSliceList{},
		&v1alpha1.TenantQuotaList{}, &v1alpha1.PolicyRevisionList{}, &schedulingv1beta1.PodGroupList{},
	} {
		if err := w.base.List(w.t.Context(), list); err != nil {
			w.t.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object)
			now[fmt.Sprintf("%T %s", object, client.ObjectKeyFromObject(object))] = object
			return nil
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	handler := w.controller.feed.handler()
	for name, object := range now {
		slim, err := slimmed(object)
		if err != nil {
			w.t.Fatal(err)
		}
		if old, ok := w.told[name]; ok {
			handler.OnUpdate(old, slim)
		} else {
			handler.OnAdd(slim, false)
		}
		now[name] = slim
	}
	for name, old := range w.told {
		if _, ok := now[name]; !ok {
			handler.OnDelete(old)
		}
	}
	w.told = now
}

func slimmed(o client.Object) (client.Object, error) {
	var slim any = o
	var err error
	switch o.(type) {
	case *corev1.Pod:
		slim, err = slimPod(o)
	case *corev1.Node:
		slim, err = slimNode(o)
	}
	return slim.(client.Object), err
}

// round lets the controller see what there is and act on it, and returns what
// it wrote to Pods.
func (w *world) round() []string {
	w.t.Helper()
	w.watch()
	w.writes = nil
	w.controller.Round(w.t.Context())
	writes := slices.DeleteFunc(slices.Clone(w.writes), func(s string) bool { return strings.Contains(s, "TenantQuota") })
	slices.Sort(writes) // they are made side by side
	return writes
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	if got := w.round(); !slices.Equal(got, want) {
		w.t.Fatalf("got writes %q, want %q", got, want)
	}
}

func (w *world) requireEvent(words ...string) {
	w.t.Helper()
	var seen []string
	for {
		select {
		case e := <-w.events.Events:
			seen = append(seen, e)
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e, word) }) {
				return
			}
		default:
			w.t.Fatalf("no event says %q, there are %q", words, seen)
		}
	}
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if o.GetUID() == "" {
		w.uid++
		o.SetUID(types.UID(fmt.Sprintf("u%04d", w.uid)))
	}
	if err := w.base.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) gpus(node, model string, n int) {
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}},
		})
	}
	w.create(s)
}

func (w *world) policy(name string, models ...string) {
	w.t.Helper()
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{Preempts: v1alpha1.PreemptsBorrowed}}
	for _, m := range models {
		p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: strings.ToLower(m), Models: []string{m}})
	}
	revision, err := compile.Revision(p, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	w.create(revision)
}

func (w *world) quota(name string, models ...v1alpha1.ModelQuota) {
	q := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{name}, Models: models}}
	q.Default()
	w.create(q)
}

func part(model string, guaranteed, limit int32) v1alpha1.ModelQuota {
	return v1alpha1.ModelQuota{Model: model, Guaranteed: guaranteed, Limit: &limit}
}

func (w *world) pod(namespace, name, policy string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPolicy: policy},
			CreationTimestamp: metav1.NewTime(w.clock.Now()),
		},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/first"}, {Name: v1alpha1.GateQuota}},
			ResourceClaims:  []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(policy + "-1")}},
		},
	}
	for _, c := range change {
		c(p)
	}
	w.create(p)
}

func (w *world) get(namespace, name string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{}
	if err := w.base.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// allocate gives a Pod devices of a node.
func (w *world) allocate(namespace, name string, devices ...string) *resourcev1.ResourceClaim {
	p := w.get(namespace, name)
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-accelerator", Annotations: map[string]string{resourcev1.PodResourceClaimAnnotation: v1alpha1.ClaimRefName},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: ptr.To(true)}},
		},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}},
	}
	for _, d := range devices {
		node, device, _ := strings.Cut(d, "/")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Driver: v1alpha1.DriverName, Pool: node, Device: device,
		})
	}
	w.create(c)
	return c
}

// remove lets a Pod go, with what it had.
func (w *world) remove(namespace, name string) {
	w.t.Helper()
	for _, o := range []client.Object{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-accelerator"}},
	} {
		if err := client.IgnoreNotFound(w.base.Delete(w.t.Context(), o)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// evicted has a Pod say, as the API server does, that it is being evicted.
func (w *world) evicted(namespace, name string) {
	w.t.Helper()
	p := w.get(namespace, name)
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: tenants.EvictionReason, LastTransitionTime: metav1.NewTime(w.clock.Now()),
	})
	if err := w.base.Status().Update(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(name string) v1alpha1.TenantQuotaStatus {
	w.t.Helper()
	q := &v1alpha1.TenantQuota{}
	if err := w.base.Get(w.t.Context(), types.NamespacedName{Name: name}, q); err != nil {
		w.t.Fatal(err)
	}
	return q.Status
}

func gates(p *corev1.Pod) (names []string) {
	for _, g := range p.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return names
}

func refuse(code int32, reason metav1.StatusReason) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "no"}}
}

var pods = schema.GroupResource{Resource: "pods"}

func TestGatesOpenInTurn(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 1))
	w.pod("team", "a", "h")
	w.clock.Step(time.Second)
	w.pod("team", "b", "h")
	w.expect("patch Pod team/a")
	if got := gates(w.get("team", "a")); !slices.Equal(got, []string{"example.com/first"}) {
		t.Errorf("gates %q are left, want the other one", got)
	}
	w.requireEvent("QuotaGateOpened", "tenant team", "1s")
	w.expect()
	w.allocate("team", "a", "n/gpu-0")
	w.expect()
	w.remove("team", "a")
	w.expect("patch Pod team/b")
}

// The patch holds only for the very Pod and the very gate.
func TestOpenIsSafe(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 1))
	w.pod("team", "a", "h")
	w.watch()
	// Another Pod takes the name before the controller sees it.
	w.remove("team", "a")
	w.pod("team", "a", "h")
	w.controller.Round(t.Context())
	if got := gates(w.get("team", "a")); len(got) != 2 {
		t.Errorf("the gate of another Pod was opened: %q", got)
	}
	w.clock.Step(firstBackoff)
	w.expect("patch Pod team/a")
	// Opened by hand and another gate in its place: not taken off.
	w.pod("team", "b", "h")
	w.allocate("team", "a", "n/gpu-0")
	w.expect()
	p := w.get("team", "b")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/first"}, {Name: "example.com/second"}}
	if err := w.base.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.remove("team", "a")
	w.expect()
	if got := gates(w.get("team", "b")); len(got) != 2 {
		t.Errorf("a gate that is not Ladder's was taken off: %q", got)
	}
}

// A failure is tried again; until then the devices are kept.
func TestFailedOpenIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 1))
	w.pod("team", "a", "h")
	w.clock.Step(time.Second)
	w.pod("team", "b", "h")
	down := true
	w.fail = func(verb string, _ client.Object) error {
		if down && verb == "patch" {
			return apierrors.NewServiceUnavailable("down")
		}
		return nil
	}
	for range 10 {
		w.expect()
		w.clock.Step(lastBackoff)
	}
	down = false
	w.expect("patch Pod team/a")
	w.expect()
}

// An answer that is lost is no second opening.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 1))
	w.pod("team", "a", "h")
	w.lose = func(string, client.Object) error { return apierrors.NewTimeoutError("lost", 1) }
	w.expect("patch Pod team/a")
	w.lose = nil
	w.clock.Step(firstBackoff)
	w.expect()
	if len(w.controller.tasks) != 0 {
		t.Errorf("still at work: %v", w.controller.tasks)
	}
}

// A gate that can't be opened does not keep devices from others for ever.
func TestRefusedOpenGivesWay(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		times int
		words string
	}{
		"forbidden":            {apierrors.NewForbidden(pods, "a", errors.New("a webhook says no")), refusals, "a webhook says no"},
		"denied, no reason":    {denied(400), refusals, "without explanation"},
		"denied as a fault":    {denied(503), failures, "without explanation"},
		"denied as a conflict": {apierrors.NewConflict(pods, "a", errors.New("a webhook says no")), failures, "a webhook says no"},
		"a webhook fails":      {apierrors.NewInternalError(errors.New("failed calling webhook")), failures, "failed calling webhook"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.gpus("n", "H100", 1)
			w.policy("h", "H100")
			w.quota("team", part("H100", 0, 1))
			w.pod("team", "a", "h")
			w.clock.Step(time.Second)
			w.pod("team", "b", "h")
			w.fail = func(_ string, o client.Object) error {
				if o.GetName() == "a" {
					return test.err
				}
				return nil
			}
			for range test.times {
				w.expect()
				w.clock.Step(lastBackoff)
			}
			w.requireEvent("QuotaGateRefused", test.words)
			w.expect("patch Pod team/b")
			w.remove("team", "b")
			w.fail = nil
			w.clock.Step(pause)
			w.expect("patch Pod team/a")
		})
	}
}

// denied is how the API server passes on what a webhook says that gives a code and
// no reason.
func denied(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Message: `admission webhook "w.example.com" denied the request without explanation`,
	}}
}

// What the server says to everybody takes nobody's turn.
func TestOutageTakesNoTurns(t *testing.T) {
	proxy := apierrors.NewGenericServerResponse(502, "patch", pods, "a", "<html>", 0, true)
	for name, err := range map[string]error{
		"no answer": errors.New("connection refused"), "no storage": refuse(500, ""), "a proxy": proxy,
		"busy": apierrors.NewTooManyRequests("slow down", 1), "down": apierrors.NewServiceUnavailable("down"),
		"late": apierrors.NewTimeoutError("late", 1), "who is it": apierrors.NewUnauthorized("token expired"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.gpus("n", "H100", 1)
			w.policy("h", "H100")
			w.quota("team", part("H100", 0, 1))
			w.pod("team", "a", "h")
			w.clock.Step(time.Second)
			w.pod("team", "b", "h")
			w.fail = func(string, client.Object) error { return err }
			for range 2 * failures {
				w.expect()
				w.clock.Step(lastBackoff)
			}
			if got := slices.Collect(maps.Keys(w.controller.tasks)); len(got) != 1 || len(w.events.Events) > 0 {
				t.Errorf("at work for %q, with %d events", got, len(w.events.Events))
			}
			w.fail = nil
			w.expect("patch Pod team/a")
		})
	}
}

// lend has tenant b borrow what a is guaranteed, and a ask for it back.
func lend(t *testing.T, change ...func(*corev1.Pod)) *world {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100")
	w.quota("a", part("H100", 1, 1))
	w.quota("b", part("H100", 0, 1))
	w.pod("b", "holder", "h", change...)
	w.expect("patch Pod b/holder")
	w.allocate("b", "holder", "n/gpu-0")
	w.clock.Step(time.Minute)
	w.pod("a", "asks", "h")
	return w
}

// Notice, then eviction, then the gate; with a new controller at every step.
func TestReclaim(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts=%v", restarts), func(t *testing.T) {
			w := lend(t)
			again := func() {
				if restarts {
					w.restart()
				}
			}
			w.expect("patch Pod b/holder")
			w.requireEvent("ReclaimNotice", "12:02:00")
			holder := w.get("b", "holder")
			if holder.Annotations[v1alpha1.AnnotationReclaimDeadline] != "2026-11-01T12:02:00Z" ||
				holder.Annotations[v1alpha1.AnnotationReclaimFor] != string(w.get("a", "asks").UID) {
				t.Fatalf("got annotations %v", holder.Annotations)
			}
			again()
			w.expect()
			w.clock.Step(59 * time.Second)
			again()
			w.expect()
			w.clock.Step(time.Second)
			again()
			w.expect("eviction Pod b/holder")
			w.requireEvent("Reclaimed")
			again()
			w.expect() // the claim is still allocated
			w.remove("b", "holder")
			again()
			w.expect("patch Pod a/asks")
		})
	}
}

// The Pod that comes in place of an evicted one waits until its cool-down is
// over, and says so before it is let in.
func TestReplacedPodCoolsDown(t *testing.T) {
	ofJob := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j", Controller: ptr.To(true)}}
		p.Finalizers = []string{batchv1.JobTrackingFinalizer}
	}
	w := lend(t, ofJob)
	w.expect("patch Pod b/holder")
	w.clock.Step(time.Minute)
	w.expect("eviction Pod b/holder")
	evicted := w.clock.Now()
	w.evicted("b", "holder")
	w.expect()
	w.pod("b", "again", "h", ofJob)
	w.fail = func(string, client.Object) error { return apierrors.NewServiceUnavailable("down") }
	w.expect()
	w.fail = nil
	w.clock.Step(lastBackoff)
	w.expect("patch Pod b/again")
	holder := w.get("b", "holder")
	holder.Finalizers = nil
	if err := w.base.Update(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	w.remove("b", "holder")
	w.restart()
	w.expect("patch Pod a/asks")
	w.allocate("a", "asks", "n/gpu-0")
	w.expect()
	w.remove("a", "asks")
	w.expect()
	w.clock.Step(10*time.Minute - lastBackoff - time.Second)
	w.expect()
	w.clock.Step(time.Second)
	w.expect("patch Pod b/again")
	again := w.get("b", "again")
	if got, want := tenants.ReclaimsOn(again), (tenants.Reclaims{Times: 1, At: evicted.UTC()}); got != want {
		t.Errorf("it says %+v, want %+v", got, want)
	}
	if got := gates(again); len(got) != 1 {
		t.Errorf("its gates are %v", got)
	}
}

func TestReclaimIsCancelled(t *testing.T) {
	w := lend(t)
	w.expect("patch Pod b/holder")
	w.remove("a", "asks")
	w.restart()
	w.expect("patch Pod b/holder")
	w.requireEvent("ReclaimCancelled")
	if got := w.get("b", "holder").Annotations; got[v1alpha1.AnnotationReclaimDeadline] != "" || got[v1alpha1.AnnotationReclaimFor] != "" {
		t.Errorf("got annotations %v", got)
	}
	w.clock.Step(time.Hour)
	w.expect()
}

// Who could not be told is not evicted.
func TestNobodyIsEvictedUntold(t *testing.T) {
	w := lend(t)
	w.fail = func(verb string, o client.Object) error {
		if verb == "patch" && o.GetName() == "holder" {
			return apierrors.NewServiceUnavailable("down")
		}
		return nil
	}
	for range 20 {
		if got := w.round(); len(got) > 0 {
			t.Fatalf("got writes %q", got)
		}
		w.clock.Step(10 * time.Second)
	}
	w.fail = nil
	w.clock.Step(lastBackoff)
	w.expect("patch Pod b/holder")
}

// A disruption budget is held; after some refusals the Pod is left alone.
func TestEvictionRefused(t *testing.T) {
	w := lend(t)
	w.expect("patch Pod b/holder")
	w.fail = func(verb string, _ client.Object) error {
		if verb == "eviction" {
			return refuse(429, metav1.StatusReasonTooManyRequests)
		}
		return nil
	}
	w.clock.Step(time.Minute)
	for range refusals - 1 {
		w.expect()
		w.clock.Step(lastBackoff)
	}
	w.expect() // the last refusal; the notice is taken back in the next round
	w.requireEvent("ReclaimRefused")
	w.expect("patch Pod b/holder")
	if w.get("b", "holder").Annotations[v1alpha1.AnnotationReclaimDeadline] != "" {
		t.Error("the notice stands")
	}
	w.fail = nil
	w.clock.Step(spare)
	w.expect("patch Pod b/holder")
	if w.get("b", "holder").Annotations[v1alpha1.AnnotationReclaimDeadline] == "" {
		t.Error("the Pod is left alone for ever")
	}
}

// Two disruption budgets on one Pod are answered with 500 and no reason, for as
// long as they are there.
func TestEvictionFailsForEver(t *testing.T) {
	w := lend(t)
	w.expect("patch Pod b/holder")
	w.fail = func(verb string, _ client.Object) error {
		if verb == "eviction" {
			return refuse(500, "")
		}
		return nil
	}
	w.clock.Step(time.Minute)
	for range failures - 1 {
		w.expect()
		w.clock.Step(lastBackoff)
	}
	w.expect()
	w.requireEvent("ReclaimRefused")
	w.expect("patch Pod b/holder")
	if w.get("b", "holder").Annotations[v1alpha1.AnnotationReclaimDeadline] != "" {
		t.Error("the notice stands")
	}
}

// What fails is tried for as long as the documentation says.
func TestHowLongIsTried(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want time.Duration
	}{
		"refused": {refuse(429, metav1.StatusReasonTooManyRequests), time.Minute},
		"failing": {refuse(500, ""), 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := lend(t)
			w.expect("patch Pod b/holder")
			w.fail = func(verb string, _ client.Object) error {
				if verb == "eviction" {
					return test.err
				}
				return nil
			}
			w.clock.Step(time.Minute)
			first := w.clock.Now()
			for {
				w.expect()
				evicting := false
				for _, task := range w.controller.tasks {
					evicting = evicting || task.Kind == fair.Evict
				}
				if !evicting {
					break
				}
				w.clock.Step(time.Second)
			}
			if got := w.clock.Since(first); got < test.want || got > test.want+5*time.Second {
				t.Errorf("tried for %s, want about %s", got, test.want)
			}
		})
	}
}

// How long others wait is not the borrower's to say.
func TestGraceIsBounded(t *testing.T) {
	c, err := NewController(nil, nil, nil, tenants.Config{MaxGrace: &metav1.Duration{Duration: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	for grace, want := range map[int64]int64{0: -1, 30: -1, 60: -1, 61: 60, 31_536_000: 60} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace}}
		if got := ptr.Deref(c.graceOf(pod), -1); got != want {
			t.Errorf("of %d s the Pod gets %d, want %d", grace, got, want)
		}
	}
	if c.graceOf(&corev1.Pod{}) != nil {
		t.Error("a Pod that asks for nothing is told something")
	}
}

func TestStatusIsWrittenWhenItChanges(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", "H100")
	w.quota("team", part("H100", 1, 1))
	written := func() int {
		w.round()
		n := 0
		for _, s := range w.writes {
			if s == "status TenantQuota team" {
				n++
			}
		}
		return n
	}
	if n := written(); n != 1 {
		t.Fatalf("written %d times", n)
	}
	if got := w.status("team"); !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReady) || got.Waiting != 0 {
		t.Errorf("got %+v", got)
	}
	w.pod("team", "a", "h")
	w.pod("team", "b", "h")
	if n := written(); n != 0 {
		t.Errorf("written again at once")
	}
	w.clock.Step(statusEvery)
	if n := written(); n != 1 {
		t.Errorf("written %d times after a change", n)
	}
	got := w.status("team")
	if got.Waiting != 1 || len(got.Next) != 1 || got.Next[0].Name != "b" || got.Next[0].Reason != "LimitReached" ||
		len(got.Models) != 1 || got.Models[0].Charged != 1 || got.Models[0].Used != 0 {
		t.Errorf("got %+v", got)
	}
	for range 5 {
		w.clock.Step(statusAnyway)
		if n := written(); n != 0 {
			t.Errorf("written although nothing changed")
		}
	}
	w.allocate("team", "a", "n/gpu-0")
	w.clock.Step(statusEvery)
	if n := written(); n != 1 || w.status("team").Models[0].Used != 1 {
		t.Errorf("written %d times, status %+v", n, w.status("team"))
	}
}

// The next round is due when something is, and not before.
func TestRoundSaysWhenItIsDue(t *testing.T) {
	w := lend(t)
	w.round()
	w.watch()
	w.clock.Step(statusEvery)
	w.controller.Round(t.Context())
	now := w.clock.Now()
	if got := w.controller.Round(t.Context()); !got.After(now) || got.After(start.Add(2*time.Minute)) {
		t.Errorf("due at %v, want at the end of the notice, %v, at the latest", got, start.Add(2*time.Minute))
	}
}
