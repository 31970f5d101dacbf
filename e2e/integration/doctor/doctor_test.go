// Package doctor_test runs the real `ladder doctor` against a real API server.
package doctor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/e2e/integration/internal/running"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

type finding struct {
	Check, Severity, Object, Summary string
}

// doctor runs the command and returns its exit code and findings.
func doctor(t *testing.T, kubeconfig string) (int, []finding) {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), os.Stderr, binaries.Ladder)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), programs.Path(binaries.Ladder), "doctor", "-o", "json", "--kubeconfig", kubeconfig)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	code := 0
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	var report struct{ Findings []finding }
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
	}
	t.Logf("ended with %d, %s%s", code, out.String(), stderr.String())
	var found []finding
	for _, f := range report.Findings {
		if f.Check != "version" { // a server built from modules does not know its own
			found = append(found, f)
		}
	}
	return code, found
}

func requireFindings(t *testing.T, got []finding, want ...string) {
	t.Helper()
	for _, w := range want {
		check, words, _ := strings.Cut(w, ": ")
		ok := false
		for _, f := range got {
			ok = ok || f.Check+" "+f.Severity == check && strings.Contains(f.Object+" "+f.Summary, words)
		}
		if !ok {
			t.Errorf("%q was not found", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d findings, want %d", len(got), len(want))
	}
}

func lease(namespace, name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NewMicroTime(time.Now()))},
	}
}

func TestDoctor(t *testing.T) {
	s := apiserver.Get(t)
	running.Install(t, s, "../../cluster/lab")
	kubeconfig := running.Kubeconfig(t, s.Config, "")

	code, found := doctor(t, kubeconfig)
	requireFindings(t, found, "components error: no ladder-controller is at work", "schedulers warning: no ladder-scheduler is at work")
	if code != 1 {
		t.Errorf("ends with %d, want 1", code)
	}

	for _, l := range []*coordinationv1.Lease{
		lease("ladder-system", "ladder-controller", "c_1"), lease("ladder-system", "ladder-scheduler", "s_1"), lease(metav1.NamespaceSystem, "kube-scheduler", "k_1"),
	} {
		apiserver.Create(t, s.Client, l)
	}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	slice.Spec = resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"), Pool: resourcev1.ResourcePool{Name: "n1", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}
	apiserver.Create(t, s.Client, slice)
	_, found = doctor(t, kubeconfig)
	requireFindings(t, found, "schedulers error: ladder-guard-allocations is not installed, and two schedulers are at work")

	guard, err := catalog.DefaultGuard().Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range guard {
		apiserver.Create(t, s.Client, o)
	}
	code, found = doctor(t, kubeconfig)
	requireFindings(t, found)
	if code == 1 {
		t.Errorf("ends with %d where nothing is wrong", code)
	}

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	apiserver.Create(t, s.Client, node)
	node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	if err := s.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	everything := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "everything"}}
	everything.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{}
	everything.Spec.Taint = resourcev1.DeviceTaint{Key: "example.com/x", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	apiserver.Create(t, s.Client, everything)
	apiserver.Create(t, s.Client, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "all-devices"}})
	apiserver.Create(t, s.Client, &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{{Name: "any"}}},
	})
	for _, name := range []string{"a", "b"} {
		apiserver.Create(t, s.Client, &v1alpha1.TenantQuota{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.TenantQuotaSpec{Namespaces: []string{"team"}, Models: []v1alpha1.ModelQuota{{Model: "H100"}}},
		})
	}
	_, found = doctor(t, kubeconfig)
	requireFindings(t, found,
		"advertisement error: nvidia.com/gpu of a device plugin and devices of gpu.gpuladder.dev: n1", "taint-rules error: DeviceTaintRule everything has an empty selector",
		"classes warning: DeviceClass all-devices selects", "policies warning: AcceleratorPolicy new was not looked at", "quotas error: Namespace team belongs to the TenantQuotas a and b",
	)

	// Somebody without rights is told what could not be looked at.
	code, found = doctor(t, running.Kubeconfig(t, s.Config, "system:serviceaccount:ladder-system:nobody"))
	if code != 2 || len(found) < 10 {
		t.Errorf("without rights it ends with %d and %d findings", code, len(found))
	}

	if code, _ = doctor(t, kubeconfig+".none"); code != 2 {
		t.Errorf("without a kubeconfig it ends with %d, want 2", code)
	}
}
