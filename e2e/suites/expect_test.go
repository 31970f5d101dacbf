//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Reasons of the condition gpuladder.dev/Accelerator.
const (
	reasonAllocated     = "Allocated"
	reasonPending       = "Pending"
	reasonUnsatisfiable = "Unsatisfiable"
)

// again is the answer of a look that failed: what went wrong is told if it does
// so until the time is up.
func again(err error) (done bool, state string, failed error) { return false, err.Error(), nil }

// describe says how far a Pod is.
func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "it is not there"
	}
	said := fmt.Sprintf("phase %s, node %q", pod.Status.Phase, pod.Spec.NodeName)
	if pod.DeletionTimestamp != nil {
		said += ", being deleted"
	}
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" || c.Type == v1alpha1.ConditionAccelerator {
			said += fmt.Sprintf(", %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			said += fmt.Sprintf(", container %s waits: %s %s", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
		}
		if c.State.Terminated != nil {
			said += fmt.Sprintf(", container %s ended: %s %d", c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode)
		}
	}
	return said
}

// running waits until a Pod runs, has told what it got, and shows its devices.
func (s *scene) running(ctx context.Context, t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return s.runsSaying(ctx, t, name, func(pod *corev1.Pod) bool { return accelerator(pod).Status == corev1.ConditionTrue })
}

// runs waits until a Pod runs and shows its devices, whatever is told of it: of a
// Pod that follows no policy and finds its claim allocated Ladder says nothing.
func (s *scene) runs(ctx context.Context, t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return s.runsSaying(ctx, t, name, func(*corev1.Pod) bool { return true })
}

func (s *scene) runsSaying(ctx context.Context, t *testing.T, name string, said func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	s.await(ctx, t, within.running, "Pod "+name+" to run", func() (bool, string) {
		pod = s.current(name)
		return pod != nil && pod.Status.Phase == corev1.PodRunning && ready(pod) && said(pod) && len(s.held(pod)) > 0, describe(pod)
	})
	if node, ok := s.provider.(nodes); ok {
		if err := s.sight(ctx, node, pod); err != nil {
			t.Fatal(err)
		}
	}
	return pod
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// accelerator is the Pod's condition, empty where it has none.
func accelerator(pod *corev1.Pod) corev1.PodCondition {
	if c := v1alpha1.AcceleratorCondition(pod); c != nil {
		return *c
	}
	return corev1.PodCondition{}
}

// waits waits until the scheduler has said that a Pod gets nothing, for this
// reason, and returns what it said.
func (s *scene) waits(ctx context.Context, t *testing.T, name, reason string, mentions ...string) corev1.PodCondition {
	t.Helper()
	var pod *corev1.Pod
	s.await(ctx, t, within.decided, "Pod "+name+" to be told that it waits: "+reason, func() (bool, string) {
		pod = s.current(name)
		if pod == nil || accelerator(pod).Status != corev1.ConditionFalse || accelerator(pod).Reason != reason {
			return false, describe(pod)
		}
		for _, m := range mentions {
			if !strings.Contains(accelerator(pod).Message, m) {
				return false, fmt.Sprintf("%q is not mentioned: %s", m, describe(pod))
			}
		}
		return true, ""
	})
	if pod.Spec.NodeName != "" {
		t.Fatalf("Pod %s is on node %s, although nothing was to be had", name, pod.Spec.NodeName)
	}
	return accelerator(pod)
}

// claims are the claims of a Pod.
func (s *scene) claims(pod *corev1.Pod) []*resourcev1.ResourceClaim {
	var found []*resourcev1.ResourceClaim
	for _, ref := range pod.Spec.ResourceClaims {
		name := ""
		if ref.ResourceClaimName != nil {
			name = *ref.ResourceClaimName
		}
		for _, made := range pod.Status.ResourceClaimStatuses {
			if made.Name == ref.Name && made.ResourceClaimName != nil {
				name = *made.ResourceClaimName
			}
		}
		if claim := watchlog.Get[*resourcev1.ResourceClaim](s.log, client.ObjectKey{Namespace: pod.Namespace, Name: name}); claim != nil {
			found = append(found, claim)
		}
	}
	return found
}

// held are the devices of a Pod's claims, and must be known from slices.
func (s *scene) held(pod *corev1.Pod) []device {
	var held []device
	for _, claim := range s.claims(pod) {
		key := claim.Namespace + "/" + claim.Name
		for _, d := range s.devices("") {
			if d.claim == key {
				held = append(held, d)
			}
		}
	}
	return held
}

// got checks that a running Pod has so many devices of one model on its node,
// and that everything that tells what it got says the same: the claim, the
// condition, the annotations and the record.
func (s *scene) got(ctx context.Context, t *testing.T, pod *corev1.Pod, model, tier string, count int) []device {
	t.Helper()
	held := s.held(pod)
	if len(held) != count {
		t.Fatalf("Pod %s has the devices %v, want %d", pod.Name, held, count)
	}
	for _, d := range held {
		if d.model != model || d.node != pod.Spec.NodeName {
			t.Errorf("Pod %s on node %s has %s, a %s; want %s of its node", pod.Name, pod.Spec.NodeName, d, d.model, model)
		}
	}
	condition := accelerator(pod)
	for _, part := range []string{model, "tier " + tier, held[0].name} {
		if !strings.Contains(condition.Message, part) {
			t.Errorf("the condition of Pod %s does not say %q: %s", pod.Name, part, condition.Message)
		}
	}
	for name, want := range map[string]string{v1alpha1.AnnotationTier: tier, v1alpha1.AnnotationModel: model} {
		if got := pod.Annotations[name]; got != want {
			t.Errorf("annotation %s of Pod %s is %q, want %q", name, pod.Name, got, want)
		}
	}
	record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
	var recorded, real []string
	for _, d := range record.Devices {
		recorded = append(recorded, d.Pool+"/"+d.Device+" "+d.Model)
	}
	for _, d := range held {
		real = append(real, d.node+"/"+d.name+" "+d.model)
	}
	slices.Sort(recorded)
	slices.Sort(real)
	if record.Tier != tier || record.Node != pod.Spec.NodeName || record.Policy != pod.Labels[v1alpha1.LabelPolicy] || !slices.Equal(recorded, real) {
		t.Errorf("the record of Pod %s says tier %s, node %s, policy %s, devices %v; want %s, %s, %s, %v", pod.Name,
			record.Tier, record.Node, record.Policy, recorded, tier, pod.Spec.NodeName, pod.Labels[v1alpha1.LabelPolicy], real)
	}
	return held
}

// record waits for the newest record of a Pod with this outcome.
func (s *scene) record(ctx context.Context, t *testing.T, pod *corev1.Pod, outcome v1alpha1.Outcome) *v1alpha1.AllocationDecisionSpec {
	t.Helper()
	var found *v1alpha1.AllocationDecisionSpec
	s.await(ctx, t, within.decided, fmt.Sprintf("the record %s of Pod %s", outcome, pod.Name), func() (bool, string) {
		records := s.records(pod)
		for _, r := range records {
			if r.Outcome == outcome {
				found = r
			}
		}
		return found != nil, fmt.Sprintf("it has %d records", len(records))
	})
	return found
}

// records are those of a Pod, oldest first.
func (s *scene) records(pod *corev1.Pod) []*v1alpha1.AllocationDecisionSpec {
	var found []*v1alpha1.AllocationDecisionSpec
	for _, r := range watchlog.List[*v1alpha1.AllocationDecision](s.log, pod.Namespace) {
		if r.Spec.PodUID == pod.UID {
			found = append(found, &r.Spec)
		}
	}
	slices.SortStableFunc(found, func(a, b *v1alpha1.AllocationDecisionSpec) int { return a.DecidedAt.Compare(b.DecidedAt.Time) })
	return found
}

// rejected is how many devices a record counts under a reason in a tier.
func rejected(record *v1alpha1.AllocationDecisionSpec, tier string, reason v1alpha1.Reason) int {
	n := 0
	for _, evidence := range record.Tiers {
		if evidence.Name != tier {
			continue
		}
		for _, r := range evidence.Rejections {
			if r.Code == reason {
				n += int(r.Count)
			}
		}
	}
	return n
}

// wantRejected checks a count of a record.
func wantRejected(t *testing.T, record *v1alpha1.AllocationDecisionSpec, tier string, reason v1alpha1.Reason, want int) {
	t.Helper()
	if got := rejected(record, tier, reason); got != want {
		t.Errorf("the record of Pod %s counts %d devices under %s in tier %s, want %d: %+v", record.Pod, got, reason, tier, want, record.Tiers)
	}
}

// never checks that no claim of the namespace ever had a device of a model.
func (s *scene) never(t *testing.T, model string) {
	t.Helper()
	models := s.models()
	for _, e := range s.log.History() {
		if e.Claim == nil || e.Claim.Namespace != s.ns || e.Claim.Status.Allocation == nil {
			continue
		}
		for _, r := range e.Claim.Status.Allocation.Devices.Results {
			if models[r.Pool+"/"+r.Device] == model {
				t.Errorf("claim %s was given %s/%s, a %s", e.Claim.Name, r.Pool, r.Device, model)
			}
		}
	}
}
