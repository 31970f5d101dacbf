package workload

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster is an API server in memory whose lists have a version, as real ones
// have.
func cluster(pods ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(pods...)
	c.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, err := c.Tracker().List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if pods, ok := list.(*corev1.PodList); ok && pods.ResourceVersion == "" {
			pods.ResourceVersion = "1"
		}
		return true, list, err
	})
	c.PrependReactor("delete-collection", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, err := c.Tracker().List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		for _, pod := range list.(*corev1.PodList).Items {
			err = errors.Join(err, c.Tracker().Delete(action.GetResource(), pod.Namespace, pod.Name))
		}
		return true, nil, err
	})
	return c
}

func numbered(names ...string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, Pod("ns", name, "p", func(p *corev1.Pod) { p.ResourceVersion = "2" }))
	}
	return pods
}

func TestTracker(t *testing.T) {
	there := Pod("ns", "there", "p", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	c := cluster(there)
	at := time.Unix(0, 0)
	tracker, err := Track(t.Context(), c, "ns", Bound, func() time.Time { at = at.Add(time.Second); return at })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracker.Stop)
	if err := tracker.Wait(t.Context(), 1, 10*time.Second); err != nil {
		t.Fatalf("the Pod that is bound already: %v", err)
	}
	// The watch of the fake has only what comes after it was opened.
	err = WaitFor(t.Context(), 10*time.Second, "the watch to be open", func(context.Context) (bool, string, error) {
		for _, action := range c.Actions() {
			if action.GetVerb() == "watch" {
				return true, "", nil
			}
		}
		return false, "not yet", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := CreateAll(t.Context(), c, 2, numbered("a", "b", "c")...); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		pod := Pod("ns", name, "p", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
		pod.ResourceVersion = "3"
		if _, err := c.CoreV1().Pods("ns").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tracker.Wait(t.Context(), 3, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	err = tracker.Wait(t.Context(), 4, 50*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for 4 Pods") {
		t.Errorf("waiting for a Pod that is not bound: %v", err)
	}
	met := tracker.Met()
	if _, bound := met["c"]; bound || len(met) != 3 {
		t.Errorf("met %v, want the Pods with a node", met)
	}
}

func TestCreateAllTellsTheFirstRefusal(t *testing.T) {
	c := cluster()
	c.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no such policy")
	})
	if err := CreateAll(t.Context(), c, 2, numbered("a", "b")...); err == nil || !strings.Contains(err.Error(), "no such policy") {
		t.Errorf("CreateAll = %v", err)
	}
}

func TestClear(t *testing.T) {
	c := cluster()
	if err := CreateAll(t.Context(), c, 2, numbered("a", "b", "c")...); err != nil {
		t.Fatal(err)
	}
	if err := Clear(t.Context(), c, 10*time.Second, "ns"); err != nil {
		t.Fatal(err)
	}
	left, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d Pods are left, %v", len(left.Items), err)
	}
	c = cluster(Pod("ns", "stays", "p"))
	c.PrependReactor("delete-collection", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("not today")
	})
	err = Clear(t.Context(), c, 50*time.Millisecond, "ns")
	if err == nil || !strings.Contains(err.Error(), "Pods of ns are left, not today") {
		t.Errorf("Clear of Pods that stay = %v", err)
	}
}

func TestTold(t *testing.T) {
	pod := Pod("ns", "a", "p")
	if Told(pod) || Bound(pod) {
		t.Error("a new Pod counts as told of or bound")
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "gpuladder.dev/Accelerator"}}
	if !Told(pod) {
		t.Error("the condition is not seen")
	}
}
