package replace

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/policies/api/crds"
)

// account is kube-scheduler's, which ladder-scheduler takes on with its kubeconfig.
const account = "system:kube-scheduler"

// Node runs programs on the node of the control plane and returns what they
// print.
type Node func(ctx context.Context, argv ...string) (string, error)

// within bounds the wait until ladder-scheduler leads: the lease of a
// kube-scheduler that was killed has to run out.
const within = 2 * time.Minute

// Scheduler puts ladder-scheduler, from an image that the node has, in the place
// of kube-scheduler, and returns when it leads. name is the node's in the
// cluster; progress is told what is built.
func Scheduler(ctx context.Context, config *rest.Config, node Node, name, image string, progress io.Writer) error {
	if err := install(ctx, config, progress); err != nil {
		return fmt.Errorf("installing what ladder-scheduler needs, %w", err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	before, err := leader(ctx, api)
	if err != nil {
		return err
	}
	if err := swap(ctx, node, image); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	lacking := errors.New("no answer")
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		lacking = leads(ctx, api, name, image, before)
		return lacking == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for ladder-scheduler in the place of kube-scheduler, %w: %w", err, lacking)
	}
	return nil
}

// install writes Ladder's kinds and the rights of kube-scheduler's account.
func install(ctx context.Context, config *rest.Config, progress io.Writer) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	definitions, err := apply.DecodeFS(crds.FS, ".")
	if err != nil {
		return err
	}
	granted, err := rights(ctx, progress)
	if err != nil {
		return err
	}
	if err := apply.Objects(ctx, c, append(definitions, granted...)...); err != nil {
		return err
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return apply.Established(ctx, c, api.Discovery(), definitions...)
}

// rights are those that the chart gives ladder-scheduler under kube-scheduler's
// account, beyond what kube-scheduler has.
func rights(ctx context.Context, progress io.Writer) (_ []*unstructured.Unstructured, err error) {
	home, err := os.MkdirTemp("", "ladder-helm-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for helm, %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	helm, err := charts.NewHelm(ctx, progress, binaries.Helm4, home)
	if err != nil {
		return nil, err
	}
	return helm.Template(ctx, "--set=policies.guard.extraAllocators={"+account+"}", "--show-only=charts/policies/templates/allocators.yaml")
}

// swap writes the configuration and the edited manifest, which kubelet notices.
func swap(ctx context.Context, node Node, image string) error {
	manifest, err := node(ctx, "cat", manifestFile)
	if err != nil {
		return fmt.Errorf("reading the manifest of kube-scheduler, %w", err)
	}
	edited, err := edit([]byte(manifest), image)
	if err != nil {
		return err
	}
	configuration, err := Config(kubeconfigFile, true)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path    string
		content []byte
	}{{configFile, configuration}, {manifestFile, edited}} {
		// Under another name first, and outside of the folder that kubelet
		// watches, so that nothing reads half a file.
		script := fmt.Sprintf("umask 077 && echo %s | base64 -d > /etc/kubernetes/.ladder.new && mv /etc/kubernetes/.ladder.new %s",
			base64.StdEncoding.EncodeToString(f.content), f.path)
		if _, err := node(ctx, "sh", "-c", script); err != nil {
			return fmt.Errorf("writing %s, %w", f.path, err)
		}
	}
	return nil
}

// leads returns nil once the Pod runs the image and another process than before
// holds the lease.
func leads(ctx context.Context, api kubernetes.Interface, node, image, before string) error {
	pod, err := api.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, "kube-scheduler-"+node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := pod.Spec.Containers[0].Image; got != image {
		return fmt.Errorf("its Pod still has the image %s", got)
	}
	if !ready(pod) {
		return fmt.Errorf("its Pod is not ready: %s", why(pod))
	}
	now, err := leader(ctx, api)
	switch {
	case err != nil:
		return err
	case now == before:
		return errors.New("the kube-scheduler before it still holds the lease")
	}
	return nil
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// why tells the state of the Pod's container.
func why(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil:
			return s.State.Waiting.Reason + " " + s.State.Waiting.Message
		case s.State.Terminated != nil:
			return fmt.Sprintf("it ended with %d: %s", s.State.Terminated.ExitCode, s.State.Terminated.Message)
		}
	}
	return string(pod.Status.Phase)
}

// leader returns who holds kube-scheduler's lease and since when, or "" where
// nobody does.
func leader(ctx context.Context, api kubernetes.Interface) (string, error) {
	var lease *coordinationv1.Lease
	lease, err := api.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "kube-scheduler", metav1.GetOptions{})
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("asking which scheduler leads, %w", err)
	}
	if err != nil {
		return "", nil //nolint:nilerr // no lease: nobody leads
	}
	return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
}
