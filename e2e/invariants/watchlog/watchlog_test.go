package watchlog

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func podIn(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func started(t *testing.T, c client.WithWatch, kinds ...client.ObjectList) *Log {
	t.Helper()
	l, err := Start(t.Context(), c, kinds...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	return l
}

// versioned makes the fake client's lists carry a version, as a server's do.
func versioned(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if list.GetResourceVersion() == "" {
				list.SetResourceVersion("1")
			}
			return err
		},
	})
}

// watchable tells of each watch that has begun: the fake client, other than a
// server, has no events of before that.
func watchable(c client.WithWatch) (client.WithWatch, <-chan struct{}) {
	begun := make(chan struct{}, 16)
	return interceptor.NewClient(c, interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			w, err := c.Watch(ctx, list, opts...)
			if err == nil {
				begun <- struct{}{}
			}
			return w, err
		},
	}), begun
}

func await(t *testing.T, l *Log, what string, done func() bool) {
	t.Helper()
	if err := l.Await(t.Context(), 10*time.Second, what, func() (bool, string) { return done(), "not yet" }); err != nil {
		t.Fatal(err)
	}
}

func TestLogFollows(t *testing.T) {
	c, watching := watchable(versioned(fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(podIn("a", "before")).Build()))
	l := started(t, c, &corev1.PodList{}, &resourcev1.ResourceClaimList{}, &corev1.NodeList{})
	for range 3 {
		<-watching
	}
	if got := List[*corev1.Pod](l, ""); len(got) != 1 || got[0].Name != "before" {
		t.Fatalf("at first there is %v", got)
	}
	ctx := t.Context()
	for _, object := range []client.Object{
		podIn("a", "x"), podIn("b", "y"),
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "claim"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
	} {
		if err := c.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	await(t, l, "all of them", func() bool {
		return len(List[*corev1.Pod](l, "a")) == 2 && len(List[*corev1.Pod](l, "")) == 3 &&
			Get[*resourcev1.ResourceClaim](l, client.ObjectKey{Namespace: "a", Name: "claim"}) != nil && len(List[*corev1.Node](l, "")) == 1
	})
	if Get[*corev1.Node](l, client.ObjectKey{Name: "other"}) != nil {
		t.Error("a node that is not there is found")
	}
	if err := c.Delete(ctx, podIn("a", "x")); err != nil {
		t.Fatal(err)
	}
	await(t, l, "the Pod to go", func() bool { return len(List[*corev1.Pod](l, "a")) == 1 })

	var said []string
	for _, e := range l.History() {
		switch {
		case e.Pod != nil:
			said = append(said, string(e.Type)+" "+e.Pod.Name)
		case e.Claim != nil:
			said = append(said, string(e.Type)+" "+e.Claim.Name)
		case e.Node != nil:
			said = append(said, string(e.Type)+" "+e.Node.Name)
		default:
			t.Errorf("unexpected entry %+v", e)
		}
		if e.At.IsZero() {
			t.Error("an entry has no time")
		}
	}
	all := strings.Join(said, ", ")
	for _, want := range []string{"ADDED before", "ADDED x", "ADDED y", "ADDED claim", "ADDED node", "DELETED x"} {
		if !strings.Contains(all, want) {
			t.Errorf("the history lacks %q: %s", want, all)
		}
	}
}

// Quotas are part of the history, and who keeps up with it is told each entry
// once.
func TestLogKeepsQuotas(t *testing.T) {
	kinds := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	c, watching := watchable(versioned(fake.NewClientBuilder().WithScheme(kinds).Build()))
	l := started(t, c, &v1alpha1.TenantQuotaList{})
	<-watching
	var seen []string
	for _, name := range []string{"a", "b"} {
		before := len(seen)
		if err := c.Create(t.Context(), &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
		await(t, l, "quota "+name, func() bool {
			for _, e := range l.Since(len(seen)) {
				seen = append(seen, e.Quota.Name)
			}
			return len(seen) > before
		})
	}
	if strings.Join(seen, " ") != "a b" || len(l.Since(2)) != 0 || len(l.Since(9)) != 0 {
		t.Errorf("seen %q and then %v", seen, l.Since(2))
	}
}

// A watch whose changes the server has forgotten leaves a gap, and the state is
// right again afterwards.
func TestLogSaysWhatItMissed(t *testing.T) {
	var mu sync.Mutex
	var first *watch.FakeWatcher
	inner := versioned(fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(podIn("a", "stays"), podIn("a", "goes")).Build())
	c := interceptor.NewClient(inner, interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = watch.NewFake()
				return first, nil
			}
			return c.Watch(ctx, list, opts...)
		},
	})
	l := started(t, c, &corev1.PodList{})
	await(t, l, "the Pods", func() bool { return len(List[*corev1.Pod](l, "")) == 2 })
	if err := inner.Delete(t.Context(), podIn("a", "goes")); err != nil {
		t.Fatal(err)
	}
	if err := inner.Create(t.Context(), podIn("a", "comes")); err != nil {
		t.Fatal(err)
	}
	expired := apierrors.NewResourceExpired("too old").Status()
	for opened := false; !opened; {
		mu.Lock()
		opened = first != nil
		mu.Unlock()
	}
	first.Error(&expired)
	await(t, l, "the Pods as they are now", func() bool {
		return Get[*corev1.Pod](l, client.ObjectKey{Namespace: "a", Name: "comes"}) != nil && len(List[*corev1.Pod](l, "")) == 2
	})
	gaps, deleted := 0, 0
	for _, e := range l.History() {
		if strings.Contains(e.Gap, "too old") {
			gaps++
		}
		if e.Pod != nil && e.Type == watch.Deleted && e.Pod.Name == "goes" {
			deleted++
		}
	}
	if gaps != 1 || deleted != 1 {
		t.Errorf("%d gaps and %d deletions in %+v", gaps, deleted, l.History())
	}
}

func TestAwaitTellsWhatItLastSaw(t *testing.T) {
	l := started(t, versioned(fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()), &corev1.PodList{})
	err := l.Await(t.Context(), 10*time.Millisecond, "a Pod", func() (bool, string) { return false, "there is none" })
	if err == nil || !strings.Contains(err.Error(), "a Pod") || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("Await = %v", err)
	}
}

func TestUnknownKind(t *testing.T) {
	if _, err := Start(t.Context(), fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), &metav1.PartialObjectMetadataList{}); err == nil {
		t.Error("a kind that the scheme does not know is followed")
	}
}
