//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/workload"
)

// Suites about parts of a node that end while Pods run or start. Only kind has
// such nodes.

var realNodes = []string{onKind}

// nodes of the provider; these suites run nowhere without.
func (s *scene) nodes(t *testing.T) nodes {
	t.Helper()
	n, ok := s.provider.(nodes)
	if !ok {
		t.Fatal("this suite needs real nodes")
	}
	return n
}

// restarts is how often containers of a Pod have been started again.
func restarts(pod *corev1.Pod) int {
	n := 0
	for _, c := range pod.Status.ContainerStatuses {
		n += int(c.RestartCount)
	}
	return n
}

// prepared checks that a node has exactly the traces of these Pods' claims.
func (s *scene) prepared(ctx context.Context, t *testing.T, node string, pods ...*corev1.Pod) {
	t.Helper()
	var want []types.UID
	for _, p := range pods {
		for _, c := range s.claims(p) {
			want = append(want, c.UID)
		}
	}
	slices.Sort(want)
	err := s.lookUntil(ctx, s.nodes(t), node, fmt.Sprintf("have exactly the claims %v prepared", want), func(host *invariants.Host) bool {
		slices.Sort(host.CDI)
		return slices.Equal(host.CDI, want) && slices.Equal(host.Prepared, want)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestKubeletRestart(t *testing.T) {
	suite{
		name: "kubelet-restart", core: true, providers: realNodes,
		describe: "The kubelet of a node is restarted. The Pod that runs there goes on, and a new one starts.",
	}.then("the Pod goes on and a new one starts", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "strict-h100")
		before := s.start(ctx, t, s.pod("before", "strict-h100"))
		device := s.got(ctx, t, before, "H100", "h100", 1)[0]
		if err := s.nodes(t).restartKubelet(ctx, device.node); err != nil {
			t.Fatal(err)
		}
		// The node may be called not ready for a moment: with one tier the Pod waits.
		after := s.start(ctx, t, s.pod("after", "strict-h100"))
		s.got(ctx, t, after, "H100", "h100", 1)
		now := s.running(ctx, t, before.Name)
		if now.UID != before.UID || restarts(now) != 0 {
			t.Errorf("Pod %s was touched: UID %s after %s, %d restarts", now.Name, now.UID, before.UID, restarts(now))
		}
		s.prepared(ctx, t, device.node, now, after)
	}).run(t)
}

func TestDriverRestart(t *testing.T) {
	suite{
		name: "driver-restart", core: true, providers: realNodes,
		describe: "The driver is killed while a Pod runs, and replaced by a rolling update while another's device is being prepared. " +
			"Both Pods run, each with its claim prepared once.",
	}.then("killed while a Pod runs", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		pod := s.start(ctx, t, s.pod("runs", "h100-first"))
		device := s.got(ctx, t, pod, "H100", "h100", 1)[0]
		if err := s.nodes(t).killDriver(ctx, device.node); err != nil {
			t.Fatal(err)
		}
		if err := s.nodes(t).driverWorks(ctx); err != nil {
			t.Fatal(err)
		}
		if now := s.running(ctx, t, pod.Name); restarts(now) != 0 {
			t.Errorf("Pod %s was restarted with the driver", pod.Name)
		}
		s.prepared(ctx, t, device.node, pod)
	}).then("replaced while a device is being prepared", func(ctx context.Context, t *testing.T, s *scene) {
		node := s.nodes(t)
		where := s.devices("H100")[0].node
		s.atEnd(func(ctx context.Context) error {
			_, err := node.fault(ctx, where, "clear")
			return err
		})
		if _, err := node.fault(ctx, where, "slow-prepare", "20s"); err != nil {
			t.Fatal(err)
		}
		pod := s.pod("meanwhile", "h100-first")
		s.create(ctx, t, pod)
		err := workload.WaitFor(ctx, within.running, "the driver to be preparing", func(ctx context.Context) (bool, string, error) {
			faults, err := node.fault(ctx, where, "list", "-o", "json")
			return contains(faults, `"fired"`), faults, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := node.rollDriver(ctx); err != nil {
			t.Fatal(err)
		}
		if err := node.driverWorks(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := node.fault(ctx, where, "clear"); err != nil {
			t.Fatal(err)
		}
		now := s.running(ctx, t, pod.Name)
		s.got(ctx, t, now, "H100", "h100", 1)
		if restarts(now) != 0 {
			t.Errorf("Pod %s was restarted %d times", now.Name, restarts(now))
		}
		s.prepared(ctx, t, where, s.running(ctx, t, "runs"), now)
	}).then("nothing is left of both", func(ctx context.Context, t *testing.T, s *scene) {
		s.delete(ctx, t, "runs", "meanwhile")
		if err := s.clean(ctx, s.nodes(t)); err != nil {
			t.Fatal(err)
		}
	}).run(t)
}

func TestDriverCrash(t *testing.T) {
	suite{
		name: "driver-crash", core: false, providers: realNodes,
		describe: "The driver crashes between two of its own steps. The Pod runs all the same, and nothing is left of it.",
	}.then("at each of these points", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		node, where := s.nodes(t), s.devices("H100")[0].node
		s.atEnd(func(ctx context.Context) error {
			_, err := node.fault(ctx, where, "clear")
			return err
		})
		for _, point := range []string{"after-checkpoint-started", "after-cdi", "after-unprepare-cdi"} {
			if _, err := node.fault(ctx, where, "crash-at", point, "--once"); err != nil {
				t.Fatal(err)
			}
			pod := s.start(ctx, t, s.pod(point, "h100-first"))
			s.got(ctx, t, pod, "H100", "h100", 1)
			s.prepared(ctx, t, where, pod)
			s.delete(ctx, t, pod.Name)
			if err := s.clean(ctx, node); err != nil {
				t.Fatal(err)
			}
			faults, err := node.fault(ctx, where, "list", "-o", "json")
			if err != nil {
				t.Fatal(err)
			}
			if contains(faults, "crash-at") {
				t.Errorf("the driver has not crashed at %s: %s", point, faults)
			}
		}
	}).run(t)
}

func TestNodeReboot(t *testing.T) {
	suite{
		name: "node-reboot", core: true, providers: realNodes,
		describe: "A node is rebooted under a Pod: all processes end, /run is empty, the boot id is another. " +
			"The Pod's device is prepared again from nothing, and no device is lost.",
	}.then("the device is prepared again", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "strict-h100")
		node := s.nodes(t)
		pod := s.start(ctx, t, s.pod("survivor", "strict-h100"))
		device := s.got(ctx, t, pod, "H100", "h100", 1)[0]
		count := len(s.devices(""))
		boot, err := node.exec(ctx, device.node, "sh", "-c", "cat /var/lib/ladder/boot_id; cat "+checkpointFile)
		if err != nil {
			t.Fatal(err)
		}
		if err := node.restartNode(ctx, device.node); err != nil {
			t.Fatal(err)
		}
		s.await(ctx, t, within.node, "the Pod's container to be started again", func() (bool, string) {
			now := s.current(pod.Name)
			return now != nil && restarts(now) > 0 && ready(now), describe(now)
		})
		now := s.running(ctx, t, pod.Name)
		if is := s.held(now); now.UID != pod.UID || len(is) != 1 || is[0].String() != device.String() {
			t.Errorf("Pod %s has %v after %s", now.Name, is, device)
		}
		s.prepared(ctx, t, device.node, now)
		again, err := node.exec(ctx, device.node, "sh", "-c", "cat /var/lib/ladder/boot_id; cat "+checkpointFile)
		if err != nil {
			t.Fatal(err)
		}
		if idOf(again) == idOf(boot) || !contains(again[len(idOf(again)):], idOf(again)) {
			t.Errorf("the checkpoint is not of this boot: before\n%s\nafter\n%s", boot, again)
		}
		s.await(ctx, t, within.published, "all devices to be published", func() (bool, string) {
			return len(s.devices("")) == count, fmt.Sprintf("%d of %d", len(s.devices("")), count)
		})
		second := s.start(ctx, t, s.pod("second", "strict-h100"))
		s.got(ctx, t, second, "H100", "h100", 1)
	}).run(t)
}

// idOf is the first line.
func idOf(said string) string {
	for i, c := range said {
		if c == '\n' {
			return said[:i]
		}
	}
	return said
}
