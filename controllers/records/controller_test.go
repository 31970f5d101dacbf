package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func decision(namespace, pod string, number, hours int) *v1alpha1.AllocationDecision {
	r := recordOf(namespace, pod, number, hours)
	d := &v1alpha1.AllocationDecision{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.key.Namespace, Name: r.key.Name, UID: r.uid, CreationTimestamp: metav1.NewTime(r.created),
	}}
	d.Spec.Outcome = v1alpha1.OutcomePending
	return d
}

func newController(t *testing.T, retention Retention, calls interceptor.Funcs, objects ...client.Object) (*Controller, client.Client, *testclock.FakeClock) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	clk := testclock.NewFakeClock(now)
	return NewController(clk, c, c, retention), c, clk
}

func left(t *testing.T, c client.Client) []string {
	t.Helper()
	list := &v1alpha1.AllocationDecisionList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var result []string
	for i := range list.Items {
		result = append(result, list.Items[i].Namespace+"/"+list.Items[i].Name[:1])
	}
	slices.Sort(result)
	return result
}

func TestRound(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}}
	c, api, clk := newController(t, Retention{MaxAge: 24 * time.Hour}, interceptor.Funcs{}, pod,
		decision("a", "x", 1, 30), decision("a", "x", 2, 40), decision("a", "y", 3, 30), decision("b", "z", 4, 1))
	removed, err := c.Round(t.Context())
	if err != nil || removed != 2 {
		t.Fatalf("removed %d, error %v, want 2", removed, err)
	}
	if got, want := left(t, api), []string{"a/x", "b/z"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	clk.Step(24 * time.Hour)
	if err := api.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if removed, err := c.Round(t.Context()); err != nil || removed != 2 {
		t.Errorf("removed %d, error %v, want the other 2 a day later", removed, err)
	}
	if removed, err := c.Round(t.Context()); err != nil || removed != 0 {
		t.Errorf("removed %d, error %v, want nothing", removed, err)
	}
}

// What a Pod has it was given by the record that its Binding named, whichever was
// written last; of a record that was lost, the one that was rebuilt.
func TestRoundKeepsWhatBindingsNamed(t *testing.T) {
	bound := func(name, record string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{v1alpha1.AnnotationRecord: record}}}
	}
	named, rebuilt := decision("a", "x", 1, 30), decision("a", "y", 3, 30)
	rebuilt.Annotations = map[string]string{v1alpha1.AnnotationRebuilt: "y-lost"}
	c, api, _ := newController(t, Retention{MaxAge: 24 * time.Hour}, interceptor.Funcs{}, bound("x", named.Name), bound("y", "y-lost"),
		named, decision("a", "x", 2, 30), rebuilt, decision("a", "y", 4, 30))
	if removed, err := c.Round(t.Context()); err != nil || removed != 2 {
		t.Fatalf("removed %d, error %v, want 2", removed, err)
	}
	for _, kept := range []*v1alpha1.AllocationDecision{named, rebuilt} {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(kept), &v1alpha1.AllocationDecision{}); err != nil {
			t.Errorf("%s: %v", kept.Name, err)
		}
	}
}

// With nothing to remove Pods are not even listed; with no bounds, nothing is.
func TestRoundAsksForNoMoreThanItNeeds(t *testing.T) {
	for name, test := range map[string]struct {
		retention Retention
		lists     int
	}{"bounded": {Retention{MaxPerNamespace: 9}, 1}, "unbounded": {Retention{}, 0}} {
		t.Run(name, func(t *testing.T) {
			lists := 0
			c, _, _ := newController(t, test.retention, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					lists++
					if _, ok := list.(*metav1.PartialObjectMetadataList); !ok {
						t.Errorf("whole objects are listed: %T", list)
					}
					return c.List(ctx, list, opts...)
				},
			}, decision("a", "x", 1, 30))
			if removed, err := c.Round(t.Context()); err != nil || removed != 0 {
				t.Errorf("removed %d, error %v", removed, err)
			}
			if lists != test.lists {
				t.Errorf("%d lists, want %d", lists, test.lists)
			}
		})
	}
}

// One record that can't be removed does not keep the others.
func TestRoundGoesOn(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupName, Resource: "allocationdecisions"}
	for name, test := range map[string]struct {
		err     error
		removed int
		fails   bool
	}{
		"refused":   {apierrors.NewForbidden(resource, "x", errors.New("no")), 1, true},
		"gone":      {apierrors.NewNotFound(resource, "x"), 1, false},
		"no answer": {errors.New("connection refused"), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := newController(t, Retention{MaxAge: time.Hour}, interceptor.Funcs{
				Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
					if obj.GetName()[:1] == "x" {
						return test.err
					}
					return c.Delete(ctx, obj, opts...)
				},
			}, decision("a", "x", 1, 30), decision("a", "y", 2, 30))
			removed, err := c.Round(t.Context())
			if removed != test.removed || (err != nil) != test.fails {
				t.Errorf("removed %d, error %v", removed, err)
			}
		})
	}
}

func TestRoundSaysWhatItCouldNotRead(t *testing.T) {
	c, _, _ := newController(t, Retention{MaxAge: time.Hour}, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return fmt.Errorf("no answer")
		},
	})
	if _, err := c.Round(t.Context()); err == nil {
		t.Error("no error")
	}
}

// A round is made at the start and then every few minutes, until the end.
func TestRun(t *testing.T) {
	rounds := make(chan struct{}, 100)
	c, _, clk := newController(t, Retention{MaxAge: time.Hour}, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			rounds <- struct{}{}
			return c.List(ctx, list, opts...)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.run(ctx) }()
	<-rounds
	clk.Step(interval)
	<-rounds
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
