package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// The whole of Ladder in a lab: a label becomes a claim, the claim a device of
// the first tier that has one, and the record says so.
func TestLadderLab(t *testing.T) {
	l := up(t, Options{Fleet: threeNodes()})
	ctx := t.Context()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(l.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "h100-first"},
		Spec: v1alpha1.AcceleratorPolicySpec{
			NamespaceSelector: &metav1.LabelSelector{},
			Tiers: []v1alpha1.Tier{
				{Name: "h100", Models: []string{"H100"}},
				{Name: "l4", Models: []string{"L4"}},
			},
		},
	}
	if err := c.Create(ctx, policy); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(policy), policy)
		return policy.Status.ActiveRevision != 0, err
	})
	if err != nil {
		t.Fatalf("the policy has no revision, %v: %+v", err, policy.Status)
	}

	// Two H100 and two L4 are there: the fifth Pod has to wait.
	want := []string{"h100", "h100", "l4", "l4", ""}
	for i, tier := range want {
		pod := plainPod(fmt.Sprintf("pod-%d", i), "")
		pod.Labels = map[string]string{v1alpha1.LabelPolicy: policy.Name}
		if _, err := l.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if tier == "" {
			pod := waitForPod(t, l.client, pod.Name, func(pod *corev1.Pod) bool { return accelerator(pod) != nil })
			if condition := accelerator(pod); condition.Status == corev1.ConditionTrue || pod.Spec.NodeName != "" {
				t.Errorf("%s is placed without a free device: %+v", pod.Name, condition)
			}
			continue
		}
		placed := waitForPod(t, l.client, pod.Name, running)
		if got := placed.Annotations[v1alpha1.AnnotationTier]; got != tier || !strings.HasPrefix(placed.Spec.NodeName, tier+"-") {
			t.Errorf("%s is on %s with tier %q, want tier %q", pod.Name, placed.Spec.NodeName, got, tier)
		}
	}
	var records v1alpha1.AllocationDecisionList
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		err := c.List(ctx, &records, client.InNamespace("default"))
		return len(records.Items) >= len(want), err
	})
	if err != nil {
		t.Errorf("%d records for %d Pods, %v", len(records.Items), len(want), err)
	}

	t.Run("the scheduler restarts and goes on", func(t *testing.T) {
		if err := l.Kill(ctx, LadderScheduler); err != nil {
			t.Fatal(err)
		}
		if err := l.client.CoreV1().Pods("default").Delete(ctx, "pod-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := l.Restart(ctx, LadderScheduler); err != nil {
			t.Fatal(err)
		}
		pod := waitForPod(t, l.client, "pod-4", running)
		if got := pod.Annotations[v1alpha1.AnnotationTier]; got != "h100" {
			t.Errorf("the Pod that waited got tier %q, the device of tier h100 is free", got)
		}
	})
	t.Run("the journal is written", func(t *testing.T) {
		info, err := os.Stat(l.Journal())
		if err != nil || info.Size() == 0 {
			t.Errorf("journal: %v, %v", info, err)
		}
	})
}

func accelerator(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == v1alpha1.ConditionAccelerator {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
