//go:build e2e

package suites

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// What hardware reports, from the error to the Pod that holds the device.

// xidsOf are a dozen and more XIDs and what they must do to a device. They stand
// here once more, so that the driver's own table is not its own judge.
var xidsOf = struct{ healthy, suspect, failed []int }{
	healthy: []int{13, 31, 43, 45, 63, 94},
	suspect: []int{48, 62, 74, 95, 109, 119, 140},
	failed:  []int{64, 79, 151},
}

func TestHealth(t *testing.T) {
	struck := map[int]device{} // by XID
	suite{
		name: "health", core: false, providers: realNodes,
		describe: "Errors of applications change nothing. Each error of the hardware taints its device, with an Event and in the metrics, " +
			"a Pod that holds the device is told, and after the repair all of it goes again.",
	}.then("errors of applications change nothing", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "strict-h100")
		pod := s.start(ctx, t, s.pod("train", "strict-h100"))
		held := s.got(ctx, t, pod, "H100", "h100", 1)[0]
		struck[xidsOf.suspect[0]] = held
		for _, code := range xidsOf.healthy {
			s.strike(ctx, t, held, code)
		}
	}).then("errors of the hardware taint their devices", func(ctx context.Context, t *testing.T, s *scene) {
		held := struck[xidsOf.suspect[0]]
		free := slices.DeleteFunc(s.devices(""), func(d device) bool { return d.String() == held.String() })
		codes := slices.Concat(xidsOf.suspect[1:], xidsOf.failed)
		if len(free) < len(codes) {
			t.Fatalf("%d XIDs for %d free devices", len(codes), len(free))
		}
		for i, code := range codes {
			struck[code] = free[i]
		}
		s.atEnd(func(ctx context.Context) error { return s.repair(ctx, struck) })
		for code, d := range struck {
			s.strike(ctx, t, d, code)
		}
		for code, d := range struck {
			want := severityIn(code)
			s.await(ctx, t, within.published, fmt.Sprintf("%s to be %s by XID %d", d, want, code), func() (bool, string) {
				is := severityOf(s.taints(d), code)
				return is == want, fmt.Sprintf("it is %s, its taints are %v", is, s.taints(d))
			})
		}
		// What was tainted by now was so by the later XID alone.
		for _, taint := range s.taints(held) {
			if taint.Value != fmt.Sprintf("Xid%d", xidsOf.suspect[0]) {
				t.Errorf("an application's error has tainted %s: %v", held, taint)
			}
		}
	}).then("by Events and metrics", func(ctx context.Context, t *testing.T, s *scene) {
		for code, d := range struck {
			reason := "DeviceUnhealthy"
			if slices.Contains(xidsOf.failed, code) {
				reason = "DeviceFailed"
			}
			s.eventOf(ctx, t, d, reason, code)
		}
		s.counted(ctx, t, struck)
	}).then("the Pod and its claim are told", func(ctx context.Context, t *testing.T, s *scene) {
		s.healthTold(ctx, t, "train", corev1.ResourceHealthStatusUnhealthy)
		s.claimTold(ctx, t, "train", metav1.ConditionFalse, fmt.Sprintf("Xid%d", xidsOf.suspect[0]))
	}).then("repaired, all of it goes", func(ctx context.Context, t *testing.T, s *scene) {
		if err := s.repair(ctx, struck); err != nil {
			t.Fatal(err)
		}
		for code, d := range struck {
			s.await(ctx, t, within.mended, fmt.Sprintf("%s to be healthy after XID %d", d, code), func() (bool, string) {
				return len(s.taints(d)) == 0, fmt.Sprint(s.taints(d))
			})
			s.eventOf(ctx, t, d, "DeviceRecovered", code)
		}
		s.counted(ctx, t, nil)
		s.healthTold(ctx, t, "train", corev1.ResourceHealthStatusHealthy)
		s.claimTold(ctx, t, "train", metav1.ConditionTrue, "Healthy")
	}).run(t)
}

// severityOf is what taints make of a device that has had an XID.
func severityOf(taints []resourcev1.DeviceTaint, code int) string {
	severity := "healthy"
	for _, t := range taints {
		switch {
		case t.Value != fmt.Sprintf("Xid%d", code):
			return fmt.Sprintf("tainted by %s", t.Value)
		case t.Key == v1alpha1.TaintFailed && t.Effect == resourcev1.DeviceTaintEffectNoExecute:
			return "failed"
		case t.Key == v1alpha1.TaintUnhealthy && t.Effect == resourcev1.DeviceTaintEffectNoSchedule:
			severity = "suspect"
		default:
			return fmt.Sprintf("tainted by %s:%s", t.Key, t.Effect)
		}
	}
	return severity
}

// strike has a device report an XID.
func (s *scene) strike(ctx context.Context, t *testing.T, d device, code int) {
	t.Helper()
	if err := s.nodes(t).xid(ctx, d, code); err != nil {
		t.Fatal(err)
	}
}

// repair mends all that were struck.
func (s *scene) repair(ctx context.Context, struck map[int]device) error {
	var group errgroup.Group
	for _, d := range struck {
		group.Go(func() error { return s.mendDevice(ctx, d) })
	}
	return group.Wait()
}

// eventOf waits for an Event on the node that tells of a device and an XID.
func (s *scene) eventOf(ctx context.Context, t *testing.T, d device, reason string, code int) {
	t.Helper()
	err := workload.WaitFor(ctx, within.published, fmt.Sprintf("an Event %s of %s and XID %d", reason, d, code), func(ctx context.Context) (bool, string, error) {
		list, err := s.kube.EventsV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return again(err)
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Kind != "Node" || e.Regarding.Name != d.node {
				continue
			}
			if strings.Contains(e.Note, "Device "+d.name+" ") && strings.Contains(e.Note, fmt.Sprintf("Xid%d", code)) {
				return true, "", nil
			}
			notes = append(notes, e.Note)
		}
		return false, fmt.Sprintf("those of this reason say %q", notes), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// counted waits until the drivers' metrics count exactly these devices as
// suspect and failed, and, where the driver hears XIDs, has counted each of
// them.
func (s *scene) counted(ctx context.Context, t *testing.T, struck map[int]device) {
	t.Helper()
	for _, node := range s.gpuNodes() {
		want := map[string]int{}
		for code, d := range struck {
			if d.node != node {
				continue
			}
			want[severityIn(code)]++
		}
		err := workload.WaitFor(ctx, within.published, fmt.Sprintf("the metrics of node %s to count %v", node, want), func(ctx context.Context) (bool, string, error) {
			text, err := s.nodes(t).metrics(ctx, node)
			if err != nil {
				return again(err)
			}
			for _, severity := range []string{"suspect", "failed"} {
				if n := sample(text, `ladder_driver_devices{health="`+severity+`"}`); n != want[severity] {
					return false, fmt.Sprintf("%d are %s", n, severity), nil
				}
			}
			for code, d := range struck {
				series := fmt.Sprintf(`ladder_driver_xids_total{severity="%s",xid="%d"}`, severityIn(code), code)
				if s.driver == drivenByNVML && d.node == node && sample(text, series) < 1 {
					return false, series + " is not counted", nil
				}
			}
			return true, "", nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func severityIn(code int) string {
	if slices.Contains(xidsOf.failed, code) {
		return "failed"
	}
	return "suspect"
}

// sample is a series' value in Prometheus' text, 0 where it is not there.
func sample(text, series string) int {
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, series+" "); found {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err == nil {
				return int(n)
			}
		}
	}
	return 0
}

// healthTold waits until the kubelet tells this health in the Pod's status.
func (s *scene) healthTold(ctx context.Context, t *testing.T, name string, want corev1.ResourceHealthStatus) {
	t.Helper()
	s.await(ctx, t, within.told, fmt.Sprintf("allocatedResourcesStatus of Pod %s to say %s", name, want), func() (bool, string) {
		pod := s.current(name)
		if pod == nil {
			return false, "it is not there"
		}
		for _, status := range pod.Status.ContainerStatuses {
			for _, r := range status.AllocatedResourcesStatus {
				for _, one := range r.Resources {
					if one.Health == want {
						return true, ""
					}
				}
			}
		}
		return false, fmt.Sprintf("%+v", pod.Status.ContainerStatuses)
	})
}

// claimTold waits until the status of the Pod's claim says so of its device.
func (s *scene) claimTold(ctx context.Context, t *testing.T, name string, want metav1.ConditionStatus, reason string) {
	t.Helper()
	s.await(ctx, t, within.told, fmt.Sprintf("the claim of Pod %s to say Healthy=%s, %s", name, want, reason), func() (bool, string) {
		var said []metav1.Condition
		for _, claim := range s.claims(s.current(name)) {
			for _, d := range claim.Status.Devices {
				said = append(said, d.Conditions...)
			}
		}
		return slices.ContainsFunc(said, func(c metav1.Condition) bool {
			return c.Type == "Healthy" && c.Status == want && c.Reason == reason
		}), fmt.Sprintf("%+v", said)
	})
}
