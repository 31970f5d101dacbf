package engine

// This file tests prepares that fail or meet another one.

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
)

// TestAFailureHoldsNothing: what failed is taken back, and works later.
func TestAFailureHoldsNothing(t *testing.T) {
	for name, fail := range map[string]func(n *node, err error){
		"hook":     func(n *node, err error) { n.hooks.fail = map[Point]error{AfterCheckpointStarted: err} },
		"last one": func(n *node, err error) { n.hooks.fail = map[Point]error{AfterCDI: err} },
		"the end":  func(n *node, err error) { n.hooks.fail = map[Point]error{BeforeCheckpointCompleted: err} },
		"CDI folder wiped": func(n *node, err error) {
			n.hooks.then = func(point Point) {
				if point == AfterCDI && err != nil {
					for _, uid := range n.files() {
						_ = os.Remove(n.engine.CDI.Path(types.UID(uid)))
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			claim := n.api.allocate("c", "gpu-0")
			fail(n, errors.New("fault"))
			if _, err := n.prepare(claim); err == nil {
				t.Fatal("it did not fail")
			}
			n.expect("failed", nil, nil)
			fail(n, nil)
			n.mustPrepare(n.api.allocate("other", "gpu-0"))
		})
	}
}

// TestNoMomentWithoutABootID: what begin has read is not read again before
// there is something to take back.
func TestNoMomentWithoutABootID(t *testing.T) {
	n := newNode(t, 1)
	n.hooks.then = func(point Point) {
		if point == AfterCheckpointStarted {
			_ = os.Remove(n.bootFile)
		}
	}
	n.hardware.onEdits = func() { n.boot("boot-1") } // the same one
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	n.expect("prepared", []string{string(claim.UID)}, []string{string(claim.UID) + "=PrepareCompleted"})
}

// TestThePoolIsReplaced: between the look at the pool and the record of the
// claim the node has got other devices under the same names.
func TestThePoolIsReplaced(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	var asked []string
	problem := errors.New("the devices are being replaced")
	n.engine.Settled = func(_ context.Context, pool inventory.Pool) error {
		asked = append(asked, pool.Devices[0].Name)
		return problem
	}
	if _, err := n.prepare(claim); ClassOf(err) != ClassHardware || !errors.Is(err, problem) {
		t.Errorf("got %v", err)
	}
	n.expect("refused", nil, nil)
	problem = nil
	n.mustPrepare(claim)
	n.mustPrepare(claim)
	if len(asked) != 2 {
		t.Errorf("it was asked of %v", asked)
	}
}

// TestExclusively: no claim is recorded while someone acts on what is held.
func TestExclusively(t *testing.T) {
	n := newNode(t, 2)
	n.mustPrepare(n.api.allocate("held", "gpu-1"))
	claim := n.api.allocate("c", "gpu-0")
	prepared := make(chan error, 1)
	refused := errors.New("not now")
	err := n.engine.Exclusively(quiet, func(held map[types.UID]*checkpoint.Claim) error {
		go func() {
			prepared <- n.driver().Prepare(quiet, []*resourcev1.ResourceClaim{claim})[claim.UID].Err
		}()
		select {
		case err := <-prepared:
			t.Errorf("a claim was prepared meanwhile: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if len(held) != 1 {
			t.Errorf("held are %v", held)
		}
		clear(held) // it belongs to the caller
		return refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if err := <-prepared; err != nil {
		t.Error(err)
	}
	if held, err := n.engine.Held(quiet); err != nil || len(held) != 2 {
		t.Errorf("held are %v, %v", held, err)
	}
}

// TestThreeHalvesAreTooMany: each two fit, and both that are there are named.
// What is elsewhere, or belongs to an admin, is not.
func TestThreeHalvesAreTooMany(t *testing.T) {
	n := newNode(t, 1)
	first, second := n.api.allocate("a", "mig-a"), n.api.allocate("b", "mig-b")
	n.mustPrepare(first)
	n.mustPrepare(second)
	n.mustPrepare(n.api.allocate("elsewhere", "gpu-0"))
	admin, yes := n.api.allocate("admin", "mig-c"), true
	admin.Status.Allocation.Devices.Results[0].AdminAccess = &yes
	n.mustPrepare(admin)
	_, err := n.prepare(n.api.allocate("c", "mig-c"))
	var crowded *CrowdedError
	if !errors.As(err, &crowded) || ClassOf(err) != ClassDeviceHeld {
		t.Fatalf("got %v", err)
	}
	if len(crowded.Holders) != 2 || crowded.Holders[0].HolderUID != first.UID || crowded.Holders[1].HolderUID != second.UID {
		t.Errorf("the holders are %+v", crowded.Holders)
	}
	want := "device mig-c does not fit beside what is still held of its board (too little is left of slices in board): " +
		"mig-a by claim team-a/a (a-uid-1), mig-b by claim team-a/b (b-uid-2)"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAClaimThatCrowdsItself: no other claim is to blame.
func TestAClaimThatCrowdsItself(t *testing.T) {
	n := newNode(t, 0)
	_, err := n.prepare(n.api.allocate("c", "mig-a", "mig-b", "mig-c"))
	if ClassOf(err) != ClassDeviceHeld || !strings.Contains(err.Error(), "device mig-c does not fit beside the other devices of the same claim") {
		t.Errorf("got %v", err)
	}
	n.expect("refused", nil, nil)
}

// TestABoardThatIsTooFullHarmsNoOther: the checkpoint was lost while one claim's
// container ran on after it had been deleted by force, and its device was
// allocated again: more is held of the board than there is. Another board's
// devices are prepared all the same.
func TestABoardThatIsTooFullHarmsNoOther(t *testing.T) {
	n := newNode(t, 0)
	counters := func(amount string) map[string]resourcev1.Counter {
		return map[string]resourcev1.Counter{"slices": {Value: resource.MustParse(amount)}}
	}
	n.hardware.pool.SharedCounters = append(n.hardware.pool.SharedCounters, resourcev1.CounterSet{Name: "other", Counters: counters("2")})
	for _, name := range []string{"mig-d", "mig-e", "mig-f"} {
		n.hardware.pool.Devices = append(n.hardware.pool.Devices, resourcev1.Device{
			Name: name, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "other", Counters: counters("1")}},
		})
	}
	n.mustPrepare(n.api.allocate("a", "mig-a"))
	n.mustPrepare(n.api.allocate("b", "mig-b"))
	n.api.remove("a") // by force: its container runs on
	n.api.allocate("c", "mig-c")
	remove(n, checkpoint.FileName)
	n.restart()
	if got := n.record(); len(got) != 3 {
		t.Fatalf("recorded are %v", got)
	}
	if _, err := n.prepare(n.api.allocate("whole", "mig-whole")); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("the board that is full: %v", err)
	}
	n.mustPrepare(n.api.allocate("d", "mig-d"))
	n.mustPrepare(n.api.allocate("e", "mig-e"))
	_, err := n.prepare(n.api.allocate("f", "mig-f"))
	var crowded *CrowdedError
	if !errors.As(err, &crowded) || crowded.CounterSet != "other" || len(crowded.Holders) != 2 {
		t.Errorf("the other board once it is full: %v", err)
	}
}
