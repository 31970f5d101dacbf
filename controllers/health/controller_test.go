package health

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

const failedDevice = "gpu.gpuladder.dev/n1/gpu-0 (taint gpu.gpuladder.dev/failed=xid-79:NoExecute)"

func TestHealthyIsLeftAlone(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
	w.requireWrites(first(w.reconcile("train")))
	w.fail("gpu-1") // another's
	w.requireWrites(first(w.reconcile("train")))
	if said := w.said(); len(said) > 0 {
		t.Errorf("said %q", said)
	}
}

func first(writes []string, _ time.Duration) []string { return writes }

// Evict and Keep are Kubernetes' own and nobody's; the Pod is told, once.
func TestEvictAndKeepAreTold(t *testing.T) {
	for _, test := range []struct {
		unhealthy v1alpha1.OnUnhealthy
		words     string
	}{
		{v1alpha1.OnUnhealthy{}, "deleted by taint eviction now (onUnhealthy Evict of policy p, revision 3)"},
		{v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: lasting(time.Minute)}, "deleted by taint eviction at 2026-11-01T12:01:00Z"},
		{v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep}, "the Pod keeps it (onUnhealthy Keep"},
	} {
		t.Run(test.words, func(t *testing.T) {
			w := newWorld(t, test.unhealthy)
			w.fail("gpu-0")
			w.requireWrites(first(w.reconcile("train")), "status train")
			w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, failedDevice, test.words)
			if c := v1alpha1.AcceleratorCondition(w.pod("train")); !c.LastTransitionTime.Time.Equal(start) {
				t.Errorf("the condition changed at %s", c.LastTransitionTime)
			}
			if n := len(w.pod("train").Status.Conditions); n != 2 {
				t.Errorf("the Pod has %d conditions, want the other one kept", n)
			}
			if said := w.said(); len(said) != 1 || !strings.HasPrefix(said[0], "Warning DeviceFailed ") {
				t.Errorf("said %q, want one warning", said)
			}
			w.clock.Step(time.Hour)
			writes, again := w.reconcile("train")
			w.requireWrites(writes)
			if said := w.said(); len(said) > 0 || again != 0 {
				t.Errorf("an hour later said %q, looks again in %s", said, again)
			}
		})
	}
}

func TestRecreate(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
	w.fail("gpu-0")
	w.requireWrites(first(w.reconcile("train")), "status train", "evict train")
	if w.pod("train") != nil {
		t.Error("the Pod is there still")
	}
	w.requireWrites(first(w.reconcile("train")))
}

func TestRecreateAfterTheGrace(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate, GracePeriod: lasting(time.Minute)})
	w.clock.Step(10 * time.Second)
	w.fail("gpu-0")
	writes, again := w.reconcile("train")
	w.requireWrites(writes, "status train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, "evicted at 2026-11-01T12:01:00Z, as disruption budgets allow")
	if again != 50*time.Second {
		t.Errorf("looks again in %s, want 50 s: the grace runs from the failure", again)
	}
	// A controller that starts anew goes on from there.
	w.controller = NewController(w.clock, w.controller.client, w.WithWatch, w.events)
	w.clock.Step(49 * time.Second)
	writes, again = w.reconcile("train")
	w.requireWrites(writes)
	if again != time.Second {
		t.Errorf("looks again in %s, want the second that is left", again)
	}
	w.clock.Step(time.Second)
	w.requireWrites(first(w.reconcile("train")), "evict train")
	if said := w.said(); len(said) != 1 {
		t.Errorf("said %q, want it once", said)
	}
}

// A disruption budget holds the eviction back: it is tried again, ever more
// seldom, and said once.
func TestRecreateKeepsToBudgets(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
	needs := 1
	w.evict = func() error { needs++; return refused(needs) }
	w.fail("gpu-0")
	writes, again := w.reconcile("train")
	w.requireWrites(writes, "status train", "evict train", "status train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, "; held back: The disruption budget train needs 2 healthy pods")
	said := w.said()
	if len(said) != 2 || !strings.HasPrefix(said[1], "Warning EvictionHeldBack ") {
		t.Errorf("said %q", said)
	}
	waits := []time.Duration{again}
	for range 8 {
		w.clock.Step(again)
		writes, again = w.reconcile("train")
		w.requireWrites(writes, "evict train")
		waits = append(waits, again)
	}
	for i, want := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		if waits[i] != time.Duration(want)*time.Second {
			t.Errorf("waits %v", waits)
			break
		}
	}
	// Another controller says nothing again, and tries at once.
	w.controller = NewController(w.clock, w.controller.client, w.WithWatch, w.events)
	w.requireWrites(first(w.reconcile("train")), "evict train")
	if said := w.said(); len(said) > 0 {
		t.Errorf("said again %q", said)
	}
	w.evict = nil
	w.requireWrites(first(w.reconcile("train")), "evict train")
	if w.pod("train") != nil {
		t.Error("the Pod is there still")
	}
	w.reconcile("train")
	if len(w.controller.waits) != 0 {
		t.Errorf("remembers %v of a Pod that is gone", w.controller.waits)
	}
}

func TestErrorsOfTheEviction(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		err   error
		fails bool
		words string // that the Pod says
		again time.Duration
	}{
		"gone":         {apierrors.NewNotFound(pods, "train"), false, "", 0},
		"replaced":     {apierrors.NewConflict(pods, "train", errors.New("uid")), false, "", time.Second},
		"overload":     {apierrors.NewTooManyRequests("slow down", 1), true, "", 0},
		"unreachable":  {errors.New("connection refused"), true, "", 0},
		"two budgets":  {apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")), false, "more than one PodDisruptionBudget", time.Second},
		"other errors": {apierrors.NewInternalError(errors.New("boom")), true, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
			w.fail("gpu-0")
			w.evict = func() error { return test.err }
			result, err := w.controller.Reconcile(t.Context(), request("train"))
			if (err != nil) != test.fails || result.RequeueAfter != test.again {
				t.Errorf("got %v, again in %s", err, result.RequeueAfter)
			}
			w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, test.words)
		})
	}
}

// End gives the Pod a deadline that has passed; the kubelet does the rest.
func TestEnd(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEnd, GracePeriod: lasting(30 * time.Second)})
	w.fail("gpu-0")
	writes, again := w.reconcile("train")
	w.requireWrites(writes, "status train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, "the Pod ends as failed at 2026-11-01T12:00:30Z")
	if again != 30*time.Second || w.pod("train").Spec.ActiveDeadlineSeconds != nil {
		t.Errorf("looks again in %s, with a deadline of %v", again, w.pod("train").Spec.ActiveDeadlineSeconds)
	}
	w.clock.Step(30 * time.Second)
	w.requireWrites(first(w.reconcile("train")), "status train", "patch train")
	p := w.pod("train")
	if got := ptr.Deref(p.Spec.ActiveDeadlineSeconds, 0); got != 3630 {
		t.Errorf("the deadline is %d s after the start, want 3630, which is now", got)
	}
	var target *corev1.PodCondition
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.DisruptionTarget {
			target = &p.Status.Conditions[i]
		}
	}
	if target == nil || target.Status != corev1.ConditionTrue || target.Reason != ReasonDeviceFailed || !strings.Contains(target.Message, failedDevice) {
		t.Errorf("the condition DisruptionTarget is %+v", target)
	}
	w.clock.Step(time.Minute)
	w.requireWrites(first(w.reconcile("train")))
	p.Status.Phase = corev1.PodFailed
	if err := w.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.requireWrites(first(w.reconcile("train")))
}

func TestDeadlines(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   int64
	}{
		"a later one is brought forward": {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](9999) }, 3600},
		"an earlier one stays":           {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](3000) }, 3000},
		"not started":                    {func(p *corev1.Pod) { p.Status.StartTime = nil }, 1},
		"started this moment":            {func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.NewTime(start)) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEnd}, claim("other", "gpu-1"), pod("other", test.change))
			w.fail("gpu-1")
			w.reconcile("other")
			if got := ptr.Deref(w.pod("other").Spec.ActiveDeadlineSeconds, 0); got != test.want {
				t.Errorf("the deadline is %d, want %d", got, test.want)
			}
		})
	}
}

func TestWhoIsNotTouched(t *testing.T) {
	for name, test := range map[string]struct {
		pod   func(*corev1.Pod)
		claim func(*resourcev1.ResourceClaim)
		again time.Duration
	}{
		"finished":       {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"failed already": {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"being deleted": {pod: func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(start)), []string{"x/y"}
		}},
		"another of a name": {pod: func(p *corev1.Pod) { p.UID = "new" }},
		"not bound yet":     {pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, again: bindingSoon},
		"without a policy": {
			pod: func(p *corev1.Pod) {
				p.Labels, p.Spec.NodeName = nil, ""
				p.Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("mine")
			},
			claim: func(c *resourcev1.ResourceClaim) { c.Labels = nil },
		},
		"not a Pod":           {claim: func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].Resource = "others" }},
		"a mere observer":     {claim: func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true) }},
		"no devices any more": {claim: func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }},
		"a device that went":  {claim: func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "gpu-9" }},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := claim("other", "gpu-1"), pod("other")
			if test.pod != nil {
				test.pod(p)
			}
			if test.claim != nil {
				test.claim(c)
			}
			w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}, c, p)
			w.fail("gpu-1")
			writes, again := w.reconcile("other")
			w.requireWrites(writes)
			if again != test.again {
				t.Errorf("looks again in %s, want %s", again, test.again)
			}
		})
	}
}

// All Pods that share a claim are told and evicted, whatever becomes of one.
func TestSharedClaim(t *testing.T) {
	shared := claim("train", "gpu-0")
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}, pod("second"))
	c := &resourcev1.ResourceClaim{}
	if err := w.Get(t.Context(), request("train").NamespacedName, c); err != nil {
		t.Fatal(err)
	}
	c.Status.ReservedFor = append(shared.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: "pod-second"})
	if err := w.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.fail("gpu-0")
	w.evict = func() error {
		if w.writes[len(w.writes)-1] == "evict train" {
			return refused(1)
		}
		return nil
	}
	writes, again := w.reconcile("train")
	w.requireWrites(writes, "status train", "evict train", "status train", "status second", "evict second")
	if again != time.Second || w.pod("train") == nil || w.pod("second") != nil {
		t.Errorf("looks again in %s", again)
	}
}

// A device that is well again takes the word back, also where that happened
// while no controller ran.
func TestRecovery(t *testing.T) {
	for name, restart := range map[string]bool{"seen": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})
			w.fail("gpu-0")
			w.reconcile("train")
			w.said()
			w.fail()
			if restart {
				w.controller = NewController(w.clock, w.controller.client, w.WithWatch, w.events)
				requests, err := w.controller.unfinished(t.Context())
				if err != nil || len(requests) != 1 || requests[0] != request("train") {
					t.Fatalf("found %v, %v", requests, err)
				}
			}
			w.clock.Step(time.Minute)
			w.requireWrites(first(w.reconcile("train")), "status train")
			w.requireCondition("train", corev1.ConditionTrue, "Allocated", "H100 (tier h100, revision 3): n1/n1/gpu-0")
			if said := w.said(); len(said) != 1 || !strings.HasPrefix(said[0], "Normal DeviceRecovered ") {
				t.Errorf("said %q", said)
			}
			w.requireWrites(first(w.reconcile("train")))
			if len(w.controller.told) != 0 {
				t.Errorf("still remembers %v", w.controller.told)
			}
		})
	}
}

func TestRevisionThatIsGone(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate})
	if err := w.Delete(t.Context(), &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-3"}}); err != nil {
		t.Fatal(err)
	}
	w.fail("gpu-0")
	w.requireWrites(first(w.reconcile("train")), "status train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, "nothing is done, since revision 3 of policy p is gone")
}

// The Pod's own revision counts, not the newest.
func TestThePodsRevisionCounts(t *testing.T) {
	newer := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "p-4"}}
	newer.Spec = v1alpha1.PolicyRevisionSpec{Policy: "p", Revision: 4, PolicySpec: v1alpha1.AcceleratorPolicySpec{OnUnhealthy: v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}}}
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep}, newer)
	w.fail("gpu-0")
	w.requireWrites(first(w.reconcile("train")), "status train")
}

// What stands on a claim its owner may change: the Pod says which policy it follows.
func TestThePodsPolicyCounts(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"labels are gone": nil, "labels of another": {v1alpha1.LabelPolicy: "q", v1alpha1.LabelPolicyRevision: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := claim("other", "gpu-1")
			c.Labels = labels
			w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}, c, pod("other"))
			if !claimChanged().Create(event.CreateEvent{Object: c}) || len(w.controller.claimsOfSlice(t.Context(), slice(1))) != 2 {
				t.Error("nothing looks at the claim")
			}
			w.fail("gpu-1")
			w.requireWrites(first(w.reconcile("other")), "status other", "evict other")
		})
	}
}

// A policy that was deleted and made again begins with revision 1 anew, which is not
// the one that Pods from before follow.
func TestPolicyMadeAgain(t *testing.T) {
	for name, test := range map[string]struct {
		hash string
		want []string
	}{
		"as another": {"sha256:x", []string{"status other"}},
		"as it was":  {"sha256:h", []string{"status other", "evict other"}},
		"not at all": {"", []string{"status other", "evict other"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := claim("other", "gpu-1"), pod("other")
			p.Labels[v1alpha1.LabelPolicy] = "r"
			p.Spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("r-1")
			c.CreationTimestamp = metav1.NewTime(start)
			c.Annotations = map[string]string{compile.AnnotationPolicyHash: "sha256:h"}
			revision := &v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: "r-1", CreationTimestamp: metav1.NewTime(start.Add(time.Hour))}}
			if test.hash == "" {
				revision.CreationTimestamp = metav1.NewTime(start)
			}
			revision.Spec = v1alpha1.PolicyRevisionSpec{
				Policy: "r", Revision: 1, Hash: test.hash,
				PolicySpec: v1alpha1.AcceleratorPolicySpec{OnUnhealthy: v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}},
			}
			w := newWorld(t, v1alpha1.OnUnhealthy{}, c, p, revision)
			w.fail("gpu-1")
			w.requireWrites(first(w.reconcile("other")), test.want...)
			if len(test.want) == 1 {
				w.requireCondition("other", corev1.ConditionFalse, ReasonDeviceFailed, "nothing is done, since revision 1 of policy r is gone")
			}
		})
	}
}

func TestAClaimThatIsGoneIsForgotten(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})
	w.fail("gpu-0")
	w.reconcile("train")
	if err := w.Delete(t.Context(), claim("train")); err != nil {
		t.Fatal(err)
	}
	w.requireWrites(first(w.reconcile("train")))
	if len(w.controller.told) != 0 {
		t.Errorf("still remembers %v", w.controller.told)
	}
}
