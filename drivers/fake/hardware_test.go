package fake

import (
	"context"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/drivers/inventory"
)

// made is what is wrong by request.
type made struct {
	changed chan struct{}
	asked   []string
}

func (m *made) Troubles(devices []string) []inventory.Trouble {
	m.asked = devices
	return []inventory.Trouble{{Origin: inventory.Origin{Device: devices[0], Source: "xid"}, Severity: inventory.Failed}}
}

func (m *made) Changed() <-chan struct{} { return m.changed }

func poolOf(names ...string) inventory.Pool {
	var pool inventory.Pool
	for _, name := range names {
		pool.Devices = append(pool.Devices, resourcev1.Device{Name: name})
	}
	pool.SharedCounters = []resourcev1.CounterSet{{Name: "set"}}
	return pool
}

func TestHardware(t *testing.T) {
	troubles := &made{changed: make(chan struct{})}
	h := NewHardware(t.Context(), poolOf("gpu-0", "gpu-1"), troubles)
	pool, err := h.Pool(t.Context())
	if err != nil || len(pool.Devices) != 2 || len(pool.SharedCounters) != 1 {
		t.Fatalf("the pool is %+v, %v", pool, err)
	}
	pool.Devices[0].Name = "other"
	if got := strings.Join(h.Names(), " "); got != "gpu-0 gpu-1" {
		t.Errorf("a caller changed the hardware to %s", got)
	}
	report, err := h.Health(t.Context())
	if err != nil || len(report.Troubles) != 1 || report.Troubles[0].Device != "gpu-0" || len(troubles.asked) != 2 {
		t.Errorf("the report is %+v, %v", report, err)
	}
	troubles.changed <- struct{}{}
	<-h.Changed()
	h.SetPool(poolOf("gpu-7"))
	<-h.Changed()
	if got := strings.Join(h.Names(), " "); got != "gpu-7" {
		t.Errorf("the hardware has %s", got)
	}
}

func TestHardwareWithoutFaultsIsHealthy(t *testing.T) {
	h := NewHardware(t.Context(), poolOf("gpu-0"), nil)
	if report, err := h.Health(t.Context()); err != nil || len(report.Troubles) != 0 {
		t.Errorf("the report is %+v, %v", report, err)
	}
}

func TestEditsStandForTheGPU(t *testing.T) {
	h := NewHardware(t.Context(), poolOf("gpu-0"), nil)
	edits, err := h.Edits(t.Context(), "gpu-0")
	if err != nil || len(edits.DeviceNodes) != 1 || len(edits.Env) != 0 || len(edits.Mounts) != 0 {
		t.Fatalf("the edits are %+v, %v", edits, err)
	}
	if node := edits.DeviceNodes[0]; node.Path != "/dev/ladder/gpu-0" || node.HostPath != "/dev/null" || node.Permissions != "rw" {
		t.Errorf("the node is %+v", node)
	}
	if _, err := h.Edits(context.Background(), "gpu-9"); err == nil || !strings.Contains(err.Error(), "gpu-9") {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := h.Release(t.Context(), "gpu-9"); err != nil {
		t.Error(err)
	}
}
