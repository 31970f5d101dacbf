// Package workload makes Pods that ask for accelerators and reads back what
// they got, for the demo, the reports and the suites.
package workload

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Pod returns a Pod that asks for a policy; overrides are applied in order.
func Pod(namespace, name, policy string, overrides ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "main", Image: "example.com/workload:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
				}},
			}},
		},
	}
	if policy != "" {
		pod.Labels[v1alpha1.LabelPolicy] = policy
	}
	for _, o := range overrides {
		o(pod)
	}
	return pod
}

// FromTemplate makes the Pod use a ResourceClaimTemplate by hand, without a
// policy's label, under the given scheduler.
func FromTemplate(template, scheduler string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.SchedulerName = scheduler
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: &template}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: v1alpha1.ClaimRefName}}
	}
}

// Placement is what one Pod got, or why it got nothing.
type Placement struct {
	Namespace, Pod, Policy string
	// Node is empty while the Pod has none.
	Node string
	// Devices are pool/device, in the order of the allocation.
	Devices []string
	// Tier is the chosen alternative of the claim's request.
	Tier string
	// Condition is the Pod's accelerator condition, nil while it has none.
	Condition *corev1.PodCondition
}

// Placements returns what the Pods of the namespaces got, sorted by namespace
// and name.
func Placements(ctx context.Context, c client.Client, namespaces ...string) ([]Placement, error) {
	var out []Placement
	for _, ns := range namespaces {
		var pods corev1.PodList
		if err := c.List(ctx, &pods, client.InNamespace(ns)); err != nil {
			return nil, fmt.Errorf("listing Pods of %s, %w", ns, err)
		}
		var claims resourcev1.ResourceClaimList
		if err := c.List(ctx, &claims, client.InNamespace(ns)); err != nil {
			return nil, fmt.Errorf("listing ResourceClaims of %s, %w", ns, err)
		}
		byPod := map[types.UID][]resourcev1.DeviceRequestAllocationResult{}
		for _, claim := range claims.Items {
			if claim.Status.Allocation == nil {
				continue
			}
			for _, r := range claim.Status.ReservedFor {
				byPod[r.UID] = append(byPod[r.UID], claim.Status.Allocation.Devices.Results...)
			}
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			p := Placement{
				Namespace: pod.Namespace, Pod: pod.Name, Policy: pod.Labels[v1alpha1.LabelPolicy],
				Node: pod.Spec.NodeName, Condition: v1alpha1.AcceleratorCondition(pod),
			}
			for _, d := range byPod[pod.UID] {
				p.Devices = append(p.Devices, d.Pool+"/"+d.Device)
				_, p.Tier, _ = strings.Cut(d.Request, "/")
			}
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Namespace != out[j].Namespace {
			return out[i].Namespace < out[j].Namespace
		}
		return out[i].Pod < out[j].Pod
	})
	return out, nil
}

// interval is the wait between two looks.
const interval = 25 * time.Millisecond

// WaitFor polls until done says so; its last words are part of
// the error when the time is up.
func WaitFor(ctx context.Context, timeout time.Duration, what string, done func(context.Context) (ok bool, state string, err error)) error {
	var state string
	err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(ctx context.Context) (bool, error) {
		ok, s, err := done(ctx)
		state = s
		return ok, err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (%s), %w", what, state, err)
	}
	return nil
}

// CreateAdmitted creates the Pod. A policy that has just been written takes a
// moment to reach admission, so a refusal is tried again until the time is up.
func CreateAdmitted(ctx context.Context, c client.Client, pod *corev1.Pod, timeout time.Duration) error {
	return WaitFor(ctx, timeout, "Pod "+pod.Name+" to be admitted", func(ctx context.Context) (bool, string, error) {
		try := pod.DeepCopy()
		refusal := c.Create(ctx, try)
		if refusal == nil {
			*pod = *try
			return true, "", nil
		}
		return false, refusal.Error(), nil
	})
}

// WaitDecided waits until the Pod has a node or the scheduler has said why not.
func WaitDecided(ctx context.Context, c client.Client, pod *corev1.Pod, timeout time.Duration) (*corev1.Pod, error) {
	now := &corev1.Pod{}
	err := WaitFor(ctx, timeout, "a decision on Pod "+pod.Namespace+"/"+pod.Name, func(ctx context.Context) (bool, string, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(pod), now); err != nil {
			return false, "", err
		}
		cond := v1alpha1.AcceleratorCondition(now)
		switch {
		case cond == nil:
			return false, "no condition yet", nil
		case cond.Status == corev1.ConditionTrue:
			return now.Spec.NodeName != "", cond.Message, nil
		default:
			return true, cond.Message, nil
		}
	})
	return now, err
}

// WaitBound waits until the Pod has a node.
func WaitBound(ctx context.Context, c client.Client, pod *corev1.Pod, timeout time.Duration) error {
	return WaitFor(ctx, timeout, "Pod "+pod.Namespace+"/"+pod.Name+" to be bound", func(ctx context.Context) (bool, string, error) {
		now := &corev1.Pod{}
		err := c.Get(ctx, client.ObjectKeyFromObject(pod), now)
		return now.Spec.NodeName != "", string(now.Status.Phase), err
	})
}

// DeleteAll deletes every Pod of the namespaces and waits until the Pods and
// their claims are gone.
func DeleteAll(ctx context.Context, c client.Client, timeout time.Duration, namespaces ...string) error {
	for _, ns := range namespaces {
		if err := c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(ns), client.GracePeriodSeconds(0)); err != nil {
			return fmt.Errorf("deleting Pods of %s, %w", ns, err)
		}
	}
	return WaitFor(ctx, timeout, "Pods and claims to be gone", func(ctx context.Context) (bool, string, error) {
		n, m := 0, 0
		for _, ns := range namespaces {
			var pods corev1.PodList
			if err := c.List(ctx, &pods, client.InNamespace(ns)); err != nil {
				return false, "", err
			}
			var claims resourcev1.ResourceClaimList
			if err := c.List(ctx, &claims, client.InNamespace(ns)); err != nil {
				return false, "", err
			}
			n, m = n+len(pods.Items), m+len(claims.Items)
		}
		return n+m == 0, fmt.Sprintf("%d Pods and %d claims left", n, m), nil
	})
}
