package nvml

// This file kills drivers for good: each is a process of its own, which ends by
// SIGKILL at one of the named points, or in the middle of what NVML does.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fakenvml"
)

// orderVariable has this test's program be a driver that carries out an order.
const orderVariable = "LADDER_TEST_DRIVER"

// order is what the other process is to do.
type order struct {
	Disk  *disk
	Point engine.Point
	// Unprepare the claim; otherwise prepare it.
	Unprepare bool
	Claim     *resourcev1.ResourceClaim
}

// deadly kills the process at a point.
type deadly engine.Point

func (d deadly) At(_ context.Context, point engine.Point, _ types.UID) error {
	if string(point) == string(d) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}

// carryOut is the other process; it returns its exit code.
func carryOut(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return failed(err)
	}
	var ended sync.WaitGroup
	d, err := o.Disk.drive(muted, deadly(o.Point), true, &ended)
	if err != nil {
		return failed(err)
	}
	if o.Unprepare {
		err = d.unprepare(o.Claim)
	} else {
		_, err = d.prepare(o.Claim)
	}
	if err != nil {
		return failed(err)
	}
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// process starts the other one.
func process(t *testing.T, o order) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(o)
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	cmd.Stderr = &strings.Builder{}
	must(t, cmd.Start())
	return cmd
}

// killed waits for the end of a process, which must be a violent one.
func killed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the driver was not killed: %v, %s", err, cmd.Stderr)
	}
}

// kinds of claims that are prepared in different ways.
type claimKind struct {
	board   string
	sharing string
	devices func(gpus []string) []string
}

func claimKinds() map[string]claimKind {
	return map[string]claimKind{
		"whole":        {"h100", "", func(gpus []string) []string { return gpus[:1] }},
		"time slicing": {"h100", `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`, func(gpus []string) []string { return gpus[:1] }},
		"partition":    {"h100-mig", "", func(gpus []string) []string { return []string{gpus[0] + "-mig-3g40gb-9-4"} }},
		"board":        {"h100-mig", "", func(gpus []string) []string { return gpus[:1] }},
		"partitions of two boards": {"h100-mig", "", func(gpus []string) []string {
			return []string{gpus[1] + "-mig-2g20gb-14-2", gpus[0] + "-mig-1g10gb-19-6"}
		}},
	}
}

// TestKilledAtEveryPoint: after a kill -9 at each point kubelet asks the next
// driver for the same again, or for the opposite if the Pod was deleted
// meanwhile. What is left is byte for byte the same as without the kill.
func TestKilledAtEveryPoint(t *testing.T) {
	programs := standIn(t)
	for _, board := range []string{"h100", "h100-mig"} {
		folder := t.TempDir()
		d := newDisk(t, folder, board, programs)
		installed, err := fakenvml.Control{Dir: d.Boards}.Installed()
		must(t, err)
		var gpus []string
		for _, gpu := range installed {
			gpus = append(gpus, gpu.Name())
		}
		for name, kind := range claimKinds() {
			if kind.board != board {
				continue
			}
			claim := allocated("c", "uid-c", kind.sharing, kind.devices(gpus)...)
			beside := map[string]string{"h100": gpus[1], "h100-mig": gpus[1] + "-mig-3g40gb-9-4"}[board]
			bystander := allocated("bystander", "uid-b", "", beside)
			k := &killing{disk: d, claim: claim, bystander: bystander}
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { k.run(t, folder, name) })
		}
	}
}

// killing is one kind of claim, and what is left of it without a kill.
type killing struct {
	*disk
	claim, bystander     *resourcev1.ResourceClaim
	prepared, unprepared remains
	answer               string
	ctx                  context.Context
	ended                sync.WaitGroup
}

// until returns what ends all drivers; the next test needs NVML closed.
func (k *killing) until() (over func()) {
	ctx, cancel := context.WithCancel(muted)
	k.ctx = ctx
	return func() { cancel(); k.ended.Wait() }
}

func (k *killing) run(t *testing.T, folder, name string) {
	defer k.until()()
	k.fresh(t, folder, name)
	d := k.begin(t)
	answer, err := d.prepare(k.claim)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("a driver root needs the right to mount and to change the root folder")
	}
	must(t, err)
	k.answer, k.prepared = asText(t, answer), k.remains(t, d)
	must(t, d.unprepare(k.claim))
	k.unprepared = k.remains(t, d)
	if reflect.DeepEqual(k.prepared, k.unprepared) {
		t.Fatal("there is no difference to be seen")
	}
	k.end(t, d)
	for _, point := range engine.Points() {
		for _, deleted := range []bool{false, true} {
			unpreparing := strings.Contains(string(point), "unprepare")
			if unpreparing && deleted {
				continue // unpreparing is all that is left to do
			}
			t.Run(fmt.Sprintf("%s/deleted=%v", point, deleted), func(t *testing.T) {
				k.fresh(t, folder, fmt.Sprintf("%s-%s-%v", name, point, deleted))
				k.kill(t, point, unpreparing, deleted)
			})
		}
	}
}

// asText has no pointers in it, as what is printed would.
func asText(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	must(t, err)
	return string(text)
}

// begin has another claim prepared, which must not notice, and the claim there.
func (k *killing) begin(t *testing.T) *driver {
	t.Helper()
	claims(k.API).store(t, []*resourcev1.ResourceClaim{k.claim, k.bystander})
	d := k.restart(t)
	_, err := d.prepare(k.bystander)
	must(t, err)
	return d
}

func (k *killing) restart(t *testing.T) *driver {
	t.Helper()
	d, err := k.drive(k.ctx, nil, true, &k.ended)
	must(t, err)
	t.Cleanup(d.stop)
	return d
}

func (k *killing) end(t *testing.T, d *driver) {
	t.Helper()
	must(t, errors.Join(d.unprepare(k.claim), d.unprepare(k.bystander)))
	if left := k.remains(t, d); len(left.Files)+len(left.Claims)+len(left.Instances)+len(left.Shared)+len(left.Intervals) > 0 {
		t.Errorf("in the end there is left %+v", left)
	}
	d.stop()
}

func (k *killing) kill(t *testing.T, point engine.Point, unpreparing, deleted bool) {
	d := k.begin(t)
	if unpreparing {
		_, err := d.prepare(k.claim)
		must(t, err)
	}
	d.stop()
	killed(t, process(t, order{Disk: k.disk, Point: point, Unprepare: unpreparing, Claim: k.claim}))

	d = k.restart(t)
	if point == engine.AfterCheckpointCompleted {
		rival := allocated("rival", "uid-r", "", k.claim.Status.Allocation.Devices.Results[0].Device)
		if _, err := d.prepare(rival); engine.ClassOf(err) != engine.ClassDeviceHeld {
			t.Errorf("another claim was given the device: %v", err)
		}
		must(t, d.unprepare(rival))
	}
	want := &k.prepared
	if unpreparing || deleted {
		want = &k.unprepared
		must(t, d.unprepare(k.claim))
	} else {
		answer, err := d.prepare(k.claim)
		must(t, err)
		if got := asText(t, answer); got != k.answer {
			t.Errorf("kubelet is told %s, without the kill %s", got, k.answer)
		}
	}
	if got := k.remains(t, d); !reflect.DeepEqual(&got, want) {
		t.Errorf("left is\n%+v\nwithout the kill it is\n%+v", got, *want)
	}
	if len(d.recovered) > 0 {
		t.Errorf("the checkpoint was made again from %v", d.recovered)
	}
	k.end(t, d)
}

// TestKilledWithHalfAPartition: the GPU instance is made, its compute instance
// hangs, and the driver is killed from outside. The next one completes what is
// there, or takes it away if the Pod is gone.
func TestKilledWithHalfAPartition(t *testing.T) {
	folder := t.TempDir()
	k := &killing{disk: newDisk(t, folder, "h100-mig", "")}
	defer k.until()()
	boards := fakenvml.Control{Dir: k.Boards}
	installed, err := boards.Installed()
	must(t, err)
	k.claim = allocated("c", "uid-c", "", installed[0].Name()+"-mig-3g40gb-9-4")
	k.bystander = allocated("bystander", "uid-b", "", installed[1].Name()+"-mig-3g40gb-9-4")
	const half, whole = "GPU 0 profile 9 at 4 with 0", "GPU 0 profile 9 at 4 with 1"
	for _, deleted := range []bool{false, true} {
		k.fresh(t, folder, fmt.Sprint(deleted))
		d := k.begin(t)
		d.stop()
		must(t, boards.Hang("nvmlGpuInstanceCreateComputeInstance", 0, time.Minute))
		cmd := process(t, order{Disk: k.disk, Claim: k.claim})
		eventually(t, "half of the partition is there", func() bool { return strings.Contains(strings.Join(k.instances(t), "; "), half) })
		must(t, cmd.Process.Kill())
		killed(t, cmd)
		must(t, boards.ClearFaults())
		d = k.restart(t)
		if deleted {
			must(t, d.unprepare(k.claim))
		} else {
			_, err := d.prepare(k.claim)
			must(t, err)
			if got := k.instances(t); len(got) != 2 || got[0] != whole {
				t.Errorf("there are %v", got)
			}
		}
		k.end(t, d)
	}
}

// TestWhatWasMadeForNobodyGoes: a driver dies when its claim's record and file
// are lost with it, and the API server forgets the claim: no one but the board
// knows of the partition. A driver that may removes it.
func TestWhatWasMadeForNobodyGoes(t *testing.T) {
	folder := t.TempDir()
	k := &killing{disk: newDisk(t, folder, "h100-mig", "")}
	defer k.until()()
	installed, err := fakenvml.Control{Dir: k.Boards}.Installed()
	must(t, err)
	k.claim = allocated("c", "uid-c", "", installed[0].Name()+"-mig-1g10gb-19-2")
	k.bystander = allocated("bystander", "uid-b", "", installed[1].Name())
	k.begin(t).stop()
	killed(t, process(t, order{Disk: k.disk, Point: engine.BeforeCheckpointCompleted, Claim: k.claim}))
	for _, pattern := range []string{filepath.Join(k.Data, "checkpoint*.json"), filepath.Join(k.CDI, "*uid-c*")} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, path := range found {
			must(t, os.Remove(path))
		}
	}
	claims(k.API).remove(t, k.claim.UID)
	d := k.restart(t)
	eventually(t, "the partition of nobody is gone", func() bool { return len(k.instances(t)) == 1 })
	if held, err := d.Held(muted); err != nil || len(held) != 1 || held["uid-b"] == nil {
		t.Errorf("held are %v, %v", held, err)
	}
	// The whole board is offered again once the driver has looked; kubelet asks
	// until then.
	eventually(t, "the whole board can be had", func() bool {
		_, err = d.prepare(allocated("next", "uid-n", "", installed[0].Name()))
		return err == nil
	})
	must(t, d.unprepare(allocated("next", "uid-n", "")))
	k.end(t, d)
}
