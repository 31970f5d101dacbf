package guard_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Kubernetes' own scheduler can't give a guarded device away, and the Pod's
// event says why; a device of another driver it can. Once the guard's binding
// is gone it succeeds with both: so it was the guard that refused.
func TestStockSchedulerIsRefused(t *testing.T) {
	s := server(t)
	startKubernetes(t, s, binaries.Scheduler, stock, "--pod-max-in-unschedulable-pods-duration=5s")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stock-node"}}
	apiserver.Create(t, s.Client, node)
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110")}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}}
	if err := s.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = nil // which the API server adds
	if err := s.Client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	apiserver.Create(t, s.Client, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "other.example.com"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "other.example.com"`},
		}}},
	})
	apiserver.Create(t, s.Client, slice("stock-ours", node.Name, v1alpha1.DriverName))
	apiserver.Create(t, s.Client, slice("stock-other", node.Name, "other.example.com"))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "default"}}
	if err := s.Client.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}

	for name, class := range map[string]string{"stock-ours": v1alpha1.DriverName, "stock-other": "other.example.com"} {
		claim(t, s.Client, name, class)
		p := pod(name, "default-scheduler")
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
		apiserver.Create(t, s.Client, p)
	}
	apiserver.WaitFor(t, "the Pod with another driver's device to be bound", func(ctx context.Context) error { return bound(ctx, s, "stock-other") })
	apiserver.WaitFor(t, "the Pod's event", func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := s.Client.List(ctx, &events, client.InNamespace(team)); err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name == "stock-ours" && e.Reason == "FailedScheduling" {
				notes = append(notes, e.Note)
				if strings.Contains(e.Note, policy) && strings.Contains(e.Note, "give the Pod spec.schedulerName ladder-scheduler") {
					return nil
				}
			}
		}
		return fmt.Errorf("the events say %q", notes)
	})
	got := &resourcev1.ResourceClaim{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: team, Name: "stock-ours"}, got); err != nil {
		t.Fatal(err)
	}
	if got.Status.Allocation != nil {
		t.Errorf("the claim has got %v", got.Status.Allocation)
	}
	if err := bound(t.Context(), s, "stock-ours"); err == nil {
		t.Error("the Pod is bound")
	}

	objects, err := guard.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" && object.GetName() == policy {
			if err := s.Client.Delete(t.Context(), object.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				restored := object.DeepCopy()
				if err := s.Client.Create(context.WithoutCancel(t.Context()), restored); err != nil {
					t.Error(err)
				}
			})
		}
	}
	apiserver.WaitFor(t, "the Pod to be bound without the guard", func(ctx context.Context) error { return bound(ctx, s, "stock-ours") })
}

func bound(ctx context.Context, s *apiserver.Server, name string) error {
	p := &corev1.Pod{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: team, Name: name}, p); err != nil {
		return err
	}
	if p.Spec.NodeName == "" {
		return fmt.Errorf("Pod %s has no node, %v", name, p.Status.Conditions)
	}
	return nil
}

// startKubernetes runs a program of Kubernetes' control plane under its own user
// name until the test ends.
func startKubernetes(t *testing.T, s *apiserver.Server, program, user string, args ...string) {
	t.Helper()
	set, err := binaries.Ensure(t.Context(), os.Stderr, program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: s.Config.CertData, ClientKeyData: s.Config.KeyData, Impersonate: user,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	p, err := process.Start(process.Spec{
		Name: program, Path: set.Path(program), Dir: dir, Log: log,
		Args: append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(context.WithoutCancel(t.Context()), 5*time.Second)
		if t.Failed() {
			t.Logf("%s:\n%s", program, process.Tail(log, 30))
		}
	})
}
