//go:build e2e

package suites

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// labWorld is a lab of the suites' own; a lab belongs to the process that
// started it.
type labWorld struct{ *lab.Lab }

// startLab starts a lab with the nodes that kind has, too.
func startLab(ctx context.Context) (provider, error) {
	l, err := lab.Up(ctx, lab.Options{
		Name: "e2e",
		Fleet: fleet.New(
			fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 2},
			fleet.Group{Name: "a100-80", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 4},
			fleet.Group{Name: "l4", Nodes: 1, Board: "L4", GPUs: 4},
		),
		QuotaSettings: "notice: 10s",
		Progress:      os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	return &labWorld{l}, nil
}

func (l *labWorld) killScheduler(ctx context.Context) error { return l.Kill(ctx, lab.LadderScheduler) }

// prepare has nothing to do: the lab's fleet is made for the suites.
func (l *labWorld) prepare(context.Context) error { return nil }

func (l *labWorld) startScheduler(ctx context.Context) error {
	return l.Restart(ctx, lab.LadderScheduler)
}

// breakDevice makes the device carry the taints that a driver gives it once its
// failure is confirmed.
func (l *labWorld) breakDevice(_ context.Context, d device) error {
	inventory := l.Inventory(d.node)
	if inventory == nil {
		return fmt.Errorf("breaking device %s, the lab has no such node", d)
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	return inventory.SetTaints(d.name,
		resourcev1.DeviceTaint{Key: v1alpha1.TaintUnhealthy, Value: "GPULost", Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: &now},
		resourcev1.DeviceTaint{Key: v1alpha1.TaintFailed, Value: "GPULost", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &now})
}

func (l *labWorld) mendDevice(_ context.Context, d device) error {
	inventory := l.Inventory(d.node)
	if inventory == nil {
		return fmt.Errorf("mending device %s, the lab has no such node", d)
	}
	return inventory.SetTaints(d.name)
}

// workload changes nothing: nothing really runs in a lab.
func (l *labWorld) workload(*corev1.Pod) {}

func (l *labWorld) dump(_ context.Context, dir string) error {
	entries, err := os.ReadDir(l.LogsDir())
	if err != nil {
		return fmt.Errorf("keeping the lab's logs, %w", err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(l.LogsDir(), e.Name()))
		if err != nil {
			return fmt.Errorf("keeping the lab's logs, %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), content, 0o644); err != nil {
			return fmt.Errorf("keeping the lab's logs, %w", err)
		}
	}
	return nil
}

func (l *labWorld) end(ctx context.Context) error {
	select {
	case crash := <-l.Failed():
		_ = l.Down(ctx) // the crash is what matters
		return crash
	default:
		return l.Down(ctx)
	}
}
