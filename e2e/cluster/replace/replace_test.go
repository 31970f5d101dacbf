package replace

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func schedulerPod(image string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler-n"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
			ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no such flag"}},
			}},
		},
	}
}

func TestLeads(t *testing.T) {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("second")},
	}
	for name, tc := range map[string]struct {
		pod           *corev1.Pod
		before, lacks string
	}{
		"leads":       {schedulerPod("ours", corev1.ConditionTrue), "first", ""},
		"old image":   {schedulerPod("stock", corev1.ConditionTrue), "first", "image stock"},
		"crashes":     {schedulerPod("ours", corev1.ConditionFalse), "first", "it ended with 1: no such flag"},
		"old lease":   {schedulerPod("ours", corev1.ConditionTrue), "second", "still holds the lease"},
		"no such pod": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "first", "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			err := leads(t.Context(), fake.NewClientset(tc.pod, lease), "n", "ours", tc.before)
			if (err == nil) != (tc.lacks == "") || err != nil && !strings.Contains(err.Error(), tc.lacks) {
				t.Errorf("leads = %v, want %q", err, tc.lacks)
			}
		})
	}
}

func TestNobodyLeadsWithoutALease(t *testing.T) {
	if who, err := leader(t.Context(), fake.NewClientset()); who != "" || err != nil {
		t.Errorf("leader = %q, %v", who, err)
	}
}

func TestSwapWritesTheManifestLast(t *testing.T) {
	var scripts []string
	err := swap(t.Context(), func(_ context.Context, argv ...string) (string, error) {
		if argv[0] == "cat" {
			return kubeadms, nil
		}
		scripts = append(scripts, argv[len(argv)-1])
		return "", nil
	}, "ours")
	if err != nil || len(scripts) != 2 {
		t.Fatalf("scripts %q, %v", scripts, err)
	}
	for i, want := range []struct{ path, holds string }{{configFile, "default-scheduler"}, {manifestFile, "image: ours"}} {
		words := strings.Fields(scripts[i])
		content, err := base64.StdEncoding.DecodeString(words[4])
		if err != nil || !strings.Contains(string(content), want.holds) || !strings.HasSuffix(scripts[i], " "+want.path) {
			t.Errorf("script %d writes %q, %v: %s", i, content, err, scripts[i])
		}
	}
	failed := errors.New("no such node")
	if err := swap(t.Context(), func(context.Context, ...string) (string, error) { return "", failed }, "x"); !errors.Is(err, failed) {
		t.Errorf("err = %v", err)
	}
}

func TestRightsAreForKubeSchedulersAccount(t *testing.T) {
	if testing.Short() {
		t.Skip("builds Helm")
	}
	objects, err := rights(t.Context(), os.Stderr)
	if err != nil || len(objects) != 2 || objects[0].GetKind() != "ClusterRole" || objects[1].GetKind() != "ClusterRoleBinding" {
		t.Fatalf("objects %v, %v", objects, err)
	}
	subjects, _, err := unstructured.NestedSlice(objects[1].Object, "subjects")
	if err != nil || len(subjects) != 1 || subjects[0].(map[string]any)["name"] != account {
		t.Errorf("they are given to %v, %v", subjects, err)
	}
}
