//go:build e2e

package suites

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Names of Ladder's workloads in the installation.
const (
	schedulerName = "ladder-scheduler"
	driverName    = "ladder-driver"
)

// Where the driver keeps its files on a node.
const (
	cdiDir         = "/var/run/cdi"
	checkpointFile = "/var/lib/kubelet/plugins/" + v1alpha1.DriverName + "/checkpoint.json"
)

// kindWorld is a kind cluster with Ladder installed from the chart.
type kindWorld struct {
	*kind.Cluster
	*settings
	kube kubernetes.Interface
}

var _ nodes = &kindWorld{}

// gpus are how many the suites want of each tier: few, so that all of them can
// be taken quickly.
var gpus = map[string]int{"h100": 2, "a100-80": 4, "l4": 4}

// labelGPUs gives a node another number of GPUs than the driver's catalog.
const labelGPUs = "gpuladder.dev/fake-gpus"

// attachKind finds the cluster that the harness has brought up.
func attachKind(ctx context.Context, s *settings) (provider, error) {
	engine, err := docker.Running(ctx, docker.Options{Progress: os.Stderr})
	if err == nil && engine == nil {
		var plan *docker.Plan
		if plan, err = docker.Detect(ctx, docker.Options{Progress: os.Stderr}); err == nil {
			engine, err = plan.Open(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reaching the container engine of cluster %s, %w", s.cluster, err)
	}
	c, err := kind.Attach(ctx, s.cluster, engine, os.Stderr)
	if err != nil {
		return nil, err
	}
	k := &kindWorld{Cluster: c, settings: s}
	if k.kube, err = kubernetes.NewForConfig(c.RESTConfig()); err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return k, nil
}

// prepare gives each node the number of GPUs that the suites want, and waits until
// its driver has published them.
func (k *kindWorld) prepare(ctx context.Context) error {
	return workload.WaitFor(ctx, within.rollout, "every node to publish the devices that the suites want", func(ctx context.Context) (bool, string, error) {
		nodes, err := k.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: kind.TierLabel})
		if err != nil {
			return again(err)
		}
		slices, err := k.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + v1alpha1.DriverName})
		if err != nil {
			return again(err)
		}
		found := map[string]int{}
		for _, s := range slices.Items {
			if s.Spec.NodeName != nil {
				found[*s.Spec.NodeName] += len(s.Spec.Devices)
			}
		}
		for _, n := range nodes.Items {
			want, known := gpus[n.Labels[kind.TierLabel]]
			if tier, mig := strings.CutSuffix(n.Labels[kind.TierLabel], "-mig"); mig {
				// A run that was killed has left it so.
				return false, "", k.equip(ctx, n.Name, tier, gpus[tier])
			}
			if !known {
				return false, "", fmt.Errorf("node %s is of tier %q, which the suites do not know", n.Name, n.Labels[kind.TierLabel])
			}
			if n.Labels[labelGPUs] != fmt.Sprint(want) {
				err := k.equip(ctx, n.Name, n.Labels[kind.TierLabel], want)
				return false, fmt.Sprintf("equipping node %s, %v", n.Name, err), nil
			}
			if found[n.Name] != want {
				return false, fmt.Sprintf("node %s has %d devices, want %d", n.Name, found[n.Name], want), nil
			}
		}
		return len(nodes.Items) == len(gpus), fmt.Sprintf("there are %d nodes with devices", len(nodes.Items)), nil
	})
}

// workload makes the Pod's containers probes, and lets them end in order.
func (k *kindWorld) workload(pod *corev1.Pod) {
	grace := int64(5)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Image, c.ImagePullPolicy, c.Command = k.image, corev1.PullNever, []string{"/ladder-probe", "--hold"}
		if k.driver == drivenByNVML {
			c.Command = append(c.Command, "--nvidia")
		}
	}
}

func (k *kindWorld) killScheduler(ctx context.Context) error {
	pods, err := k.podsOf(ctx, schedulerName, "")
	if err != nil {
		return err
	}
	for _, p := range pods {
		if err := k.killProcess(ctx, p.Spec.NodeName, "/ladder-scheduler"); err != nil {
			return err
		}
	}
	if err := k.scaleScheduler(ctx, 0); err != nil {
		return err
	}
	// What the kubelet has started again must not work.
	if err := k.deleteAtOnce(ctx, pods); err != nil {
		return err
	}
	err = workload.WaitFor(ctx, within.component, "the scheduler to be gone", func(ctx context.Context) (bool, string, error) {
		left, err := k.podsOf(ctx, schedulerName, "")
		return len(left) == 0, fmt.Sprintf("%d Pods are left", len(left)), err
	})
	if err != nil {
		return err
	}
	// Nobody holds the lease any more, and the next one need not wait for its end.
	err = k.kube.CoordinationV1().Leases(k.namespace).Delete(ctx, schedulerName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the scheduler's lease, %w", err)
	}
	return nil
}

func (k *kindWorld) startScheduler(ctx context.Context) error {
	if err := k.scaleScheduler(ctx, 1); err != nil {
		return err
	}
	return workload.WaitFor(ctx, within.component, "the scheduler to work", func(ctx context.Context) (bool, string, error) {
		d, err := k.kube.AppsV1().Deployments(k.namespace).Get(ctx, schedulerName, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 1, fmt.Sprintf("%+v", d.Status), nil
	})
}

func (k *kindWorld) scaleScheduler(ctx context.Context, replicas int) error {
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err := k.kube.AppsV1().Deployments(k.namespace).Patch(ctx, schedulerName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("scaling the scheduler to %d, %w", replicas, err)
	}
	return nil
}

// killProcess ends a process of a node by SIGKILL; no such process is no error.
func (k *kindWorld) killProcess(ctx context.Context, node, program string) error {
	_, err := k.Exec(ctx, node, "sh", "-c", "pkill -KILL -f '^"+program+"( |$)' || [ $? = 1 ]")
	return err
}

// podsOf are the Pods of one of Ladder's workloads that are not being deleted,
// on a node, or with "" on all.
func (k *kindWorld) podsOf(ctx context.Context, name, node string) ([]corev1.Pod, error) {
	list, err := k.kube.CoreV1().Pods(k.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	if err != nil {
		return nil, fmt.Errorf("listing the Pods of %s, %w", name, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return node != "" && p.Spec.NodeName != node || p.DeletionTimestamp != nil
	}), nil
}

// killDriver kills the driver's process. Where the kubelet would make it wait,
// since it was killed before, its Pod is deleted too: the next one starts at
// once.
func (k *kindWorld) killDriver(ctx context.Context, node string) error {
	if err := k.killProcess(ctx, node, k.driverProgram()); err != nil {
		return err
	}
	pods, err := k.podsOf(ctx, driverName, node)
	if err != nil {
		return err
	}
	return k.deleteAtOnce(ctx, slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		killedBefore := slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 })
		return !killedBefore
	}))
}

// replaceDriver deletes the Pods of a node's driver.
func (k *kindWorld) replaceDriver(ctx context.Context, node string) error {
	pods, err := k.podsOf(ctx, driverName, node)
	if err != nil {
		return err
	}
	return k.deleteAtOnce(ctx, pods)
}

// deleteAtOnce deletes Pods without a grace period.
func (k *kindWorld) deleteAtOnce(ctx context.Context, pods []corev1.Pod) error {
	for _, p := range pods {
		err := k.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting Pod %s, %w", p.Name, err)
		}
	}
	return nil
}

func (k *kindWorld) driverWorks(ctx context.Context) error {
	return workload.WaitFor(ctx, within.rollout, "the driver to work on every node", func(ctx context.Context) (bool, string, error) {
		d, err := k.kube.AppsV1().DaemonSets(k.namespace).Get(ctx, driverName, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return rolledOut(d), fmt.Sprintf("%+v", d.Status), nil
	})
}

func rolledOut(d *appsv1.DaemonSet) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.DesiredNumberScheduled > 0 && s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
		s.NumberAvailable == s.DesiredNumberScheduled && s.NumberUnavailable == 0
}

func (k *kindWorld) rollDriver(ctx context.Context) error {
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"e2e.gpuladder.dev/restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	_, err := k.kube.AppsV1().DaemonSets(k.namespace).Patch(ctx, driverName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("rolling the driver, %w", err)
	}
	return nil
}

// fault runs `ladder fault` in the driver of a node, as a person does by
// kubectl exec. A driver that is just starting is waited for.
func (k *kindWorld) fault(ctx context.Context, node string, args ...string) (string, error) {
	return k.driverExec(ctx, node, driverName, append([]string{"/ladder", "fault"}, args...)...)
}

// wrongUse is the exit code of Ladder's programs for input that can't be right.
const wrongUse = 2

// driverExec runs a command in a container of a node's driver, once it is ready.
func (k *kindWorld) driverExec(ctx context.Context, node, container string, argv ...string) (string, error) {
	var said string
	err := workload.WaitFor(ctx, within.component, "the driver of "+node+" to take `"+strings.Join(argv, " ")+"`", func(ctx context.Context) (bool, string, error) {
		pods, err := k.podsOf(ctx, driverName, node)
		if err != nil {
			return false, "", err
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !ready(&p) })
		if len(pods) == 0 {
			return false, "it is not ready", nil
		}
		said, err = k.execInPod(ctx, &pods[0], container, argv...)
		if wrong := new(utilexec.CodeExitError); errors.As(err, wrong) && wrong.Code == wrongUse {
			return false, "", err // it will not become right
		}
		return err == nil, fmt.Sprint(err), nil
	})
	return said, err
}

// execInPod runs a command in a container of a Pod.
func (k *kindWorld) execInPod(ctx context.Context, pod *corev1.Pod, container string, argv ...string) (string, error) {
	request := k.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: argv, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(k.RESTConfig(), "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("running %s in Pod %s, %w", argv[0], pod.Name, err)
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return "", fmt.Errorf("running %s in Pod %s, %w: %s", strings.Join(argv, " "), pod.Name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func (k *kindWorld) breakDevice(ctx context.Context, d device) error {
	if k.driver == drivenByNVML {
		return k.board(ctx, d.node, "lost", d.name)
	}
	_, err := k.fault(ctx, d.node, "lost", d.name)
	return err
}

func (k *kindWorld) mendDevice(ctx context.Context, d device) error {
	if k.driver == drivenByNVML {
		return errors.Join(k.board(ctx, d.node, "restored", d.name), k.board(ctx, d.node, "reset", d.name))
	}
	_, err := k.fault(ctx, d.node, "clear", "--device", d.name)
	return err
}

func (k *kindWorld) equip(ctx context.Context, node, tier string, gpus int) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q,%q:"%d"}}}`, kind.TierLabel, tier, labelGPUs, gpus)
	if _, err := k.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling node %s, %w", node, err)
	}
	if k.driver != drivenByNVML {
		return nil
	}
	// Boards are put into a machine that is off, so it boots after; in the
	// simulation the driver's Pod puts them in when it starts. Within one boot a
	// board that is no longer there would be a lost one.
	if _, err := k.Exec(ctx, node, "cp", "/proc/sys/kernel/random/uuid", kind.BootIDFile); err != nil {
		return fmt.Errorf("booting node %s, %w", node, err)
	}
	return k.replaceDriver(ctx, node)
}

func (k *kindWorld) xid(ctx context.Context, d device, code int) error {
	if k.driver == drivenByNVML {
		return k.board(ctx, d.node, "xid", d.name, fmt.Sprint(code))
	}
	_, err := k.fault(ctx, d.node, "xid", d.name, fmt.Sprint(code))
	return err
}

func (k *kindWorld) metrics(ctx context.Context, node string) (string, error) {
	pods, err := k.podsOf(ctx, driverName, node)
	if err != nil {
		return "", err
	}
	if len(pods) != 1 {
		return "", fmt.Errorf("reading metrics, node %s has %d drivers", node, len(pods))
	}
	text, err := k.kube.CoreV1().Pods(k.namespace).ProxyGet("http", pods[0].Name, "9400", "/metrics", nil).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the metrics of the driver of node %s, %w", node, err)
	}
	return string(text), nil
}

// drivenByNVML is the driver of NVIDIA's GPUs, over a simulated NVML.
const drivenByNVML = "nvml"

func (k *kindWorld) driverProgram() string {
	if k.driver == drivenByNVML {
		return "/ladder-nvml-driver"
	}
	return "/ladder-fake-driver"
}

// board has something happen to a board of a node's simulated NVML.
func (k *kindWorld) board(ctx context.Context, node string, args ...string) error {
	_, err := k.driverExec(ctx, node, "fakenvml", append([]string{"/ladder-fakenvml", "fault"}, args...)...)
	return err
}

func (k *kindWorld) exec(ctx context.Context, node string, argv ...string) (string, error) {
	return k.Exec(ctx, node, argv...)
}

func (k *kindWorld) restartNode(ctx context.Context, node string) error {
	return k.RestartNode(ctx, node)
}

func (k *kindWorld) restartKubelet(ctx context.Context, node string) error {
	return k.Restart(ctx, kind.Component("kubelet", node))
}

// host looks at the driver's files on a node with the node's own tools.
func (k *kindWorld) host(ctx context.Context, node string) (*invariants.Host, error) {
	// The folder is in memory and gone after a boot, until something is in it.
	said, err := k.Exec(ctx, node, "sh", "-c", "ls -1 "+cdiDir+" 2>/dev/null; echo; cat "+checkpointFile)
	if err != nil {
		return nil, err
	}
	files, content, _ := strings.Cut(said, "{")
	h := &invariants.Host{Node: node}
	for _, name := range strings.Fields(files) {
		uid, ok := strings.CutPrefix(name, v1alpha1.DriverName+"-claim_")
		if ok {
			h.CDI = append(h.CDI, types.UID(strings.TrimSuffix(uid, ".json")))
		}
	}
	var checkpoint struct {
		Payload struct {
			Claims map[types.UID]json.RawMessage `json:"claims"`
		} `json:"payload"`
	}
	if err := json.Unmarshal([]byte("{"+content), &checkpoint); err != nil {
		return nil, fmt.Errorf("reading the checkpoint of node %s, %w", node, err)
	}
	for uid := range checkpoint.Payload.Claims {
		h.Prepared = append(h.Prepared, uid)
	}
	slices.Sort(h.Prepared)
	return h, nil
}

// sees reads the first line that each container has printed since it started.
func (k *kindWorld) sees(ctx context.Context, pod *corev1.Pod) (map[string]sight, error) {
	seen := map[string]sight{}
	for _, c := range pod.Spec.Containers {
		var one sight
		err := workload.WaitFor(ctx, within.published, "container "+c.Name+" of Pod "+pod.Name+" to tell what it sees", func(ctx context.Context) (bool, string, error) {
			raw, err := k.kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name}).DoRaw(ctx)
			if err != nil {
				return again(err)
			}
			line, _, whole := strings.Cut(string(raw), "\n")
			if !whole {
				return false, "it has not said anything", nil
			}
			return true, "", json.Unmarshal([]byte(line), &one)
		})
		if err != nil {
			return nil, err
		}
		seen[c.Name] = one
	}
	return seen, nil
}

// dump writes the logs of Ladder's Pods and of the kubelets, and what lies on
// the nodes.
func (k *kindWorld) dump(ctx context.Context, dir string) error {
	var errs []error
	pods, err := k.kube.CoreV1().Pods(k.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("keeping logs, %w", err)
	}
	for _, p := range pods.Items {
		for _, previous := range []bool{false, true} {
			name := p.Name + ".log"
			if previous {
				name = p.Name + "-previous.log"
			}
			log, err := k.kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Previous: previous}).Stream(ctx)
			if err != nil {
				if !previous {
					errs = append(errs, err)
				}
				continue
			}
			content, err := io.ReadAll(log)
			errs = append(errs, err, log.Close(), os.WriteFile(filepath.Join(dir, name), content, 0o644))
		}
	}
	for _, n := range k.State().Nodes {
		said, err := k.Exec(ctx, n.ClusterName, "sh", "-c", "journalctl --unit=kubelet --no-pager --lines=3000; ls -l "+cdiDir+"; cat "+checkpointFile)
		if said == "" {
			errs = append(errs, err)
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, n.ClusterName+".log"), []byte(said), 0o644))
	}
	return errors.Join(errs...)
}

// end leaves the cluster to the harness.
func (k *kindWorld) end(context.Context) error { return nil }
