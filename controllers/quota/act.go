package quota

// Carrying out what the engine asks for. What fails is tried again until it is
// done or pointless; until then the engine takes it as done, so that the
// devices in question go to nobody else.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/tenants"
)

const (
	// parallel is how many requests are made at once.
	parallel = 16
	// patience is how long one may take.
	patience = 10 * time.Second
	// firstBackoff doubles with each failure up to lastBackoff.
	firstBackoff, lastBackoff = time.Second, 30 * time.Second
	// refusals is how often a request may be refused before it is given up: about
	// a minute.
	refusals = 7
	// failures is how often one may fail by an answer that does not say whether
	// another attempt could help: about three minutes.
	failures = 11
	// pause is how long a Pod whose gate can't be opened is left alone.
	pause = time.Minute
	// spare is how long a Pod that can't be evicted is left alone.
	spare = 10 * time.Minute
)

// task is an action that is to be carried out.
type task struct {
	fair.Action
	pod      *corev1.Pod
	says     map[string]string // annotations that are written with an opening
	order    int64
	due      time.Time
	refused  int // times, by an answer that another attempt may not change
	failed   int // times, by one that says nothing about that
	attempts int
	err      error
}

// plan takes an action up. The last one about a Pod counts.
func (c *Controller) plan(ctx context.Context, now time.Time, a fair.Action) {
	logger := log.FromContext(ctx)
	pod := c.mirror.Pod(a.ID)
	if pod == nil {
		return // gone meanwhile; the next round tells the engine
	}
	if a.Kind == fair.Widen { // say takes the annotation off
		c.event(pod, corev1.EventTypeNormal, "QuotaTurnWidened", "Open", "the devices that its turn was for are gone, so it may use any model that its policy takes")
		return
	}
	if a.Kind == fair.Evict && !c.mirror.Torn(a.ID) {
		for _, fellow := range c.mirror.Fellows(a.ID) {
			switch known := c.tasks[fellow]; {
			case known == nil:
			case known.Kind == fair.Notice:
				// Nobody is evicted who could not be told before.
				logger.Info("Reclaim withdrawn: the Pod could not be told", "pod", fellow, "reason", known.err)
				c.withdraw(ctx, now, a)
				return
			case known.Kind == fair.Cancel:
				return // withdrawn with another of its gang
			}
		}
	}
	c.planned++
	c.tasks[a.ID] = &task{Action: a, pod: pod, order: c.planned, due: now}
	logger.V(2).Info("Planned", "action", a.Kind.String(), "pod", a.ID, "tenant", a.Tenant)
}

// carryOut makes the requests that are due, and returns when the next one is.
func (c *Controller) carryOut(ctx context.Context, now time.Time) (time.Time, bool) {
	var due []*task
	for _, id := range slices.Sorted(maps.Keys(c.tasks)) {
		t := c.tasks[id]
		if pod := c.mirror.Pod(id); pod == nil {
			delete(c.tasks, id)
			continue
		} else {
			t.pod = pod
		}
		if !now.Before(t.due) {
			t.says = c.mirror.OpeningOf(t.Action)
			due = append(due, t)
		}
	}
	slices.SortFunc(due, func(a, b *task) int { return cmp.Compare(a.order, b.order) })
	sideBySide(ctx, due, func(ctx context.Context, t *task) { t.err = c.request(ctx, t) })
	// What was done first: a gang of which a Pod is evicted is not spared.
	slices.SortStableFunc(due, func(a, b *task) int { return cmp.Compare(failed(a), failed(b)) })
	for _, t := range due {
		c.settle(ctx, now, t)
	}
	next, ok := time.Time{}, false
	for _, t := range c.tasks {
		if !ok || t.due.Before(next) {
			next, ok = t.due, true
		}
	}
	return next, ok
}

// sideBySide makes requests, not too many at once, and waits for all of them.
func sideBySide[T any](ctx context.Context, list []T, request func(context.Context, T)) {
	var group sync.WaitGroup
	room := make(chan struct{}, parallel)
	for _, one := range list {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			request(ctx, one)
		})
	}
	group.Wait()
}

func failed(t *task) int {
	if t.err != nil {
		return 1
	}
	return 0
}

// request asks the API server for what the task is about.
func (c *Controller) request(ctx context.Context, t *task) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: t.pod.Namespace, Name: t.pod.Name}}
	switch t.Kind {
	case fair.Open:
		patch := openGate(t.pod, t.says)
		if patch == nil {
			return nil // open already
		}
		return c.client.Patch(ctx, pod, client.RawPatch(types.JSONPatchType, patch))
	case fair.Notice:
		return c.client.Patch(ctx, pod, annotate(t.pod.UID, map[string]any{
			v1alpha1.AnnotationReclaimDeadline: t.Deadline.UTC().Format(time.RFC3339Nano), v1alpha1.AnnotationReclaimFor: string(tenants.UIDOf(t.For)),
		}))
	case fair.Cancel:
		return c.client.Patch(ctx, pod, annotate(t.pod.UID, map[string]any{v1alpha1.AnnotationReclaimDeadline: nil, v1alpha1.AnnotationReclaimFor: nil}))
	case fair.Evict:
		return c.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: t.pod.Namespace, Name: t.pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &t.pod.UID}, GracePeriodSeconds: c.graceOf(t.pod)},
		})
	}
	return fmt.Errorf("carrying out %v, unknown action", t.Kind)
}

// graceOf is the time that a Pod gets to end, where it asks for more than those
// have to wait to whom its devices are guaranteed; nil: what it asks for.
func (c *Controller) graceOf(pod *corev1.Pod) *int64 {
	most := int64(c.maxGrace / time.Second)
	if ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0) <= most {
		return nil
	}
	return &most
}

// say writes on Pods what is not for a task of its own, so that it outlives this
// process: what those at their gates go on with of Pods that were evicted, and that
// others may use any model again. It returns when to try again what failed.
func (c *Controller) say(ctx context.Context, now time.Time) (next time.Time, again bool) {
	type words struct {
		pod   *corev1.Pod
		patch client.Patch
	}
	var due []words
	said := map[string]time.Time{}
	unsaid := c.mirror.Unsaid()
	for _, id := range slices.Sorted(maps.Keys(unsaid)) {
		said[id] = c.said[id]
		if !now.Before(said[id]) {
			said[id] = now.Add(lastBackoff) // the watch shows it long before
			pod := c.mirror.Pod(id)
			due = append(due, words{pod, annotate(pod.UID, unsaid[id])})
		}
		if !again || said[id].Before(next) {
			next, again = said[id], true
		}
	}
	c.said = said
	sideBySide(ctx, due, func(request context.Context, w words) {
		err := c.client.Patch(request, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pod.Namespace, Name: w.pod.Name}}, w.patch)
		if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("Failed, tried again", "action", "say what holds for a Pod", "pod", client.ObjectKeyFromObject(w.pod).String(), "err", err.Error())
		}
	})
	return next, again
}

// openGate is the JSON patch that takes the gate off, if the Pod is still this
// one and the gate still where it was, and writes annotations. Nil: there is no
// gate.
func openGate(pod *corev1.Pod, says map[string]string) []byte {
	at := slices.IndexFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.GateQuota })
	if at < 0 {
		return nil
	}
	path := fmt.Sprintf("/spec/schedulingGates/%d", at)
	patch := []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": pod.UID},
		{"op": "test", "path": path + "/name", "value": v1alpha1.GateQuota},
		{"op": "remove", "path": path},
	}
	const annotations = "/metadata/annotations"
	switch {
	case len(says) == 0:
	case len(pod.Annotations) > 0: // as on all that admission made a claim for
		for _, key := range slices.Sorted(maps.Keys(says)) {
			patch = append(patch, map[string]any{"op": "add", "path": annotations + "/" + strings.ReplaceAll(key, "/", "~1"), "value": says[key]})
		}
	default:
		patch = append(patch, map[string]any{"op": "test", "path": annotations, "value": nil},
			map[string]any{"op": "add", "path": annotations, "value": says})
	}
	return encode(patch)
}

// annotate writes annotations, or takes those off that are nil. The UID makes it
// a conflict where the Pod is another one.
func annotate[V any](uid types.UID, annotations map[string]V) client.Patch {
	return client.RawPatch(types.MergePatchType, encode(map[string]any{"metadata": map[string]any{"uid": uid, "annotations": annotations}}))
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers
	}
	return raw
}

// settle follows the answer to a request.
func (c *Controller) settle(ctx context.Context, now time.Time, t *task) {
	switch {
	case c.tasks[t.ID] != t:
		return // withdrawn meanwhile, with another of its gang
	case t.err == nil:
		delete(c.tasks, t.ID)
		if t.Kind == fair.Evict {
			c.mirror.Evicted(t.ID)
		}
		c.tell(now, t)
		return
	case apierrors.IsNotFound(t.err), t.Kind != fair.Open && apierrors.IsConflict(t.err):
		delete(c.tasks, t.ID) // gone, or another one; the watch tells
		return
	case ctx.Err() != nil:
		return
	}
	t.attempts++
	t.due = now.Add(min(firstBackoff<<min(t.attempts-1, 10), lastBackoff))
	switch {
	case apierrors.IsInvalid(t.err), apierrors.IsForbidden(t.err), apierrors.IsBadRequest(t.err), apierrors.IsTooManyRequests(t.err) && t.Kind == fair.Evict:
		t.refused++
	case t.Kind == fair.Evict && answered(t.err), t.Kind == fair.Open && concernsOne(t.err):
		if t.failed++; t.failed >= failures {
			t.refused = refusals
		}
	}
	log.FromContext(ctx).Info("Failed, tried again", "action", t.Kind.String(), "pod", t.ID, "attempts", t.attempts, "err", t.err.Error())
	if t.refused < refusals {
		return
	}
	switch t.Kind {
	case fair.Open:
		delete(c.tasks, t.ID)
		c.mirror.Pause(t.ID, now.Add(pause))
		c.event(t.pod, corev1.EventTypeWarning, "QuotaGateRefused", "Open", "the gate could not be opened: %v", t.err)
	case fair.Evict:
		if c.mirror.Torn(t.ID) {
			return // others of its gang are gone, so it is of no use
		}
		delete(c.tasks, t.ID)
		c.event(t.pod, corev1.EventTypeWarning, "ReclaimRefused", "Evict", "the Pod could not be evicted: %v", t.err)
		c.mirror.Spare(t.ID, now.Add(spare))
		c.withdraw(ctx, now, t.Action)
	case fair.Notice, fair.Cancel: // until the time is up, or the Pod is gone
	}
	c.feed.poke()
}

// answered: the API server had something to say other than that it is busy. Two
// disruption budgets on one Pod are answered as a fault of the server.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsServiceUnavailable(err)
}

// concernsOne: the answer is about the one Pod, so that another's gate may well be
// opened, as where a webhook fails or denies. What is said to everybody, as by a
// server that is busy or has lost its storage, is not.
func concernsOne(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsUnexpectedServerError(err) { // of a proxy, say
		return false
	}
	switch code := status.Status().Code; {
	case code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		return false
	case code < http.StatusInternalServerError:
		return true
	}
	// Storage that fails is answered without a reason.
	return status.Status().Reason == metav1.StatusReasonInternalError || strings.Contains(err.Error(), "admission webhook")
}

// withdraw takes a notice back that could not be carried out, from all Pods of a
// gang.
func (c *Controller) withdraw(ctx context.Context, now time.Time, a fair.Action) {
	if err := c.mirror.Cancelled(now, a.ID); err != nil {
		log.FromContext(ctx).Error(err, "Withdrawing a notice", "pod", a.ID)
	}
	for _, fellow := range c.mirror.Fellows(a.ID) {
		if known := c.tasks[fellow]; known == nil || known.Kind != fair.Open {
			one := a
			one.ID, one.Kind = fellow, fair.Cancel
			c.plan(ctx, now, one)
		}
	}
	c.feed.poke()
}

// tell writes the event and counts what was done.
func (c *Controller) tell(now time.Time, t *task) {
	switch t.Kind {
	case fair.Open:
		if !tenants.HasGate(t.pod) {
			return
		}
		if c.mirror.Quota(t.Tenant) == nil {
			return // nobody's turn
		}
		waited := now.Sub(t.pod.CreationTimestamp.Time)
		gatesOpened.WithLabelValues(t.Tenant).Inc()
		waits.WithLabelValues(t.Tenant).Observe(max(waited, 0).Seconds())
		c.event(t.pod, corev1.EventTypeNormal, "QuotaGateOpened", "Open", "the turn of tenant %s has come after %s", t.Tenant, waited.Round(time.Second))
	case fair.Notice:
		reclaims.WithLabelValues(t.Tenant, "noticed").Inc()
		c.event(t.pod, corev1.EventTypeWarning, "ReclaimNotice", "Notice",
			"borrowed devices are needed by whom they are guaranteed to: the Pod is evicted at %s", t.Deadline.UTC().Format(time.RFC3339))
	case fair.Cancel:
		reclaims.WithLabelValues(t.Tenant, "cancelled").Inc()
		c.event(t.pod, corev1.EventTypeNormal, "ReclaimCancelled", "Notice", "the devices are not needed any more")
	case fair.Evict:
		reclaims.WithLabelValues(t.Tenant, "evicted").Inc()
		c.event(t.pod, corev1.EventTypeWarning, "Reclaimed", "Evict", "evicted: its borrowed devices are taken back")
	}
}

func (c *Controller) event(pod *corev1.Pod, kind, reason, action, note string, args ...any) {
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	c.recorder.Eventf(regarding, nil, kind, reason, action, note, args...)
}
