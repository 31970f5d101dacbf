package ladder

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/metrics"
	"gpuladder.dev/ladder/scheduler/outcome"
)

// Bind implements fwk.BindPlugin: the Binding's annotations become the Pod's
// together with its node, so that what was decided can be told even if the
// record is lost. Other Pods are left to the next bind plugin.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	s := searchOf(state)
	if s == nil || s.reserved == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   pod.Namespace,
			Name:        pod.Name,
			UID:         pod.UID,
			Annotations: annotations(s.pod, s.reserved.decision),
		},
		Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if err := p.bind(ctx, binding); err != nil && !p.isBound(ctx, binding) {
		return p.failed(s, s.reserved.decision, classify(fmt.Errorf("binding to node %s, %w", nodeName, err)))
	}
	return nil
}

func (p *Plugin) bind(ctx context.Context, binding *corev1.Binding) error {
	cacher := p.handle.APICacher()
	if cacher == nil {
		return util.BindPod(ctx, p.handle.ClientSet(), binding)
	}
	done, err := cacher.BindPod(binding)
	if err != nil {
		return err
	}
	return cacher.WaitOnFinish(ctx, done)
}

const (
	// askBoundAgain is how long to wait between two questions whether a Pod was
	// bound, and askBoundFor how long the API server is asked.
	askBoundAgain = 200 * time.Millisecond
	askBoundFor   = 5 * time.Second
)

// isBound says whether the Pod has the node although binding it failed: the
// answer may have been lost. A Pod that runs must not be tried again.
func (p *Plugin) isBound(ctx context.Context, binding *corev1.Binding) (bound bool) {
	ctx = context.WithoutCancel(ctx) // its end may be why there was no answer
	_ = wait.PollUntilContextTimeout(ctx, askBoundAgain, askBoundFor, true, func(ctx context.Context) (bool, error) {
		pod, err := p.handle.ClientSet().CoreV1().Pods(binding.Namespace).Get(ctx, binding.Name, metav1.GetOptions{})
		bound = err == nil && pod.UID == binding.UID && pod.Spec.NodeName == binding.Target.Name
		return err == nil || apierrors.IsNotFound(err), nil
	})
	return bound
}

// PostBind implements fwk.PostBindPlugin: it tells what the Pod got.
func (p *Plugin) PostBind(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodeName string) {
	s := searchOf(state)
	if s != nil && s.extended.tries() {
		p.boundLast(s, nodeName)
		return
	}
	if s == nil || s.reserved == nil {
		return
	}
	p.core.waiting.forget(s.pod.UID)
	if s.plan != nil {
		p.core.groups.forget(s.plan.key)
	}
	d := s.reserved.decision
	metrics.Requests.WithLabelValues(string(d.Outcome), d.Policy, d.Tier, models(d)).Inc()
	if d.TierIndex != nil && *d.TierIndex > 0 && len(d.Tiers) > 0 {
		metrics.Fallbacks.WithLabelValues(d.Policy, d.Tiers[0].Name, d.Tier).Inc()
	}
	p.core.publisher.Publish(outcome.OfDecision(s.pod, d), p.handle.EventRecorder())
}

func annotations(pod *corev1.Pod, d *decide.Decision) map[string]string {
	result := map[string]string{}
	set := func(name, value string) {
		if value != "" {
			result[name] = value
		}
	}
	if d.PolicyRevision != 0 {
		set(v1alpha1.AnnotationRevision, strconv.FormatInt(d.PolicyRevision, 10))
	}
	set(v1alpha1.AnnotationTier, d.Tier)
	set(v1alpha1.AnnotationModel, models(d))
	set(v1alpha1.AnnotationDigest, d.InputDigest)
	set(v1alpha1.AnnotationRecord, outcome.OfDecision(pod, d).Record())
	return result
}

// models returns the models of the devices, each once, in the order of the
// devices.
func models(d *decide.Decision) string {
	var result []string
	seen := map[string]bool{}
	for _, device := range d.Devices {
		if device.Model != "" && !seen[device.Model] {
			seen[device.Model] = true
			result = append(result, device.Model)
		}
	}
	return strings.Join(result, ",")
}
