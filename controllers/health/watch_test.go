package health

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func rule(change ...func(*resourcev1.DeviceTaintRule)) *resourcev1.DeviceTaintRule {
	r := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r", Generation: 1}}
	r.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Pool: ptr.To("n1"), Device: ptr.To("gpu-0")}
	r.Spec.Taint = resourcev1.DeviceTaint{Key: v1alpha1.TaintFailed, Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: ptr.To(metav1.NewTime(start))}
	for _, c := range change {
		c(r)
	}
	return r
}

func TestFailureOf(t *testing.T) {
	result := &resourcev1.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: "n1", Device: "gpu-0"}
	later := taints(start.Add(time.Minute))
	tainted := slice(1)
	tainted.Spec.Devices[0].Taints = later
	for name, test := range map[string]struct {
		slices []resourcev1.ResourceSlice
		rules  []resourcev1.DeviceTaintRule
		since  time.Time // zero: well
	}{
		"well":           {slices: []resourcev1.ResourceSlice{*slice(1)}},
		"by the driver":  {slices: []resourcev1.ResourceSlice{*slice(1, "gpu-0")}, since: start},
		"another device": {slices: []resourcev1.ResourceSlice{*slice(1, "gpu-1")}},
		"suspected only": {slices: []resourcev1.ResourceSlice{func() resourcev1.ResourceSlice {
			s := *slice(1, "gpu-0")
			s.Spec.Devices[0].Taints = s.Spec.Devices[0].Taints[:1]
			return s
		}()}},
		"in an older generation":        {slices: []resourcev1.ResourceSlice{*slice(1, "gpu-0"), *slice(2)}},
		"in the newest generation":      {slices: []resourcev1.ResourceSlice{*slice(2, "gpu-0"), *slice(1)}, since: start},
		"while its pool is written":     {slices: []resourcev1.ResourceSlice{*half(2, "gpu-1"), *half(1, "gpu-0", "gpu-0")}, since: start},
		"once its pool is written":      {slices: []resourcev1.ResourceSlice{*half(2, "gpu-1"), *half(2, "gpu-0"), *half(1, "gpu-0", "gpu-0")}},
		"gone from its pool":            {slices: []resourcev1.ResourceSlice{*half(2, "gpu-1"), *half(2, "gpu-2"), *half(1, "gpu-0", "gpu-0")}},
		"by a rule":                     {slices: []resourcev1.ResourceSlice{*slice(1)}, rules: []resourcev1.DeviceTaintRule{*rule()}, since: start},
		"by a rule, the earlier counts": {slices: []resourcev1.ResourceSlice{*tainted}, rules: []resourcev1.DeviceTaintRule{*rule()}, since: start},
		"by the driver, the later":      {slices: []resourcev1.ResourceSlice{*tainted}, since: start.Add(time.Minute)},
		"by a rule for all": {slices: []resourcev1.ResourceSlice{*slice(1)}, since: start, rules: []resourcev1.DeviceTaintRule{*rule(func(r *resourcev1.DeviceTaintRule) {
			r.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{}
		})}},
		"by a rule for none": {slices: []resourcev1.ResourceSlice{*slice(1)}, rules: []resourcev1.DeviceTaintRule{*rule(func(r *resourcev1.DeviceTaintRule) {
			r.Spec.DeviceSelector = nil
		})}},
		"by a rule for another driver": {slices: []resourcev1.ResourceSlice{*slice(1)}, rules: []resourcev1.DeviceTaintRule{*rule(func(r *resourcev1.DeviceTaintRule) {
			r.Spec.DeviceSelector.Driver = ptr.To("other.example")
		})}},
		"a rule with another taint": {slices: []resourcev1.ResourceSlice{*slice(1)}, rules: []resourcev1.DeviceTaintRule{*rule(func(r *resourcev1.DeviceTaintRule) {
			r.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoSchedule
		})}},
		"a device in no slice": {rules: []resourcev1.DeviceTaintRule{*rule()}},
	} {
		t.Run(name, func(t *testing.T) {
			var taint *resourcev1.DeviceTaint
			if device := newest(test.slices, result.Device); device != nil {
				taint = failureOf(result, device, test.rules)
			}
			if taint == nil != test.since.IsZero() {
				t.Fatalf("got %+v", taint)
			}
			if taint != nil && !taint.TimeAdded.Time.Equal(test.since) {
				t.Errorf("failed since %s, want %s", taint.TimeAdded, test.since)
			}
		})
	}
}

// half is one of the two slices of a pool, with one device.
func half(generation int64, device string, failed ...string) *resourcev1.ResourceSlice {
	s := slice(generation, failed...)
	s.Name = "n1-" + device
	s.Spec.Pool.ResourceSliceCount = 2
	for _, d := range s.Spec.Devices {
		if d.Name == device {
			s.Spec.Devices = []resourcev1.Device{d}
			return s
		}
	}
	s.Spec.Devices = []resourcev1.Device{{Name: device}}
	return s
}

// TestSlicesAreWrittenAnew: a failure is not forgotten while the slices of its
// pool are written one after another, and not either while they are gone.
func TestSlicesAreWrittenAnew(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate}, half(1, "gpu-1"))
	w.evict = func() error { return refused(2) }
	failed := &resourcev1.ResourceSlice{}
	if err := w.Get(t.Context(), types.NamespacedName{Name: "n1-1"}, failed); err != nil {
		t.Fatal(err)
	}
	failed.Spec = half(1, "gpu-0", "gpu-0").Spec
	if err := w.Update(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	w.reconcile("train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, failedDevice)
	w.said()

	other := &resourcev1.ResourceSlice{}
	if err := w.Get(t.Context(), types.NamespacedName{Name: "n1-gpu-1"}, other); err != nil {
		t.Fatal(err)
	}
	other.Spec.Pool.Generation = 2
	if err := w.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	writes, again := w.reconcile("train")
	w.requireWrites(writes, "evict train")
	if again <= 0 {
		t.Error("nothing looks at it again")
	}

	if err := w.Delete(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		writes, again = w.reconcile("train")
		w.requireWrites(writes)
		if again <= 0 || again > longestWait {
			t.Errorf("looks for the device again in %s", again)
		}
	}
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, failedDevice)
	if said := w.said(); len(said) > 0 {
		t.Errorf("said %q of a device that nobody knows about", said)
	}

	back := half(2, "gpu-0")
	if err := w.Create(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	writes, again = w.reconcile("train")
	w.requireWrites(writes, "status train")
	if said := w.said(); again != 0 || len(said) != 1 || !strings.HasPrefix(said[0], "Normal DeviceRecovered ") {
		t.Errorf("when it is back and well: said %q, looks again in %s", said, again)
	}
	if len(w.controller.waits) != 0 {
		t.Errorf("remembers %v of a Pod that is well", w.controller.waits)
	}
}

func TestSeveralFailures(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep}, claim("both", "gpu-1", "gpu-0"), pod("both"))
	w.fail("gpu-0", "gpu-1")
	w.reconcile("both")
	w.requireCondition("both", corev1.ConditionFalse, ReasonDeviceFailed, failedDevice+" and 1 more failed: the Pod keeps it")
	w.fail("gpu-1")
	w.said()
	w.requireWrites(first(w.reconcile("both")), "status both")
	if said := w.said(); len(said) != 1 {
		t.Errorf("said %q of a change", said)
	}
}

func TestWhatWakesAClaim(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{}, claim("other", "gpu-1"), func() client.Object {
		c := claim("unused", "gpu-0")
		c.Status.ReservedFor = nil
		return c
	}())
	names := func(requests []reconcile.Request) []string {
		var all []string
		for _, r := range requests {
			all = append(all, r.Name)
		}
		slices.Sort(all)
		return all
	}
	if got := names(w.controller.claimsOfSlice(t.Context(), slice(1))); !slices.Equal(got, []string{"other-accelerator", "train-accelerator"}) {
		t.Errorf("the slice wakes %q", got)
	}
	elsewhere := slice(1)
	elsewhere.Spec.Pool.Name = "n2"
	if got := names(w.controller.claimsOfSlice(t.Context(), elsewhere)); len(got) > 0 {
		t.Errorf("another pool's slice wakes %q", got)
	}
	if got := names(w.controller.claimsOfRule(t.Context(), rule())); !slices.Equal(got, []string{"train-accelerator"}) {
		t.Errorf("the rule wakes %q", got)
	}
	w.fail()
	if err := w.Create(t.Context(), rule()); err != nil {
		t.Fatal(err)
	}
	w.reconcile("train")
	w.requireCondition("train", corev1.ConditionFalse, ReasonDeviceFailed, "taint gpu.gpuladder.dev/failed:NoExecute")
}

func TestPredicates(t *testing.T) {
	before := claim("train", "gpu-0")
	labelled := before.DeepCopy()
	labelled.Labels["x"] = "y"
	reserved := before.DeepCopy()
	reserved.Status.ReservedFor = nil
	other := rule(func(r *resourcev1.DeviceTaintRule) { r.Spec.Taint.Key, r.Generation = "example.com/x", 2 })
	counted := rule(func(r *resourcev1.DeviceTaintRule) {
		r.Status.Conditions = []metav1.Condition{{Type: "EvictionInProgress"}}
	})
	for name, test := range map[string]struct{ got, want bool }{
		"new claim":            {claimChanged().Create(event.CreateEvent{Object: before}), true},
		"new unused claim":     {claimChanged().Create(event.CreateEvent{Object: reserved}), false},
		"labels of a claim":    {claimChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: labelled}), false},
		"consumers of a claim": {claimChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: reserved}), true},
		"claim gone":           {claimChanged().Delete(event.DeleteEvent{Object: before}), true},
		"well slice":           {failuresChanged().Create(event.CreateEvent{Object: slice(1)}), false},
		"failed slice":         {failuresChanged().Create(event.CreateEvent{Object: slice(1, "gpu-0")}), true},
		"same failures":        {failuresChanged().Update(event.UpdateEvent{ObjectOld: slice(1, "gpu-0"), ObjectNew: slice(2, "gpu-0")}), false},
		"a failure":            {failuresChanged().Update(event.UpdateEvent{ObjectOld: slice(1), ObjectNew: slice(1, "gpu-0")}), true},
		"a recovery":           {failuresChanged().Update(event.UpdateEvent{ObjectOld: slice(1, "gpu-0"), ObjectNew: slice(1)}), true},
		"failed slice gone":    {failuresChanged().Delete(event.DeleteEvent{Object: slice(1, "gpu-0")}), true},
		"new rule":             {isFailureRule().Create(event.CreateEvent{Object: rule()}), true},
		"new other rule":       {isFailureRule().Create(event.CreateEvent{Object: other}), false},
		"rule becomes another": {isFailureRule().Update(event.UpdateEvent{ObjectOld: rule(), ObjectNew: other}), true},
		"status of a rule":     {isFailureRule().Update(event.UpdateEvent{ObjectOld: rule(), ObjectNew: counted}), false},
		"rule gone":            {isFailureRule().Delete(event.DeleteEvent{Object: rule()}), true},
	} {
		if test.got != test.want {
			t.Errorf("%s: lets pass %t, want %t", name, test.got, test.want)
		}
	}
}

// What is left from before a restart is found although the API server does not
// answer at first.
func TestResume(t *testing.T) {
	w := newWorld(t, v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})
	w.fail("gpu-0")
	w.reconcile("train")
	asked := make(chan struct{}, 10)
	answers := false
	reader := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			defer func() { asked <- struct{}{} }()
			if !answers {
				answers = true
				return errors.New("no answer")
			}
			return c.List(ctx, list, opts...)
		},
	})
	c := NewController(w.clock, w.controller.client, reader, w.events)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := c.resume(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	<-asked
	for !w.clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	w.clock.Step(resumeAgain)
	<-asked
	got, _ := queue.Get()
	if got != request("train") {
		t.Errorf("queued %v", got)
	}
	if !c.wasTold(got.NamespacedName) {
		t.Error("the claim is not known")
	}
}
