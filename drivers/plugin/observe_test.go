package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
)

// event is the next one, which must begin so.
func (n *node) event(want string) {
	n.t.Helper()
	select {
	case got := <-n.recorder.Events:
		if !strings.HasPrefix(got, want) {
			n.t.Errorf("the Event is %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		n.t.Errorf("there is no Event %q", want)
	}
}

// TestHardwareThatComesLate: the driver runs before the kernel's driver does.
func TestHardwareThatComesLate(t *testing.T) {
	n := newNode(t, 1)
	n.board.trouble(errors.New("the kernel driver is not loaded"))
	n.start()
	kubelet := n.register()
	n.event("Warning HardwareSilent The hardware does not answer, its health is not known, and new devices are not published: reading health, the kernel driver is not loaded")
	n.eventually("the disk is in order", func() bool { return n.driver.started.Load() })
	if err := n.driver.Ready(); err == nil || !strings.Contains(err.Error(), "the hardware does not answer, reading health, the kernel driver is not loaded") {
		t.Errorf("it is ready: %v", err)
	}
	// What was prepared by the driver before can be given back meanwhile.
	unprepared, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{n.claim("c", "gpu-0")}})
	if err != nil || unprepared.Claims["c-uid"].Error != "" {
		t.Errorf("unpreparing: %v, %v", unprepared, err)
	}
	time.Sleep(300 * time.Millisecond)
	n.board.mu.Lock()
	asked := n.board.asked
	n.board.mu.Unlock()
	if asked < 2 || asked > 10 { // thirty without longer and longer waits
		t.Errorf("it was asked %d times", asked)
	}
	if len(n.slices()) != 0 {
		t.Error("devices of which nothing is known are published")
	}
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Suspect))
	n.eventually("the devices are published", func() bool { return n.taints() == "gpu-0=NoSchedule:Xid79," })
	n.eventually("it is ready", func() bool { return n.driver.Ready() == nil })
	n.event("Warning DeviceUnhealthy Device gpu-0 is suspect")
	n.event("Normal HardwareAnswers")
	if len(n.recorder.Events) != 0 {
		t.Errorf("there is one Event more: %s", <-n.recorder.Events)
	}
}

// TestHardwareThatHangsAtFirst: kubelet has its driver all the same.
func TestHardwareThatHangsAtFirst(t *testing.T) {
	n := newNode(t, 1)
	n.board.hang = make(chan struct{})
	n.start()
	n.register()
	if err := n.driver.Ready(); err == nil || !strings.Contains(err.Error(), "it was not asked yet") && !strings.Contains(err.Error(), "hardware") {
		t.Errorf("it is ready: %v", err)
	}
	if len(n.slices()) != 0 {
		t.Error("devices of which nothing is known are published")
	}
	close(n.board.hang)
	n.eventually("the devices are published", func() bool { return n.taints() == "gpu-0=" })
	n.eventually("it is ready", func() bool { return n.driver.Ready() == nil })
}

// TestHardwareThatFallsSilent: it is told once, and so is its end.
func TestHardwareThatFallsSilent(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	n.register()
	n.eventually("it is ready", func() bool { return n.driver.Ready() == nil })
	for range 2 {
		n.board.trouble(errors.New("nvml hangs"))
		n.eventually("it is not ready", func() bool { return n.driver.Ready() != nil })
		time.Sleep(50 * time.Millisecond)
		if got := n.taints(); got != "gpu-0=" {
			t.Errorf("published are %q", got)
		}
		n.board.trouble(nil)
		n.eventually("it is ready again", func() bool { return n.driver.Ready() == nil })
		n.event("Warning HardwareSilent")
		n.event("Normal HardwareAnswers")
	}
	if len(n.recorder.Events) != 0 {
		t.Errorf("there is one Event more: %s", <-n.recorder.Events)
	}
}

func TestDamagedHealthIsToldAndRecovered(t *testing.T) {
	n := newNode(t, 2)
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Failed))
	n.start()
	n.event("Warning DeviceFailed Device gpu-0")
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Failed), troubleOf("gpu-1", inventory.Failed))
	n.event("Warning DeviceFailed Device gpu-1")
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(n.config.DataFolder, health.FileName), 50); err != nil {
		t.Fatal(err)
	}
	n.board.trouble(nil)
	n.config.Recovery = time.Hour
	n.start()
	n.event("Warning HealthRecovered What is known of the devices' health was read from the file before: ")
	n.eventually("what was known is published", func() bool { return n.taints() == "gpu-0=NoSchedule:Xid79,NoExecute:Xid79, gpu-1=" })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{health.FileName, health.PreviousFileName} {
		if err := os.WriteFile(filepath.Join(n.config.DataFolder, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.event("Warning HealthForgotten What was known of the devices' health is lost: ")
}
