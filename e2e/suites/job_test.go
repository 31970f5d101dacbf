//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	jobPolicy = "e2e-job"
	jobPods   = 20
	// jobSlack is how long before a decision a device must have been free to
	// have been passed over.
	jobSlack = invariants.Slack(3 * time.Second)
)

// What I1 says, that no device is in two claims at once, is judged at the end of
// every suite.
func TestJob(t *testing.T) {
	var pods []*corev1.Pod
	suite{
		name: "job", core: true, providers: everywhere,
		describe: "A Job with more Pods at a time than there are devices. As Pods end others get their devices, until all have completed; " +
			"the second tier is for those that come when the first is used up, and with the Job all its claims go.",
	}.then("all Pods complete", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "job.yaml")
		pods = s.completes(ctx, t, s.job(jobPods, len(s.devices("H100"))+len(s.devices("A100"))+2))
		s.never(t, "L4")
	}).then("each with one claim from the policy's template", func(_ context.Context, t *testing.T, s *scene) {
		template := watchlog.Get[*v1alpha1.AcceleratorPolicy](s.log, client.ObjectKey{Name: jobPolicy}).Status.TemplateName
		used := s.claimsUsed()
		for _, pod := range pods {
			refs := pod.Spec.ResourceClaims
			if len(refs) != 1 || refs[0].ResourceClaimTemplateName == nil || *refs[0].ResourceClaimTemplateName != template {
				t.Errorf("Pod %s has the claims %+v, want one from %s", pod.Name, refs, template)
			}
			claims := used[pod.UID]
			if len(claims) != 1 || claims[0].Labels[v1alpha1.LabelPolicy] != jobPolicy {
				t.Errorf("Pod %s has had devices by the claims %v", pod.Name, claims)
			}
			delete(used, pod.UID)
		}
		if len(used) > 0 {
			t.Errorf("others than the Job's %d Pods have had devices: %v", jobPods, used)
		}
	}).then("the first tier is used up before the second", func(ctx context.Context, t *testing.T, s *scene) {
		first, lower := len(s.devices("H100")), 0
		for _, pod := range pods {
			record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
			if record.Tier == "h100" {
				continue
			}
			lower++
			held := rejected(record, "h100", v1alpha1.ReasonInUse) + rejected(record, "h100", v1alpha1.ReasonReserved)
			if record.Tier != "a100" || held != first {
				t.Errorf("Pod %s got tier %s with %d of %d H100 held: %+v", pod.Name, record.Tier, held, first, record.Tiers)
			}
		}
		if lower == 0 || lower == len(pods) {
			t.Errorf("%d of %d Pods got the second tier", lower, len(pods))
		}
		if _, most := s.span("H100", s.begun); most != first {
			t.Errorf("%d of %d H100 were held at the most", most, first)
		}
		report := invariants.FirstChoices(s.ours(), jobSlack)
		if report.Verdict == invariants.Fail || report.Checked < jobPods {
			t.Errorf("want %d allocations judged, %s", jobPods, report.String())
		}
	}).then("the claims go with the Job", func(ctx context.Context, t *testing.T, s *scene) {
		if err := s.deleteJob(ctx); err != nil {
			t.Fatal(err)
		}
		s.await(ctx, t, within.gone, "the Job's Pods and claims to be gone", func() (bool, string) {
			left, claims := watchlog.List[*corev1.Pod](s.log, s.ns), watchlog.List[*resourcev1.ResourceClaim](s.log, s.ns)
			return len(left)+len(claims) == 0, fmt.Sprintf("%d Pods and %d claims are left", len(left), len(claims))
		})
	}).run(t)
}

// job is a Job whose Pods look at their device and end.
func (s *scene) job(completions, parallelism int) *batchv1.Job {
	pod := s.pod("job", jobPolicy)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Command = slices.DeleteFunc(c.Command, func(word string) bool { return word == "--hold" })
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: pod.Name},
		Spec: batchv1.JobSpec{
			Completions: new(int32(completions)), Parallelism: new(int32(parallelism)), BackoffLimit: new(int32),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}
}

// completes creates a Job, waits until it is complete and returns its Pods, none
// of which may have failed.
func (s *scene) completes(ctx context.Context, t *testing.T, job *batchv1.Job) []*corev1.Pod {
	t.Helper()
	s.atEnd(s.deleteJob)
	if err := s.client.Create(ctx, job); err != nil {
		t.Fatalf("creating Job %s, %v", job.Name, err)
	}
	want := int(*job.Spec.Completions)
	var pods []*corev1.Pod
	s.await(ctx, t, within.job, fmt.Sprintf("%d Pods to complete", want), func() (bool, string) {
		pods = watchlog.List[*corev1.Pod](s.log, s.ns)
		phases := map[corev1.PodPhase]int{}
		for _, pod := range pods {
			phases[pod.Status.Phase]++
		}
		return phases[corev1.PodSucceeded] == want, fmt.Sprintf("they are %v", phases)
	})
	if len(pods) != want {
		t.Errorf("the Job has made %d Pods, want %d", len(pods), want)
	}
	err := workload.WaitFor(ctx, within.decided, "Job "+job.Name+" to be complete", func(ctx context.Context) (bool, string, error) {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return again(err)
		}
		done := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		})
		return done, fmt.Sprintf("%+v", job.Status), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// deleteJob deletes the suite's Job; its Pods follow.
func (s *scene) deleteJob(ctx context.Context) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "job"}}
	err := s.client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Job %s, %w", job.Name, err)
	}
	return nil
}

// claimsUsed are the claims of the namespace that have ever had devices, by the
// UID of the Pod that each was made for. There are more: for a Pod that has ended
// and whose claim is gone Kubernetes makes another one now and then, and removes
// it unused.
func (s *scene) claimsUsed() map[types.UID][]*resourcev1.ResourceClaim {
	used, seen := map[types.UID][]*resourcev1.ResourceClaim{}, map[types.UID]bool{}
	for _, e := range s.log.History()[s.begun:] {
		if e.Claim == nil || e.Claim.Namespace != s.ns || e.Claim.Status.Allocation == nil || seen[e.Claim.UID] {
			continue
		}
		seen[e.Claim.UID] = true
		var owner types.UID
		if ref := metav1.GetControllerOf(e.Claim); ref != nil {
			owner = ref.UID
		}
		used[owner] = append(used[owner], e.Claim)
	}
	return used
}

// ours is the history of the cluster and of the suite's own Pods.
func (s *scene) ours() invariants.History {
	return slices.DeleteFunc(s.log.History(), func(e invariants.Entry) bool {
		switch {
		case e.Pod != nil:
			return e.Pod.Namespace != s.ns
		case e.Claim != nil:
			return e.Claim.Namespace != s.ns
		case e.Record != nil:
			return e.Record.Namespace != s.ns
		}
		return false
	})
}
