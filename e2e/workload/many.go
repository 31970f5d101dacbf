package workload

// Many Pods at once: making them, telling when each of them got somewhere, and
// removing them, without looking at all of them again and again.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Bound says whether the Pod has a node.
func Bound(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }

// Told says whether Ladder has said of the Pod what it got, or why nothing.
func Told(pod *corev1.Pod) bool { return v1alpha1.AcceleratorCondition(pod) != nil }

// CreateAll creates Pods, so many at a time.
func CreateAll(ctx context.Context, c kubernetes.Interface, parallel int, pods ...*corev1.Pod) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, pod := range pods {
		group.Go(func() error {
			if _, err := c.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("creating Pod %s/%s, %w", pod.Namespace, pod.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// WaitUsable waits until Pods of a namespace can ask for a policy that was just
// written: its claim template is there, and admission knows of it.
func WaitUsable(ctx context.Context, c client.Client, policy, namespace string, timeout time.Duration) error {
	err := WaitFor(ctx, timeout, "policy "+policy+" to have a template in "+namespace, func(ctx context.Context) (bool, string, error) {
		p := &v1alpha1.AcceleratorPolicy{}
		if err := c.Get(ctx, client.ObjectKey{Name: policy}, p); err != nil || p.Status.TemplateName == "" {
			return false, "it names no template yet", err
		}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: p.Status.TemplateName}, &resourcev1.ResourceClaimTemplate{})
		return err == nil, p.Status.TemplateName + " is not there yet", client.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	return CreateAdmitted(ctx, client.NewDryRunClient(c), Pod(namespace, "probe", policy), timeout)
}

// Tracker follows the Pods of a namespace and remembers when each first was as
// wanted.
type Tracker struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	met     map[string]time.Time
	changed chan struct{}
	err     error
}

// Track begins to follow. Pods that are as wanted already count from now.
func Track(ctx context.Context, c kubernetes.Interface, namespace string, wanted func(*corev1.Pod) bool, now func() time.Time) (*Tracker, error) {
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Pods of %s, %w", namespace, err)
	}
	ctx, stop := context.WithCancel(ctx)
	t := &Tracker{stop: stop, met: map[string]time.Time{}, changed: make(chan struct{})}
	look := func(pod *corev1.Pod) {
		if !wanted(pod) {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, known := t.met[pod.Name]; !known {
			t.met[pod.Name] = now()
			t.tell()
		}
	}
	for i := range list.Items {
		look(&list.Items[i])
	}
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &podSource{c, namespace})
	if err != nil {
		stop()
		return nil, fmt.Errorf("watching Pods of %s, %w", namespace, err)
	}
	t.done.Go(func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			switch object := event.Object.(type) {
			case *corev1.Pod:
				if event.Type != watch.Deleted {
					look(object)
				}
			default:
				t.fail(fmt.Errorf("watching Pods of %s, the API server says %v", namespace, object))
				return
			}
		}
	})
	return t, nil
}

// Stop ends the tracker; what it saw can still be read.
func (t *Tracker) Stop() {
	t.stop()
	t.done.Wait()
}

// Met is when each Pod first was as wanted, by name.
func (t *Tracker) Met() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	met := make(map[string]time.Time, len(t.met))
	for name, at := range t.met {
		met[name] = at
	}
	return met
}

// Wait returns when so many Pods have been as wanted.
func (t *Tracker) Wait(ctx context.Context, count int, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		t.mu.Lock()
		have, err, changed := len(t.met), t.err, t.changed
		t.mu.Unlock()
		switch {
		case have >= count:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d Pods, %d are there, %w", count, have, ctx.Err())
		}
	}
}

func (t *Tracker) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.tell()
}

func (t *Tracker) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// podSource opens watches of the Pods of a namespace.
type podSource struct {
	client    kubernetes.Interface
	namespace string
}

// WatchWithContext implements [k8s.io/client-go/tools/cache.WatcherWithContext].
func (s *podSource) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return s.client.CoreV1().Pods(s.namespace).Watch(ctx, options)
}

// clearInterval is the wait between two looks while many Pods go.
const clearInterval = 500 * time.Millisecond

// Clear deletes every Pod of the namespaces and waits until they and their
// claims are gone. Other than [DeleteAll] it looks at one of them at a time.
func Clear(ctx context.Context, c kubernetes.Interface, timeout time.Duration, namespaces ...string) error {
	left := ""
	err := wait.PollUntilContextTimeout(ctx, clearInterval, timeout, true, func(ctx context.Context) (bool, error) {
		left = ""
		for _, ns := range namespaces {
			one := metav1.ListOptions{Limit: 1}
			pods, err := c.CoreV1().Pods(ns).List(ctx, one)
			if err != nil {
				return false, fmt.Errorf("listing Pods of %s, %w", ns, err)
			}
			if len(pods.Items) > 0 {
				left = "Pods of " + ns + " are left"
				// Many take longer than one request may; the next one goes on.
				if err := c.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}); err != nil {
					left += ", " + err.Error()
				}
				continue
			}
			claims, err := c.ResourceV1().ResourceClaims(ns).List(ctx, one)
			if err != nil {
				return false, fmt.Errorf("listing ResourceClaims of %s, %w", ns, err)
			}
			if len(claims.Items) > 0 {
				left = "claims of " + ns + " are left"
			}
		}
		return left == "", nil
	})
	if err != nil {
		return fmt.Errorf("removing all Pods (%s), %w", left, err)
	}
	return nil
}
