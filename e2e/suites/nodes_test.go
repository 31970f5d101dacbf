//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpuladder.dev/ladder/e2e/invariants"
)

// nodes is what a provider with real nodes can do. Nodes are named as in the
// cluster.
type nodes interface {
	// sees tells what the containers of a running Pod see, by container.
	sees(ctx context.Context, pod *corev1.Pod) (map[string]sight, error)
	// host tells what lies on a node.
	host(ctx context.Context, node string) (*invariants.Host, error)
	// killDriver kills the driver of a node without warning; the kubelet starts
	// it again.
	killDriver(ctx context.Context, node string) error
	// driverWorks waits until the driver works on every node; rollDriver begins
	// to replace it by a new one everywhere.
	driverWorks(ctx context.Context) error
	rollDriver(ctx context.Context) error
	// fault runs `ladder fault` in the driver of a node.
	fault(ctx context.Context, node string, args ...string) (string, error)
	// xid has a device report an error of NVIDIA's kernel driver.
	xid(ctx context.Context, d device, code int) error
	// metrics are what the driver of a node counts, in Prometheus' text.
	metrics(ctx context.Context, node string) (string, error)
	// equip gives a node the hardware of a tier of the catalog.
	equip(ctx context.Context, node, tier string, gpus int) error
	// exec runs a command on a node and returns what it prints.
	exec(ctx context.Context, node string, argv ...string) (string, error)
	// restartNode restarts a node as a reboot would, restartKubelet its kubelet
	// alone. Both return when it is ready again.
	restartNode(ctx context.Context, node string) error
	restartKubelet(ctx context.Context, node string) error
}

// sight is the line that /ladder-probe prints.
type sight struct {
	OK       bool     `json:"ok"`
	Devices  []string `json:"devices"`
	Visible  []string `json:"visible"`
	Model    string   `json:"model"`
	Problems []string `json:"problems"`
	Metadata []struct {
		Devices []string `json:"devices"`
	} `json:"metadata"`
}

// sight reads what the containers of a running Pod see and records it. Each
// must see exactly the devices of the Pod's claims.
func (s *scene) sight(ctx context.Context, node nodes, pod *corev1.Pod) error {
	seen, err := node.sees(ctx, pod)
	if err != nil {
		return err
	}
	var want []string
	var claims []types.UID
	for _, claim := range s.claims(pod) {
		claims = append(claims, claim.UID)
	}
	for _, d := range s.held(pod) {
		want = append(want, d.name)
	}
	slices.Sort(want)
	for _, c := range pod.Spec.Containers {
		saw, ok := seen[c.Name]
		if !ok {
			return fmt.Errorf("container %s of Pod %s told nothing", c.Name, pod.Name)
		}
		s.log.Add(invariants.Entry{Probe: &invariants.Probe{
			Pod: pod.UID, Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName, Claims: claims, Devices: saw.Devices,
		}})
		if !saw.OK || !slices.Equal(saw.Devices, want) {
			return fmt.Errorf("container %s of Pod %s sees %+v, its claims have %v", c.Name, pod.Name, saw, want)
		}
	}
	return nil
}

// clean waits until no node has a trace of a claim. How long after its Pod a
// trace may be there is for invariant I9 to judge; the looks are recorded.
func (s *scene) clean(ctx context.Context, node nodes) error {
	var group errgroup.Group
	for _, name := range s.gpuNodes() {
		group.Go(func() error { return s.cleanNode(ctx, node, name) })
	}
	return group.Wait()
}

func (s *scene) cleanNode(ctx context.Context, node nodes, name string) error {
	return s.lookUntil(ctx, node, name, "be clean", func(host *invariants.Host) bool { return len(host.CDI)+len(host.Prepared) == 0 })
}

// lookUntil looks at a node until what is there is as it should be.
func (w *world) lookUntil(ctx context.Context, node nodes, name, what string, good func(*invariants.Host) bool) error {
	state := "nobody has looked"
	look := func(ctx context.Context) (bool, string) {
		host, err := node.host(ctx, name)
		if err != nil {
			return false, err.Error()
		}
		w.log.Add(invariants.Entry{Host: host})
		return good(host), fmt.Sprintf("CDI files of claims %v, checkpoint entries of %v", host.CDI, host.Prepared)
	}
	err := wait.PollUntilContextTimeout(ctx, lookEvery, within.looked, true, func(ctx context.Context) (is bool, _ error) {
		is, state = look(ctx)
		return is, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for node %s to %s (%s), %w", name, what, state, err)
	}
	return nil
}

// kubeletStatus checks that the kubelet's own status of the Pod of the suite
// names model and device.
func kubeletStatus(ctx context.Context, t *testing.T, s *scene) {
	if _, ok := s.provider.(nodes); !ok {
		t.Skip("no kubelet runs in a lab")
	}
	s.await(ctx, t, within.published, "allocatedResourcesStatus to name model and device", func() (bool, string) {
		pod := s.current("train")
		held := s.held(pod)
		for _, status := range pod.Status.ContainerStatuses {
			for _, r := range status.AllocatedResourcesStatus {
				for _, one := range r.Resources {
					if r.Name == "claim:accelerator" && strings.Contains(string(one.ResourceID), held[0].name) &&
						strings.Contains(string(one.ResourceID), held[0].model) && one.Health == corev1.ResourceHealthStatusHealthy {
						return true, ""
					}
				}
			}
		}
		return false, fmt.Sprintf("want %s %s in %+v", held[0].model, held[0].name, pod.Status.ContainerStatuses)
	})
}
