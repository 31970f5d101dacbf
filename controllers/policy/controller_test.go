package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// world is an API server with the controller beside it.
type world struct {
	t *testing.T
	client.Client
	controller *Controller
	clock      *clocktesting.FakePassiveClock
	events     *events.FakeRecorder
	// fail, if it gives an error, fails a write before it happens.
	fail func(verb string, object client.Object) error
	// stale hides objects from the cache.
	stale func(list client.ObjectList) bool
	// writes are those that succeeded: "create PolicyRevision p-1".
	writes []string
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: clocktesting.NewFakePassiveClock(start), events: events.NewFakeRecorder(100)}
	base := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.AcceleratorPolicy{}).Build()
	w.Client = base
	cached := interceptor.NewClient(base, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.stale != nil && w.stale(list) {
				return nil
			}
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			return onlyCached(list)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(types.UID(fmt.Sprintf("uid-%d", len(w.writes))))
			return w.write("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write("update", o, func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, _ string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write("status", o, func() error { return c.Status().Patch(ctx, o, p, opts...) })
		},
	})
	w.controller = NewController(w.clock, cached, base, w.events)
	return w
}

// onlyCached drops what CacheOptions keeps out of the cache.
func onlyCached(list client.ObjectList) error {
	templates, ok := list.(*resourcev1.ResourceClaimTemplateList)
	if !ok {
		return nil
	}
	templates.Items = slices.DeleteFunc(templates.Items, func(t resourcev1.ResourceClaimTemplate) bool {
		return t.Labels[v1alpha1.LabelPolicy] == ""
	})
	return nil
}

func (w *world) write(verb string, o client.Object, do func() error) error {
	if w.fail != nil {
		if err := w.fail(verb, o); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	kind = kind[strings.LastIndex(kind, ".")+1:]
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	w.writes = append(w.writes, verb+" "+kind+" "+name)
	return nil
}

// reconcile runs one round and returns what it wrote.
func (w *world) reconcile() []string {
	w.t.Helper()
	w.writes = nil
	if _, err := w.controller.Reconcile(w.t.Context(), w.policy()); err != nil {
		w.t.Fatal(err)
	}
	return w.writes
}

func (w *world) policy() *v1alpha1.AcceleratorPolicy {
	w.t.Helper()
	p := &v1alpha1.AcceleratorPolicy{}
	if err := w.Get(w.t.Context(), types.NamespacedName{Name: "p"}, p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// edit changes the policy's spec as a user does.
func (w *world) edit(change func(*v1alpha1.AcceleratorPolicySpec)) {
	w.t.Helper()
	p := w.policy()
	change(&p.Spec)
	p.Generation++
	if err := w.Update(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setState(revision string, state v1alpha1.RevisionState) {
	w.t.Helper()
	r := &v1alpha1.PolicyRevision{}
	if err := w.Get(w.t.Context(), types.NamespacedName{Name: revision}, r); err != nil {
		w.t.Fatal(err)
	}
	r.Spec.State = state
	if err := w.Update(w.t.Context(), r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) templates() []string {
	w.t.Helper()
	var list resourcev1.ResourceClaimTemplateList
	if err := w.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, t := range list.Items {
		names = append(names, t.Namespace+"/"+t.Name)
	}
	slices.Sort(names)
	return names
}

func (w *world) revisions() []string {
	w.t.Helper()
	var list v1alpha1.PolicyRevisionList
	if err := w.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, r := range list.Items {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

func (w *world) requireStatus(active int64, ready metav1.ConditionStatus, reason string) {
	w.t.Helper()
	p := w.policy()
	template := ""
	if active > 0 {
		template = v1alpha1.RevisionName("p", active)
	}
	if p.Status.ActiveRevision != active || p.Status.TemplateName != template {
		w.t.Errorf("revision %d is active with template %q, want %d", p.Status.ActiveRevision, p.Status.TemplateName, active)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, ConditionReady)
	if c == nil || c.Status != ready || c.Reason != reason {
		w.t.Errorf("got condition %+v, want Ready=%s because %s", c, ready, reason)
	}
	if p.Status.ObservedGeneration != p.Generation {
		w.t.Errorf("the status speaks of generation %d, want %d", p.Status.ObservedGeneration, p.Generation)
	}
}

// requireEvent drains the events and wants one with the reason.
func (w *world) requireEvent(reason string) {
	w.t.Helper()
	var seen []string
	for {
		select {
		case e := <-w.events.Events:
			seen = append(seen, e)
			continue
		default:
		}
		break
	}
	if !slices.ContainsFunc(seen, func(e string) bool { return strings.Contains(e, " "+reason+" ") }) {
		w.t.Errorf("no event %s among %q", reason, seen)
	}
}

func requireEqual(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func testPolicy() *v1alpha1.AcceleratorPolicy {
	return &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "policy-uid", Generation: 1},
		Spec:       v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}}},
	}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func addTier(name string) func(*v1alpha1.AcceleratorPolicySpec) {
	return func(s *v1alpha1.AcceleratorPolicySpec) {
		s.Tiers = append(s.Tiers, v1alpha1.Tier{Name: name, Models: []string{strings.ToUpper(name)}})
	}
}

func activate(number int64) func(*v1alpha1.AcceleratorPolicySpec) {
	return func(s *v1alpha1.AcceleratorPolicySpec) { s.ActiveRevision = &number }
}

func TestNewPolicy(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil), namespace("b", nil))
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-1"})
	requireEqual(t, "templates", w.templates(), []string{"a/p-1", "b/p-1"})
	w.requireStatus(1, metav1.ConditionTrue, reasonActive)
	if s := w.policy().Status; s.LatestRevision != 1 || !slices.Equal(s.UsableRevisions, []int64{1}) {
		t.Errorf("latest %d, usable %v, want revision 1", s.LatestRevision, s.UsableRevisions)
	}
	if c := w.policy().Status.Conditions[0]; !c.LastTransitionTime.Time.Equal(start) {
		t.Errorf("became ready at %s, want the clock's %s", c.LastTransitionTime, start)
	}
	var class resourcev1.DeviceClass
	if err := w.Get(t.Context(), types.NamespacedName{Name: v1alpha1.DriverName}, &class); err != nil {
		t.Error(err)
	}
	var template resourcev1.ResourceClaimTemplate
	if err := w.Get(t.Context(), types.NamespacedName{Namespace: "a", Name: "p-1"}, &template); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(&template); owner == nil || owner.Kind != "PolicyRevision" || owner.Name != "p-1" {
		t.Errorf("the template belongs to %+v, want revision p-1", owner)
	}
	var revision v1alpha1.PolicyRevision
	if err := w.Get(t.Context(), types.NamespacedName{Name: "p-1"}, &revision); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(&revision); owner == nil || owner.UID != "policy-uid" {
		t.Errorf("the revision belongs to %+v, want the policy", owner)
	}
	w.requireEvent("RevisionCreated")
	requireEqual(t, "writes of a second round", w.reconcile(), nil)
}

func TestEditAndRollBack(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(addTier("a100"))
	w.reconcile()
	requireEqual(t, "templates", w.templates(), []string{"a/p-1", "a/p-2"})
	w.requireStatus(2, metav1.ConditionTrue, reasonActive)

	w.edit(activate(1))
	requireEqual(t, "writes of a rollback", w.reconcile(), []string{"status AcceleratorPolicy p"})
	w.requireStatus(1, metav1.ConditionTrue, reasonActive)
	w.requireEvent("RevisionActivated")

	w.edit(addTier("l4")) // a new revision, not yet active
	w.reconcile()
	w.requireStatus(1, metav1.ConditionTrue, reasonActive)
	if latest := w.policy().Status.LatestRevision; latest != 3 {
		t.Errorf("got latest revision %d, want 3", latest)
	}
	w.edit(activate(3))
	w.reconcile()
	w.requireStatus(3, metav1.ConditionTrue, reasonActive)
	requireEqual(t, "revisions", w.revisions(), []string{"p-1", "p-2", "p-3"})
}

func TestSameContentIsNoNewRevision(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](1) }) // the default, said out loud
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-1"})

	// Taking an edit back is a new revision: the newest is what the spec says.
	w.edit(addTier("a100"))
	w.reconcile()
	w.edit(func(s *v1alpha1.AcceleratorPolicySpec) { s.Tiers = s.Tiers[:1] })
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-1", "p-2", "p-3"})
	w.requireStatus(3, metav1.ConditionTrue, reasonActive)
}

func TestActiveRevisionIsNotThere(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(activate(7))
	w.reconcile()
	w.requireStatus(0, metav1.ConditionFalse, reasonNotFound)
	w.requireEvent(reasonNotFound)
	requireEqual(t, "templates", w.templates(), []string{"a/p-1"})
}

func TestWithdrawn(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(addTier("a100"))
	w.reconcile()
	w.setState("p-2", v1alpha1.RevisionWithdrawn)
	w.reconcile()
	w.requireStatus(0, metav1.ConditionFalse, reasonWithdrawn)
	requireEqual(t, "templates", w.templates(), []string{"a/p-1"})
	if usable := w.policy().Status.UsableRevisions; !slices.Equal(usable, []int64{1}) {
		t.Errorf("got usable revisions %v, want 1 alone", usable)
	}
	w.edit(activate(1))
	w.reconcile()
	w.requireStatus(1, metav1.ConditionTrue, reasonActive)

	w.setState("p-2", v1alpha1.RevisionUsable)
	w.reconcile()
	requireEqual(t, "templates", w.templates(), []string{"a/p-1", "a/p-2"})
}

func TestInvalidSpecKeepsTheLastRevision(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.Selectors = []string{"device.nonsense"} })
	w.reconcile()
	w.requireStatus(1, metav1.ConditionFalse, reasonInvalid)
	if c := w.policy().Status.Conditions[0]; !strings.Contains(c.Message, "spec.constraints.selectors[0]") {
		t.Errorf("the message does not name the field: %s", c.Message)
	}
	w.requireEvent(reasonInvalid)
	requireEqual(t, "revisions", w.revisions(), []string{"p-1"})

	empty := testPolicy()
	empty.Spec.Tiers = nil
	w = newWorld(t, empty, namespace("a", nil))
	w.reconcile()
	w.requireStatus(0, metav1.ConditionFalse, reasonInvalid)
	requireEqual(t, "revisions", w.revisions(), nil)
}

func TestNamespaces(t *testing.T) {
	policy := testPolicy()
	policy.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"gpu": "yes"}}
	gold, plain := namespace("gold", map[string]string{"gpu": "yes"}), namespace("plain", nil)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gold", Name: "waits", Labels: map[string]string{v1alpha1.LabelPolicy: "p"}},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{
			Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To("p-1"),
		}}},
	}
	w := newWorld(t, policy, gold, plain, pod)
	w.reconcile()
	requireEqual(t, "templates", w.templates(), []string{"gold/p-1"})

	plain.Labels = map[string]string{"gpu": "yes"}
	if err := w.Update(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	requireEqual(t, "templates of two", w.templates(), []string{"gold/p-1", "plain/p-1"})

	// Deselected: the template stays as long as a Pod waits for its claim.
	for _, ns := range []*corev1.Namespace{gold, plain} {
		ns.Labels = nil
		if err := w.Update(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	result, err := w.controller.Reconcile(t.Context(), w.policy())
	if err != nil {
		t.Fatal(err)
	}
	if result.RequeueAfter != recheck {
		t.Errorf("comes back after %s, want %s", result.RequeueAfter, recheck)
	}
	requireEqual(t, "templates while a Pod waits", w.templates(), []string{"gold/p-1"})
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: v1alpha1.ClaimRefName, ResourceClaimName: ptr.To("waits-accelerator-x")}}
	if err := w.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	requireEqual(t, "templates afterwards", w.templates(), nil)
}

func TestPodWaitsForTemplate(t *testing.T) {
	const other = "p-2"
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "nic", ResourceClaimName: ptr.To("p-1")},
			{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To("p-1")},
		}}}
		change(p)
		return p
	}
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want bool
	}{
		{"no claim yet", pod(func(*corev1.Pod) {}), true},
		{"the other claim is there", pod(func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "nic"}}
		}), true},
		{"claim is there", pod(func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: v1alpha1.ClaimRefName}}
		}), false},
		{"done", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), false},
		{"failed", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		{"being deleted", pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }), false},
		{"another revision", pod(func(p *corev1.Pod) { p.Spec.ResourceClaims[1].ResourceClaimTemplateName = ptr.To(other) }), false},
	} {
		if got := waitsFor(test.pod, "p-1"); got != test.want {
			t.Errorf("%s: waits %v, want %v", test.name, got, test.want)
		}
	}
}

func TestTemplateIsRepaired(t *testing.T) {
	foreign := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p-1", UID: "foreign"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "mine", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "any"}}},
		}}},
	}
	w := newWorld(t, testPolicy(), namespace("a", nil), foreign)
	w.reconcile()
	key := types.NamespacedName{Namespace: "a", Name: "p-1"}
	get := func() *resourcev1.ResourceClaimTemplate {
		var template resourcev1.ResourceClaimTemplate
		if err := w.Get(t.Context(), key, &template); err != nil {
			t.Fatal(err)
		}
		return &template
	}
	good := get()
	if good.Spec.Spec.Devices.Requests[0].Name != v1alpha1.RequestName {
		t.Error("a template that was in the way with other content was not replaced")
	}
	w.requireEvent("TemplateReplaced")

	bad := good.DeepCopy()
	bad.Labels = map[string]string{v1alpha1.LabelPolicy: "p", "kept": "yes"}
	bad.Annotations, bad.OwnerReferences = nil, nil
	if err := w.Update(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	requireEqual(t, "writes", w.reconcile(), []string{"update ResourceClaimTemplate a/p-1"})
	mended := get()
	if mended.Labels[v1alpha1.LabelPolicyRevision] != "1" || mended.Labels["kept"] != "yes" ||
		mended.Annotations[compile.AnnotationPolicyHash] == "" || metav1.GetControllerOf(mended) == nil {
		t.Errorf("not mended: %+v", mended.ObjectMeta)
	}
	if err := w.Delete(t.Context(), mended); err != nil {
		t.Fatal(err)
	}
	requireEqual(t, "writes after deletion", w.reconcile(), []string{"create ResourceClaimTemplate a/p-1"})
}

// A template that is in the way and being deleted is waited for, without a
// deletion and an Event each time.
func TestTemplateThatFinalizersHold(t *testing.T) {
	foreign := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p-1", UID: "foreign", Finalizers: []string{"example.com/hold"}},
	}
	w := newWorld(t, testPolicy(), namespace("a", nil), foreign)
	if err := w.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	for range 3 {
		w.writes = nil
		w.clock.SetTime(w.clock.Now().Add(recheck))
		result, err := w.controller.Reconcile(t.Context(), w.policy())
		if err != nil {
			t.Fatal(err)
		}
		requireEqual(t, "writes", w.writes, nil)
		if result.RequeueAfter != recheck {
			t.Errorf("comes back after %s, want %s", result.RequeueAfter, recheck)
		}
	}
	w.requireStatus(1, metav1.ConditionFalse, reasonTemplateRefused)
	for len(w.events.Events) > 0 {
		if e := <-w.events.Events; strings.Contains(e, "TemplateReplaced") {
			t.Errorf("said %q", e)
		}
	}
	held := &resourcev1.ResourceClaimTemplate{}
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(foreign), held); err != nil {
		t.Fatal(err)
	}
	held.Finalizers = nil
	if err := w.Update(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	requireEqual(t, "templates", w.templates(), []string{"a/p-1"})
	w.requireStatus(1, metav1.ConditionTrue, reasonActive)
}

func TestDeviceClassIsRepaired(t *testing.T) {
	w := newWorld(t, testPolicy())
	w.reconcile()
	class := compile.DeviceClass(v1alpha1.DriverName)
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(class), class); err != nil {
		t.Fatal(err)
	}
	class.Spec.Selectors[0].CEL.Expression = "true"
	if err := w.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	requireEqual(t, "writes", w.reconcile(), []string{"update DeviceClass gpu.gpuladder.dev"})
}

// TestNumbersAreNeverGivenTwice: claims and records name them.
func TestNumbersAreNeverGivenTwice(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.edit(addTier("a100"))
	w.reconcile()
	if err := w.Delete(t.Context(), &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-2"}}); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-1", "p-3"})
	w.requireStatus(3, metav1.ConditionTrue, reasonActive)

	// Another policy of the same name: the old revisions are not its own.
	if err := w.Delete(t.Context(), w.policy()); err != nil {
		t.Fatal(err)
	}
	again := testPolicy()
	again.UID = "another-uid"
	if err := w.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-1", "p-3", "p-4"})
	w.requireStatus(4, metav1.ConditionTrue, reasonActive)
	if usable := w.policy().Status.UsableRevisions; !slices.Equal(usable, []int64{4}) {
		t.Errorf("got usable revisions %v, want 4 alone", usable)
	}
}

func TestRevisionsFromABackupAreAdopted(t *testing.T) {
	revision, err := compile.Revision(testPolicy(), 5)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, testPolicy(), namespace("a", nil), revision)
	w.reconcile()
	requireEqual(t, "revisions", w.revisions(), []string{"p-5"})
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(revision), revision); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(revision); owner == nil || owner.UID != "policy-uid" {
		t.Errorf("the revision belongs to %+v, want the policy", owner)
	}
}

// TestStaleCache: the status is known already, the revision not yet.
func TestStaleCache(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.stale = func(list client.ObjectList) bool {
		_, ok := list.(*v1alpha1.PolicyRevisionList)
		return ok
	}
	requireEqual(t, "writes", w.reconcile(), nil)
	requireEqual(t, "revisions", w.revisions(), []string{"p-1"})
}

// TestCrashAnywhere stops the controller at each of its writes in turn, and
// lets it go on: the end is always the same.
func TestCrashAnywhere(t *testing.T) {
	crash := errors.New("crashed")
	for at := 0; ; at++ {
		w := newWorld(t, testPolicy(), namespace("a", nil), namespace("b", nil))
		count, crashed := 0, false
		w.fail = func(string, client.Object) error {
			if crashed = crashed || count == at; crashed {
				return crash
			}
			count++
			return nil
		}
		_, err := w.controller.Reconcile(t.Context(), w.policy())
		if !crashed {
			if at < 5 { // class, revision, two templates, status
				t.Errorf("only %d writes were tried", at)
			}
			break
		}
		if !errors.Is(err, crash) {
			t.Fatalf("crash at write %d: got error %v", at, err)
		}
		w.fail = nil
		w.reconcile()
		requireEqual(t, fmt.Sprintf("revisions, crash at %d", at), w.revisions(), []string{"p-1"})
		requireEqual(t, fmt.Sprintf("templates, crash at %d", at), w.templates(), []string{"a/p-1", "b/p-1"})
		w.requireStatus(1, metav1.ConditionTrue, reasonActive)
		requireEqual(t, "writes of a last round", w.reconcile(), nil)
	}
}

func TestErrors(t *testing.T) {
	templates := resourcev1.Resource("resourceclaimtemplates")
	for _, test := range []struct {
		name   string
		err    error
		failed bool
		reason string
	}{
		{"refused", apierrors.NewForbidden(templates, "p-1", errors.New("no")), true, reasonTemplateRefused},
		{"namespace gone", apierrors.NewNotFound(corev1.Resource("namespaces"), "a"), false, reasonActive},
		{"no such API", apierrors.NewNotFound(templates, ""), true, reasonTemplateRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, testPolicy(), namespace("a", nil), namespace("b", nil))
			w.fail = func(verb string, o client.Object) error {
				if _, ok := o.(*resourcev1.ResourceClaimTemplate); ok && o.GetNamespace() == "a" {
					return test.err
				}
				return nil
			}
			_, err := w.controller.Reconcile(t.Context(), w.policy())
			if (err != nil) != test.failed {
				t.Errorf("got error %v", err)
			}
			requireEqual(t, "templates elsewhere", w.templates(), []string{"b/p-1"})
			status := metav1.ConditionTrue
			if test.failed {
				status = metav1.ConditionFalse
			}
			w.requireStatus(1, status, test.reason)
		})
	}
}

func TestConflictIsTriedAgainQuietly(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.fail = func(verb string, o client.Object) error {
		if verb == "status" {
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("acceleratorpolicies").GroupResource(), "p", errors.New("newer"))
		}
		return nil
	}
	result, err := w.controller.Reconcile(t.Context(), w.policy())
	if err != nil || result.RequeueAfter != catchUp {
		t.Errorf("got %+v, %v, want another try after %s", result, err, catchUp)
	}
}

func TestDeletedPolicyIsLeftToTheCollector(t *testing.T) {
	policy := testPolicy()
	policy.Finalizers = []string{"example.com/hold"}
	w := newWorld(t, policy, namespace("a", nil))
	if err := w.Delete(t.Context(), w.policy()); err != nil {
		t.Fatal(err)
	}
	requireEqual(t, "writes", w.reconcile(), nil)
}
