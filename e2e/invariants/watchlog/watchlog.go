// Package watchlog follows the objects of a cluster by watching them. It keeps
// every change of what a history can hold as an [invariants.History], and
// the newest state of all that it follows, and it tells when something changed: so
// a test waits for events instead of asking again and again, and what it waited
// through is judged afterwards.
package watchlog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Log is a running record. Its methods may be called from several goroutines.
// Objects that it returns belong to it and are not to be changed.
type Log struct {
	client client.WithWatch
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	history invariants.History
	state   map[schema.GroupVersionKind]map[client.ObjectKey]client.Object
	changed chan struct{}
}

// Start lists the objects of each kind and goes on watching them until Stop.
// Kinds are given by their lists: &corev1.PodList{}.
func Start(ctx context.Context, c client.WithWatch, kinds ...client.ObjectList) (*Log, error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Log{client: c, stop: stop, state: map[schema.GroupVersionKind]map[client.ObjectKey]client.Object{}, changed: make(chan struct{})}
	for _, kind := range kinds {
		gvk, err := gvkOf(c, kind)
		if err != nil {
			stop()
			return nil, err
		}
		l.state[gvk] = map[client.ObjectKey]client.Object{}
	}
	for _, kind := range kinds {
		version, err := l.list(ctx, kind)
		if err != nil {
			l.Stop()
			return nil, err
		}
		l.done.Go(func() { l.follow(ctx, kind, version) })
	}
	return l, nil
}

// Stop ends the record; what was recorded can still be read.
func (l *Log) Stop() {
	l.stop()
	l.done.Wait()
}

// gvkOf is the kind of a list's items.
func gvkOf(c client.Client, list client.ObjectList) (schema.GroupVersionKind, error) {
	gvk, err := apiutil.GVKForObject(list, c.Scheme())
	if err != nil {
		return gvk, fmt.Errorf("following %T, %w", list, err)
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	return gvk, nil
}

// list brings the state up to date and returns the version to watch from. What
// it finds changed is recorded like any other change.
func (l *Log) list(ctx context.Context, kind client.ObjectList) (string, error) {
	gvk, err := gvkOf(l.client, kind)
	if err != nil {
		return "", err
	}
	now, _ := kind.DeepCopyObject().(client.ObjectList)
	if err := l.client.List(ctx, now); err != nil {
		return "", fmt.Errorf("listing %s, %w", gvk.Kind, err)
	}
	found := map[client.ObjectKey]bool{}
	err = meta.EachListItem(now, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("following %T, it is no object", item)
		}
		key := client.ObjectKeyFromObject(object)
		found[key] = true
		before := l.get(gvk, key)
		switch {
		case before == nil:
			l.record(gvk, watch.Added, object)
		case before.GetResourceVersion() != object.GetResourceVersion():
			l.record(gvk, watch.Modified, object)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, before := range l.all(gvk) {
		if !found[client.ObjectKeyFromObject(before)] {
			l.record(gvk, watch.Deleted, before)
		}
	}
	return now.GetResourceVersion(), nil
}

// follow watches until ctx ends. Where the server no longer has the changes
// since the last one that was seen, it says so in the history and lists again.
func (l *Log) follow(ctx context.Context, kind client.ObjectList, version string) {
	gvk, err := gvkOf(l.client, kind)
	if err != nil {
		return // Start would have failed
	}
	for ctx.Err() == nil {
		reason := l.watch(ctx, gvk, kind, version)
		if ctx.Err() != nil {
			return
		}
		l.Add(invariants.Entry{Gap: fmt.Sprintf("watching %s broke off after version %s: %s", gvk.Kind, version, reason)})
		for {
			if version, err = l.list(ctx, kind); err == nil || ctx.Err() != nil {
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// watch records until the watch can't go on, and says why.
func (l *Log) watch(ctx context.Context, gvk schema.GroupVersionKind, kind client.ObjectList, version string) string {
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &source{l.client, kind})
	if err != nil {
		return err.Error()
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(client.Object)
		if !ok || event.Type == watch.Error {
			return apierrors.FromObject(event.Object).Error()
		}
		l.record(gvk, event.Type, object)
	}
	return "the watch ended"
}

// source opens watches of one kind.
type source struct {
	client client.WithWatch
	kind   client.ObjectList
}

var _ cache.WatcherWithContext = &source{}

// WatchWithContext implements [cache.WatcherWithContext].
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	list, _ := s.kind.DeepCopyObject().(client.ObjectList)
	return s.client.Watch(ctx, list, &client.ListOptions{Raw: &options})
}

func (l *Log) record(gvk schema.GroupVersionKind, kind watch.EventType, object client.Object) {
	object.GetObjectKind().SetGroupVersionKind(gvk)
	object.SetManagedFields(nil)
	entry := invariants.Entry{Type: kind}
	keep := true
	switch o := object.(type) {
	case *corev1.Pod:
		entry.Pod = o
	case *resourcev1.ResourceClaim:
		entry.Claim = o
	case *resourcev1.ResourceSlice:
		entry.Slice = o
	case *v1alpha1.TenantQuota:
		entry.Quota = o
	case *corev1.Node:
		entry.Node = o
	case *resourcev1.DeviceTaintRule:
		entry.Rule = o
	case *v1alpha1.PolicyRevision:
		entry.Revision = o
	case *v1alpha1.AllocationDecision:
		entry.Record = o
	case *eventsv1.Event:
		entry.Event = o
	default:
		keep = false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(object)
	if kind == watch.Deleted {
		delete(l.state[gvk], key)
	} else {
		l.state[gvk][key] = object
	}
	if keep {
		l.add(entry)
	}
	l.tell()
}

// Add records an observation of the caller's own.
func (l *Log) Add(entry invariants.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(entry)
	l.tell()
}

func (l *Log) add(entry invariants.Entry) {
	entry.At = time.Now().UTC()
	l.history = append(l.history, entry)
}

func (l *Log) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Changed returns a channel that is closed with the next change. Get it before
// looking at the state, so that no change is missed.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// History returns what was recorded until now.
func (l *Log) History() invariants.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.history)
}

// Since returns what was recorded after the first n entries, for those who keep
// up with a long record.
func (l *Log) Since(n int) invariants.History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.history[min(n, len(l.history)):])
}

func (l *Log) get(gvk schema.GroupVersionKind, key client.ObjectKey) client.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state[gvk][key]
}

// all returns the objects of a kind, by namespace and name.
func (l *Log) all(gvk schema.GroupVersionKind) []client.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.state[gvk]), func(a, b client.Object) int {
		return slices.Compare([]string{a.GetNamespace(), a.GetName()}, []string{b.GetNamespace(), b.GetName()})
	})
}

// Get returns an object as it is known now, or nil.
func Get[T client.Object](l *Log, key client.ObjectKey) T {
	var none T
	for gvk := range l.state { // the kinds do not change after Start
		if object, ok := l.get(gvk, key).(T); ok {
			return object
		}
	}
	return none
}

// List returns the objects of a kind as they are known now, by namespace and
// name; of one namespace, or with "" of all.
func List[T client.Object](l *Log, namespace string) []T {
	var found []T
	for gvk := range l.state {
		for _, object := range l.all(gvk) {
			typed, ok := object.(T)
			if !ok {
				break // another kind
			}
			if namespace == "" || object.GetNamespace() == namespace {
				found = append(found, typed)
			}
		}
	}
	return found
}

// Await returns when done says so, asking again with each change; its last
// words are part of the error when the time is up.
func (l *Log) Await(ctx context.Context, within time.Duration, what string, done func() (ok bool, state string)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		changed := l.Changed()
		ok, state := done()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s within %s, %w; at last: %s", what, within, ctx.Err(), state)
		}
	}
}
