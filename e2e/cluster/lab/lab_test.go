package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	os.Exit(m.Run())
}

// threeNodes is a small mixed fleet.
func threeNodes() *fleet.Fleet {
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 2},
		fleet.Group{Name: "l4", Nodes: 2, Board: "L4", GPUs: 1},
	)
}

// up starts a lab whose end is checked: no process and no folder may be left.
func up(t *testing.T, opts Options) *Lab {
	t.Helper()
	opts.Parent = t.TempDir()
	opts.Progress = t.Output()
	start := time.Now()
	l, err := Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %v", time.Since(start).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			l.KeepLogs()
		}
		pids := pidsOf(l)
		start := time.Now()
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("Down = %v", err)
		}
		t.Logf("down after %v", time.Since(start).Round(time.Millisecond))
		for _, pid := range pids {
			if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				t.Errorf("process %d is left", pid)
			}
		}
		if !l.keepLogs.Load() {
			if entries, err := os.ReadDir(opts.Parent); err != nil || len(entries) != 0 {
				t.Errorf("left in the lab's parent folder: %v, %v", entries, err)
			}
		}
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("Down again = %v", err)
		}
	})
	return l
}

func pidsOf(l *Lab) []int {
	var pids []int
	for _, p := range l.State().Parts {
		if p.PID != 0 {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

func clientOf(t *testing.T, l *Lab, u user) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", l.layout.kubeconfig(u))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// plainPod is a Pod without a policy, with a claim from the template if one is
// named.
func plainPod(name, template string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	if template != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return pod
}

func waitForPod(t *testing.T, client kubernetes.Interface, name string, done func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 60*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		pod, err = client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return done(pod), nil
	})
	if err != nil {
		t.Fatalf("waiting for Pod %s, %v; it is %+v", name, err, pod.Status)
	}
	return pod
}

func running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

func TestLab(t *testing.T) {
	l := up(t, Options{Fleet: threeNodes(), Scheduler: SchedulerStock, WithoutController: true})
	client, ctx := l.client, t.Context()

	t.Run("nodes are registered", func(t *testing.T) {
		names, err := l.NodeNames(ctx)
		if want := []string{"h100-0000", "l4-0000", "l4-0001"}; err != nil || !slices.Equal(names, want) {
			t.Errorf("NodeNames = %v, %v, want %v", names, err, want)
		}
	})
	t.Run("a Pod with a device runs and goes", func(t *testing.T) {
		template := &resourcev1.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: "one-gpu"},
			Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName}}},
			}}},
		}
		if _, err := client.ResourceV1().ResourceClaimTemplates("default").Create(ctx, template, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, plainPod("gpu", "one-gpu"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := waitForPod(t, client, "gpu", running)
		claim, err := client.ResourceV1().ResourceClaims("default").Get(ctx, *pod.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if claim.Status.Allocation == nil || claim.Status.Allocation.Devices.Results[0].Pool != pod.Spec.NodeName {
			t.Errorf("the claim's allocation is %+v, the Pod's node %s", claim.Status.Allocation, pod.Spec.NodeName)
		}
		if err := client.CoreV1().Pods("default").Delete(ctx, "gpu", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			list, err := client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 0, err
		})
		if err != nil {
			t.Errorf("the claim is not removed with its Pod, %v", err)
		}
	})
	t.Run("a fault of a device reaches its slice", func(t *testing.T) { testFault(ctx, t, l) })
	t.Run("everything listens on loopback only", func(t *testing.T) { testLoopbackOnly(t, l) })
	t.Run("each account may do its work and no more", func(t *testing.T) { testLeastPrivilege(ctx, t, l) })
	t.Run("a label without a policy is refused", func(t *testing.T) {
		pod := plainPod("labelled", "")
		pod.Labels = map[string]string{v1alpha1.LabelPolicy: "none"}
		_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("the Pod is let in: %v", err)
		}
	})
	t.Run("components are killed and restarted", func(t *testing.T) { testKillAndRestart(ctx, t, l) })
}

func testFault(ctx context.Context, t *testing.T, l *Lab) {
	inventory := l.Inventory("h100-0000")
	if inventory == nil || l.Inventory("none") != nil {
		t.Fatal("the inventory of a node is not to be had, or that of a node that is not there")
	}
	taint := resourcev1.DeviceTaint{Key: v1alpha1.TaintUnhealthy, Effect: resourcev1.DeviceTaintEffectNoSchedule}
	for _, taints := range [][]resourcev1.DeviceTaint{{taint}, nil} {
		if err := inventory.SetTaints("gpu-1", taints...); err != nil {
			t.Fatal(err)
		}
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			list, err := l.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			found := 0
			for _, slice := range list.Items {
				for _, device := range slice.Spec.Devices {
					found += len(device.Taints)
				}
			}
			return found == len(taints), nil
		})
		if err != nil {
			t.Errorf("with taints %v: %v", taints, err)
		}
	}
}

// testLoopbackOnly looks up in the kernel's tables where each process listens.
func testLoopbackOnly(t *testing.T, l *Lab) {
	for _, p := range l.State().Parts {
		addresses := listening(t, p.PID)
		if len(addresses) == 0 {
			t.Errorf("%s listens nowhere", p.Name)
		}
		for _, address := range addresses {
			if !address.IP.IsLoopback() {
				t.Errorf("%s listens on %s", p.Name, address.String())
			}
		}
	}
}

func listening(t *testing.T, pid int) []net.TCPAddr {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	var addresses []net.TCPAddr
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(content), "\n")[1:] {
			fields := strings.Fields(line) // sl local remote st … uid timeout inode
			if len(fields) < 10 || fields[3] != "0A" || !own[fields[9]] {
				continue
			}
			addresses = append(addresses, kernelAddress(t, fields[1]))
		}
	}
	return addresses
}

// kernelAddress reads 0100007F:1F90: words of four bytes, each in the order of
// the machine, which is little-endian here.
func kernelAddress(t *testing.T, s string) net.TCPAddr {
	t.Helper()
	host, port, _ := strings.Cut(s, ":")
	var ip net.IP
	for i := 0; i+8 <= len(host); i += 8 {
		word, err := strconv.ParseUint(host[i:i+8], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	return net.TCPAddr{IP: ip, Port: int(number)}
}

func testLeastPrivilege(ctx context.Context, t *testing.T, l *Lab) {
	const ladderGroup, resourceGroup = v1alpha1.GroupName, "resource.k8s.io"
	for _, tc := range []struct {
		user                        user
		verb, group, resource, part string
		allowed                     bool
	}{
		{userLadderScheduler, "create", "", "pods", "binding", true},
		{userLadderScheduler, "patch", "", "pods", "status", true},
		{userLadderScheduler, "update", resourceGroup, "resourceclaims", "status", true},
		{userLadderScheduler, "create", ladderGroup, "allocationdecisions", "", true},
		{userLadderScheduler, "watch", ladderGroup, "policyrevisions", "", true},
		{userLadderScheduler, "update", ladderGroup, "acceleratorpolicies", "", false},
		{userLadderScheduler, "update", ladderGroup, "tenantquotas", "", false},
		{userLadderScheduler, "get", "", "secrets", "", false},
		{userLadderScheduler, "create", "", "pods", "", false},
		{userLadderController, "create", ladderGroup, "policyrevisions", "", true},
		{userLadderController, "create", resourceGroup, "resourceclaimtemplates", "", true},
		{userLadderController, "patch", ladderGroup, "acceleratorpolicies", "status", true},
		{userLadderController, "update", ladderGroup, "acceleratorpolicies", "", false},
		{userLadderController, "get", "", "secrets", "", false},
		{userLadderController, "update", resourceGroup, "resourceclaims", "status", false},
		{userDriver, "create", resourceGroup, "resourceslices", "", true},
		{userDriver, "list", "", "pods", "", false},
		{userKwok, "patch", "", "nodes", "status", true},
		{userKwok, "list", "", "secrets", "", false},
	} {
		review, err := clientOf(t, l, tc.user).AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: "default", Verb: tc.verb, Group: tc.group, Resource: tc.resource, Subresource: tc.part,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != tc.allowed {
			t.Errorf("%s may %s %s/%s/%s: %t, want %t", tc.user.file, tc.verb, tc.group, tc.resource, tc.part, review.Status.Allowed, tc.allowed)
		}
	}
	anonymous, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(l.RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anonymous.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("without a certificate: %v", err)
	}
}

func testKillAndRestart(ctx context.Context, t *testing.T, l *Lab) {
	if err := l.Kill(ctx, KubeScheduler); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.CoreV1().Pods("default").Create(ctx, plainPod("waits", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	waitForPod(t, l.client, "waits", func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })
	if err := l.Restart(ctx, KubeScheduler); err != nil {
		t.Fatal(err)
	}
	waitForPod(t, l.client, "waits", running)

	// The API server comes back at the same address, with what it knew.
	if err := l.Kill(ctx, APIServer); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(ctx, APIServer); err != nil {
		t.Fatal(err)
	}
	waitForPod(t, l.client, "waits", running)

	for _, call := range []func(context.Context, string) error{l.Kill, l.Restart} {
		if err := call(ctx, "kubelet"); err == nil || !strings.Contains(err.Error(), "kubelet") {
			t.Errorf("a component that is not there: %v", err)
		}
	}
	select {
	case err := <-l.Failed():
		t.Errorf("what was asked for is reported as a failure: %v", err)
	default:
	}
}

func TestACrashIsNoticedAndItsLogKept(t *testing.T) {
	parent := t.TempDir()
	var progress bytes.Buffer
	l, err := Up(t.Context(), Options{Scheduler: SchedulerNone, WithoutController: true, Parent: parent, Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	var victim Part
	for _, p := range l.State().Parts {
		if p.Name == Kwok {
			victim = p
		}
	}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-l.Failed():
		failure := new(cluster.ComponentError)
		if !errors.As(err, &failure) || failure.Component != Kwok || failure.Tail == "" {
			t.Errorf("failure = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody notices")
	}
	pids := pidsOf(l)
	if err := l.Down(context.Background()); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			t.Errorf("process %d is left", pid)
		}
	}
	if log := process.Tail(victim.Log, 5); log == "" || !strings.Contains(progress.String(), filepath.Dir(victim.Log)) {
		t.Errorf("log %s is %q; told: %s", victim.Log, log, progress.String())
	}
	if _, err := os.Stat(l.Kubeconfig()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("more than the logs is left: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(l.Journal())); err != nil {
		t.Errorf("the journal is not kept: %v", err)
	}
}

func TestBreakingOffLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Up(ctx, Options{
		Fleet: threeNodes(), Scheduler: SchedulerNone, WithoutController: true, Parent: parent,
		Progress: writerFunc(func(p []byte) {
			if bytes.Contains(p, []byte("kinds are there")) {
				cancel()
			}
		}),
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Up = %v, want context.Canceled", err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
