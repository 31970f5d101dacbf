package kind_test

// A real cluster, from nothing to nothing. It takes minutes and a container
// engine, so it runs only where LADDER_KIND is set.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
)

// logWriter gives progress to the test's log.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

func TestARealCluster(t *testing.T) {
	if os.Getenv("LADDER_KIND") == "" {
		t.Skip("LADDER_KIND is not set")
	}
	ctx := t.Context()
	progress := logWriter{t}
	engine := openEngine(t, progress)
	image, err := nodeimage.Ensure(ctx, nodeimage.Options{Engine: engine, Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	before := volumes(t, engine)
	name := fmt.Sprintf("ladder-test-%d", os.Getpid())
	o := kind.Options{Name: name, Image: image, Engine: engine, Progress: progress, Nodes: []kind.Node{
		{Name: "control-plane", Role: kind.ControlPlane},
		{Name: "gpu", Role: kind.Worker, Labels: map[string]string{kind.TierLabel: "h100"}},
	}}
	c, err := kind.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, err := kind.Create(ctx, o); !errors.Is(err, kind.ErrExists) {
		t.Errorf("a second cluster of that name: %v, want ErrExists", err)
	}
	again, err := kind.Attach(ctx, name, engine, progress)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.State().Fits(o); err != nil {
		t.Errorf("the cluster that was found is another one: %v", err)
	}
	client, err := kubernetes.NewForConfig(again.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := c.Node("gpu")
	names, err := again.NodeNames(ctx)
	if err != nil || !slices.Contains(names, node) || len(names) != 2 {
		t.Fatalf("nodes = %v, %v, want two with %s", names, err, node)
	}
	registered, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil || registered.Labels[kind.TierLabel] != "h100" {
		t.Errorf("labels of the node: %v, %v", registered.Labels, err)
	}

	runPod(t, client, c, node)
	reboot(t, client, c, node)
	controlPlane := c.Node("control-plane")
	for _, part := range []string{
		kind.Component("kubelet", node), kind.Component("containerd", node),
		kind.Component("kube-scheduler", controlPlane), kind.Component("kube-apiserver", controlPlane), kind.Component("node", controlPlane),
	} {
		if err := c.Kill(ctx, part); err != nil {
			t.Errorf("killing %s: %v", part, err)
		}
		if err := c.Restart(ctx, part); err != nil {
			t.Errorf("restarting %s: %v", part, err)
		}
	}

	if _, err := client.CoreV1().Pods("default").Get(ctx, podName, metav1.GetOptions{}); err != nil {
		t.Errorf("after all restarts the pod is not there: %v", err)
	}
	select {
	case err := <-c.Failed():
		t.Errorf("what was asked for counts as a failure: %v", err)
	case <-time.After(5 * time.Second):
	}
	if _, err := engine.Output(ctx, "kill", node); err != nil {
		t.Fatal(err)
	}
	var failure *cluster.ComponentError
	select {
	case err := <-c.Failed():
		if !errors.As(err, &failure) || failure.Component != kind.Component("node", node) {
			t.Errorf("failure = %v, want one of %s", err, node)
		}
	case <-time.After(30 * time.Second):
		t.Error("a node that was killed from outside is no failure")
	}

	c.CollectLogs(ctx)
	if info, err := os.Stat(filepath.Join(c.LogsDir(), controlPlane, "kubelet.log")); err != nil || info.Size() == 0 {
		t.Errorf("the log of kubelet: %v, %v", info, err)
	}
	dir := filepath.Dir(c.Kubeconfig())
	if err := c.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if left, err := engine.Output(ctx, "ps", "--all", "--quiet", "--filter=label=io.x-k8s.kind.cluster="+name); err != nil || left != "" {
		t.Errorf("containers that are left: %q, %v", left, err)
	}
	for _, volume := range volumes(t, engine) {
		if !slices.Contains(before, volume) {
			t.Errorf("volume %s is left", volume)
		}
	}
	if _, err := kind.Attach(ctx, name, engine, progress); !errors.Is(err, kind.ErrNotFound) {
		t.Errorf("Attach = %v, want ErrNotFound", err)
	}
}

// volumes lists those that no container uses.
func volumes(t *testing.T, engine *docker.Engine) []string {
	t.Helper()
	out, err := engine.Output(t.Context(), "volume", "ls", "--quiet", "--filter=dangling=true")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

// openEngine returns an engine. One that this test starts is ended with it, and
// must leave nothing behind.
func openEngine(t *testing.T, progress logWriter) *docker.Engine {
	t.Helper()
	plan, err := docker.Detect(t.Context(), docker.Options{Install: true, Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := plan.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !engine.Started() {
			return
		}
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
		run := filepath.Dir(strings.TrimPrefix(engine.Host(), "unix://"))
		for _, left := range append(mountsBelow(t, run), processesWith(t, run)...) {
			t.Errorf("left after the daemon's end: %s", left)
		}
	})
	return engine
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			found = append(found, "mount "+fields[1])
		}
	}
	return found
}

func processesWith(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && bytes.Contains(content, []byte(dir+"/")) {
			found = append(found, "process "+string(bytes.ReplaceAll(content, []byte{0}, []byte{' '})))
		}
	}
	return found
}

const podName = "holds"

// runPod runs a pod of the one image that every node has.
func runPod(t *testing.T, client kubernetes.Interface, c *kind.Cluster, node string) {
	t.Helper()
	ctx := t.Context()
	images, err := c.Exec(ctx, node, "crictl", "images")
	if err != nil {
		t.Fatal(err)
	}
	var image string
	for line := range strings.Lines(images) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasSuffix(fields[0], "/pause") {
			image = fields[0] + ":" + fields[1]
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{kind.TierLabel: "h100"},
		Containers:   []corev1.Container{{Name: "pause", Image: image, ImagePullPolicy: corev1.PullNever}},
	}}
	if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running(t, client, "")
}

// running waits until the pod runs in another container than the given one, and
// returns its container.
func running(t *testing.T, client kubernetes.Interface, before string) string {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), podName, metav1.GetOptions{})
		if err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == 1 {
			if s := pod.Status.ContainerStatuses[0]; s.State.Running != nil && s.ContainerID != before {
				return s.ContainerID
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pod does not run: %+v, %v", pod.Status, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// reboot restarts the node: it has another boot id, its routes and its pod
// return.
func reboot(t *testing.T, client kubernetes.Interface, c *kind.Cluster, node string) {
	t.Helper()
	ctx := t.Context()
	container := running(t, client, "")
	before, err := c.BootID(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.BootID(ctx, c.Node("control-plane"))
	if err != nil || other == before {
		t.Errorf("the boot id of the control plane is %s, %v", other, err)
	}
	if err := c.RestartNode(ctx, node); err != nil {
		t.Fatal(err)
	}
	after, err := c.BootID(ctx, node)
	if err != nil || after == before {
		t.Errorf("the boot id is %s, %v, before %s", after, err, before)
	}
	running(t, client, container)
	deadline := time.Now().Add(time.Minute)
	for {
		routes, err := c.Exec(ctx, node, "ip", "route")
		if err == nil && strings.Contains(routes, "10.244.0.0/24 via ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the route to the pods of the control plane is missing: %q, %v", routes, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
