package soak

// The soak's world: a lab, its fleet and policies.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/drivers/publish"
	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

const (
	namespace = "soak"
	// maintenance is the key of the taints of rules, lost that of drained nodes.
	maintenance = "soak.gpuladder.dev/maintenance"
	lost        = "soak.gpuladder.dev/lost"
	// patience bounds each action. A small machine under load is slow.
	patience = 90 * time.Second
	interval = 250 * time.Millisecond
)

// Fleet is what the soak runs on: some of each of four boards. T4 meets the
// constraints of no policy, so it must stay unused.
func Fleet() *fleet.Fleet {
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: 4, Board: "H100-SXM5-80GB", GPUs: 4},
		fleet.Group{Name: "a100", Nodes: 4, Board: "A100-SXM4-80GB", GPUs: 4},
		fleet.Group{Name: "l4", Nodes: 4, Board: "L4", GPUs: 2},
		fleet.Group{Name: "t4", Nodes: 2, Board: "T4", GPUs: 4},
	)
}

// Places are the nodes of a fleet, for [Plan].
func Places(f *fleet.Fleet) []Place {
	var all []Place
	for i := range f.Groups {
		for n := range f.Groups[i].Nodes {
			all = append(all, Place{Node: f.Groups[i].NodeName(n), Devices: f.Groups[i].GPUs})
		}
	}
	return all
}

// policies have hard constraints that some boards do not meet.
func policies() map[string]v1alpha1.AcceleratorPolicySpec {
	hard := v1alpha1.Constraints{MinMemory: new(resource.MustParse("20Gi")), MinComputeCapability: "8.0", MinDriverVersion: "550.54"}
	large := hard
	large.MinMemory = new(resource.MustParse("40Gi"))
	h100, a100 := v1alpha1.Tier{Name: "h100", Models: []string{"H100"}}, v1alpha1.Tier{Name: "a100", Models: []string{"A100"}}
	return map[string]v1alpha1.AcceleratorPolicySpec{
		"soak-any":    {Constraints: hard, Tiers: []v1alpha1.Tier{h100, a100, {Name: "any"}}},
		"soak-large":  {Constraints: large, Tiers: []v1alpha1.Tier{h100, {Name: "large"}}},
		"soak-pair":   {Constraints: hard, Count: new(int32(2)), Tiers: []v1alpha1.Tier{h100, a100}},
		"soak-spread": {Constraints: hard, Ranking: v1alpha1.RankingSpread, Tiers: []v1alpha1.Tier{a100, {Name: "any"}}},
	}
}

// Policies are the names of the policies, for [Plan].
func Policies() []string {
	var names []string
	for name := range policies() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lab is a lab under soak.
type Lab struct {
	lab    cluster.Cluster
	client client.WithWatch
	kube   kubernetes.Interface
	log    *watchlog.Log
	nodes  map[string]*corev1.Node
	slices map[string][]*resourcev1.ResourceSlice
	// killing is held by one kill at a time.
	killing sync.Mutex
}

var _ World = &Lab{}

// NewLab prepares a lab that is up with [Fleet] and begins to record.
func NewLab(ctx context.Context, l cluster.Cluster, c client.WithWatch, kube kubernetes.Interface) (*Lab, error) {
	w := &Lab{lab: l, client: c, kube: kube, nodes: map[string]*corev1.Node{}, slices: map[string][]*resourcev1.ResourceSlice{}}
	f := Fleet()
	for _, n := range f.Nodes() {
		w.nodes[n.Name] = n
	}
	for _, s := range f.Slices() {
		w.slices[*s.Spec.NodeName] = append(w.slices[*s.Spec.NodeName], s)
	}
	var err error
	w.log, err = watchlog.Start(ctx, c, &corev1.PodList{}, &resourcev1.ResourceClaimList{}, &resourcev1.ResourceSliceList{},
		&corev1.NodeList{}, &resourcev1.DeviceTaintRuleList{}, &v1alpha1.PolicyRevisionList{}, &v1alpha1.AllocationDecisionList{},
		&eventsv1.EventList{})
	if err != nil {
		return nil, err
	}
	if err := w.prepare(ctx); err != nil {
		w.log.Stop()
		return nil, err
	}
	w.log.Add(invariants.Entry{Started: true})
	return w, nil
}

func (w *Lab) prepare(ctx context.Context) error {
	if err := w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return fmt.Errorf("creating namespace %s, %w", namespace, err)
	}
	for name, spec := range policies() {
		p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if err := w.client.Create(ctx, p); err != nil {
			return fmt.Errorf("creating policy %s, %w", name, err)
		}
		if err := workload.WaitUsable(ctx, w.client, name, namespace, patience); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the record.
func (w *Lab) Stop() { w.log.Stop() }

// History is what was recorded.
func (w *Lab) History() invariants.History { return w.log.History() }

// Arrive implements [World].
func (w *Lab) Arrive(ctx context.Context, pod, policy string) error {
	return w.write(ctx, "creating Pod "+pod, func(ctx context.Context) error {
		return ignoring(w.client.Create(ctx, workload.Pod(namespace, pod, policy)), apierrors.IsAlreadyExists)
	})
}

// Depart implements [World].
func (w *Lab) Depart(ctx context.Context, pod string) error {
	return w.delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
}

// Taint implements [World].
func (w *Lab) Taint(ctx context.Context, a Action) error {
	selector := &resourcev1.DeviceTaintSelector{Driver: new(v1alpha1.DriverName), Pool: &a.Pool}
	if a.Device != "" {
		selector.Device = &a.Device
	}
	return w.write(ctx, "creating rule "+a.Name, func(ctx context.Context) error {
		r := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
		r.Spec = resourcev1.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: resourcev1.DeviceTaint{Key: maintenance, Effect: a.Effect}}
		return ignoring(w.client.Create(ctx, r), apierrors.IsAlreadyExists)
	})
}

// Untaint implements [World].
func (w *Lab) Untaint(ctx context.Context, rule string) error {
	return w.delete(ctx, &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: rule}})
}

// Lose implements [World].
func (w *Lab) Lose(ctx context.Context, node string, how Loss) error {
	if how == Removed {
		return w.delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	return w.patchNode(ctx, node, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: lost, Effect: corev1.TaintEffectNoExecute})
	})
}

// Restore implements [World].
func (w *Lab) Restore(ctx context.Context, node string, how Loss) error {
	if how == Drained {
		return w.patchNode(ctx, node, func(n *corev1.Node) {
			n.Spec.Unschedulable = false
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == lost || t.Key == corev1.TaintNodeUnschedulable })
		})
	}
	err := w.write(ctx, "creating node "+node, func(ctx context.Context) error {
		n := w.nodes[node].DeepCopy()
		n.Status.Conditions = nil // kwok says when it is Ready
		return ignoring(w.client.Create(ctx, n), apierrors.IsAlreadyExists)
	})
	if err != nil {
		return err
	}
	// The driver's part of a node that joins.
	return w.write(ctx, "publishing the devices of node "+node, func(ctx context.Context) error {
		_, err := publish.Direct(ctx, w.kube, w.slices[node], publish.Options{Partial: true})
		return err
	})
}

func (w *Lab) patchNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	return w.write(ctx, "changing node "+name, func(ctx context.Context) error {
		n := &corev1.Node{}
		if err := w.client.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		before := n.DeepCopy()
		change(n)
		return w.client.Patch(ctx, n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// Kill implements [World].
func (w *Lab) Kill(ctx context.Context, down time.Duration) error {
	w.killing.Lock()
	defer w.killing.Unlock()
	if err := w.lab.Kill(ctx, lab.LadderScheduler); err != nil {
		return err
	}
	timer := time.NewTimer(down)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	// Noted before: what it tells must not come before it.
	w.log.Add(invariants.Entry{Started: true})
	return w.lab.Restart(context.WithoutCancel(ctx), lab.LadderScheduler)
}

// State implements [World].
func (w *Lab) State() string {
	waiting, bound := 0, 0
	for _, pod := range watchlog.List[*corev1.Pod](w.log, namespace) {
		if pod.Spec.NodeName == "" {
			waiting++
		} else {
			bound++
		}
	}
	return fmt.Sprintf("%d Pods have nodes, %d wait", bound, waiting)
}

// End puts back what is still changed, removes all Pods, and returns when they
// and their claims are gone and what is written late had its time.
func (w *Lab) End(ctx context.Context, late time.Duration) error {
	for _, r := range watchlog.List[*resourcev1.DeviceTaintRule](w.log, "") {
		if err := w.Untaint(ctx, r.Name); err != nil {
			return err
		}
	}
	for name := range w.nodes {
		how := Removed
		if n := watchlog.Get[*corev1.Node](w.log, client.ObjectKey{Name: name}); n != nil {
			if !n.Spec.Unschedulable {
				continue
			}
			how = Drained
		}
		if err := w.Restore(ctx, name, how); err != nil {
			return err
		}
	}
	// Whoever can be served now is, so that records of all are there.
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return workload.Clear(ctx, w.kube, 5*time.Minute, namespace)
}

// write tries until the API server takes it, or says for good that it does not.
func (w *Lab) write(ctx context.Context, what string, try func(context.Context) error) error {
	deadline, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(deadline)
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
			return wrapped(what, err)
		}
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-deadline.Done():
			timer.Stop()
			return wrapped(what, errors.Join(context.Cause(deadline), err))
		}
	}
}

func (w *Lab) delete(ctx context.Context, o client.Object) error {
	return w.write(ctx, "deleting "+o.GetName(), func(ctx context.Context) error {
		return client.IgnoreNotFound(w.client.Delete(ctx, o, client.GracePeriodSeconds(0)))
	})
}

func ignoring(err error, fine func(error) bool) error {
	if fine(err) {
		return nil
	}
	return err
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, %w", what, err)
}

// evicted says whether somebody other than the soak ended the Pod.
func evicted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
}

// Seen is what was observed, counted.
type Seen struct {
	Pods        int `json:"pods"`
	Allocations int `json:"allocations"`
	// ByTier counts Pods that were bound by the place of their tier, and
	// Unnamed those that named no tier.
	ByTier   map[string]int `json:"byTier"`
	Bound    int            `json:"bound"`
	Evicted  int            `json:"evicted"`
	Failures int            `json:"failures"` // Pods that told of a failed attempt
	Records  int            `json:"records"`
	Rebuilt  int            `json:"rebuilt"`
	Events   int            `json:"events"`
	Changes  int            `json:"changes"` // of all that is followed
}

// See counts what a history holds of the soak.
func See(h invariants.History) Seen {
	s := Seen{ByTier: map[string]int{}, Changes: len(h)}
	pods, bound, gone, failed := map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]bool{}, map[types.UID]bool{}
	allocated := map[types.UID]bool{}
	for _, e := range h {
		switch {
		case e.Pod != nil && e.Pod.Namespace == namespace:
			uid := e.Pod.UID
			pods[uid] = true
			if e.Pod.Spec.NodeName != "" && !bound[uid] {
				bound[uid] = true
				s.ByTier[e.Pod.Annotations[v1alpha1.AnnotationTier]]++
			}
			gone[uid] = gone[uid] || evicted(e.Pod)
			failed[uid] = failed[uid] || invariants.FailedAttempts(e.Pod) > 0
		case e.Claim != nil && e.Claim.Namespace == namespace:
			has := e.Claim.Status.Allocation != nil
			if has && !allocated[e.Claim.UID] {
				s.Allocations++
			}
			allocated[e.Claim.UID] = has
		case e.Record != nil && e.Type == "ADDED":
			s.Records++
			if e.Record.Annotations[v1alpha1.AnnotationRebuilt] != "" {
				s.Rebuilt++
			}
		case e.Event != nil && e.Event.Regarding.Namespace == namespace && e.Type == "ADDED":
			s.Events++
		}
	}
	s.Pods, s.Bound = len(pods), len(bound)
	for uid := range pods {
		if gone[uid] {
			s.Evicted++
		}
		if failed[uid] {
			s.Failures++
		}
	}
	return s
}
