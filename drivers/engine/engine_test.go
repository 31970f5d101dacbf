package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
)

func TestPrepareAndUnprepare(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocate("c", "gpu-1", "gpu-0")
	first := n.mustPrepare(claim)
	if len(first) != 2 || first[0].DeviceName != "gpu-1" || first[0].PoolName != pool || first[0].Requests[0] != "accelerator/h100" {
		t.Errorf("kubelet is told %+v", first)
	}
	if got := first[0].Metadata.Attributes["model"].StringValue; got == nil || *got != "H100" {
		t.Errorf("metadata is %+v", first[0].Metadata)
	}
	n.expect("prepared", []string{string(claim.UID)}, []string{string(claim.UID) + "=PrepareCompleted"})
	if n.observer.holding != 1 {
		t.Errorf("%d claims are reported", n.observer.holding)
	}
	calls := len(n.hooks.called)
	n.restart()
	if again := n.mustPrepare(claim); !reflect.DeepEqual(first, again) {
		t.Errorf("again kubelet is told %+v, before %+v", again, first)
	}
	if len(n.hooks.called) != calls {
		t.Errorf("a claim that is prepared went through %v", n.hooks.called[calls:])
	}
	for range 2 {
		if err := n.unprepare(claim); err != nil {
			t.Errorf("unpreparing: %v", err)
		}
		n.expect("unprepared", nil, nil)
	}
	if !slices.Equal(n.hardware.released, []string{"gpu-1", "gpu-0"}) {
		t.Errorf("released are %v", n.hardware.released)
	}
	if n.observer.holding != 0 || len(n.observer.recovered) != 0 {
		t.Errorf("observed %+v", n.observer)
	}
}

func TestHooksSeeEveryPointInOrder(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	if err := n.unprepare(claim); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.hooks.called, Points()) {
		t.Errorf("passed are %v, want %v", n.hooks.called, Points())
	}
	n.engine.Hooks = nil
	n.mustPrepare(claim)
}

func TestRefusals(t *testing.T) {
	admin := true
	for name, test := range map[string]struct {
		change func(n *node, claim *resourcev1.ResourceClaim)
		class  Class
		want   string
	}{
		"no allocation": {func(_ *node, c *resourcev1.ResourceClaim) { c.Status.Allocation = nil }, ClassNotAllocated, "it has no allocation"},
		"of another driver": {func(_ *node, c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Driver = "gpu.nvidia.com"
		}, ClassNotAllocated, "no device of gpu.gpuladder.dev"},
		"of another node": {func(_ *node, c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Pool = "node-2"
		}, ClassNotAllocated, "device gpu-0 is allocated from pool node-2, and this node has pool node-1"},
		"unknown device": {func(_ *node, c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = "gpu-9"
		}, ClassUnknownDevice, "device gpu-9 is allocated, and this node has none"},
		"parameters": {func(_ *node, c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{{
				DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver}},
			}}
		}, ClassUnsupported, "parameters"},
		"failed device": {func(n *node, _ *resourcev1.ResourceClaim) {
			n.hardware.severity["gpu-0"], n.hardware.troubles["gpu-0"] = inventory.Failed, "it fell off the bus"
		}, ClassDeviceFailed, "device gpu-0 has failed: it fell off the bus"},
		"suspected device": {func(n *node, _ *resourcev1.ResourceClaim) { n.hardware.severity["gpu-0"] = inventory.Suspect }, "", ""},
		"failed device for an admin": {func(n *node, c *resourcev1.ResourceClaim) {
			n.hardware.severity["gpu-0"] = inventory.Failed
			c.Status.Allocation.Devices.Results[0].AdminAccess = &admin
		}, "", ""},
		"hardware gone": {func(n *node, _ *resourcev1.ResourceClaim) { n.hardware.err = errors.New("no driver") }, ClassHardware, "no driver"},
		"hardware not ready": {func(n *node, _ *resourcev1.ResourceClaim) {
			n.hardware.editErr = errors.New("busy")
		}, ClassHardware, "making device gpu-0 ready, busy"},
		"no CDI folder": {func(n *node, _ *resourcev1.ResourceClaim) {
			if os.Remove(n.cdi) != nil || os.WriteFile(n.cdi, nil, 0o600) != nil {
				panic("no file in the place of the folder")
			}
		}, ClassCDI, "CDI"},
		"newer checkpoint": {func(n *node, _ *resourcev1.ResourceClaim) {
			if err := os.WriteFile(filepath.Join(n.data, checkpoint.FileName), []byte(`{"schema":99}`), 0o600); err != nil {
				panic(err)
			}
		}, ClassCheckpoint, "schema version 99"},
		"failing hook": {func(n *node, _ *resourcev1.ResourceClaim) {
			n.hooks.fail = map[Point]error{AfterCheckpointStarted: errors.New("fault injected")}
		}, ClassOther, "fault injected"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 2)
			claim := n.api.allocate("c", "gpu-0")
			other := n.api.allocate("other", "gpu-1")
			test.change(n, claim)
			results := n.engine.Prepare(t.Context(), []*resourcev1.ResourceClaim{claim, other})
			err := results[claim.UID].Err
			if len(results) != 2 {
				t.Errorf("%d results for 2 claims", len(results))
			}
			if test.class == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if err == nil || ClassOf(err) != test.class || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "preparing claim team-a/c, ") {
				t.Fatalf("got %v (%s), want %s with %q", err, ClassOf(err), test.class, test.want)
			}
			if !slices.Contains(Classes(), ClassOf(err)) {
				t.Errorf("%s is no known class", ClassOf(err))
			}
			if n.observer.prepared[0] == nil || ClassOf(n.observer.prepared[0]) != test.class {
				t.Errorf("observed was %v", n.observer.prepared[0])
			}
			switch test.class {
			case ClassNotAllocated, ClassUnsupported, ClassUnknownDevice, ClassDeviceFailed: // it is about the claim
				if results[other.UID].Err != nil {
					t.Errorf("the other claim failed too: %v", results[other.UID].Err)
				}
				n.expect("afterwards", []string{string(other.UID)}, []string{string(other.UID) + "=PrepareCompleted"})
			}
		})
	}
}

func TestHeldDevices(t *testing.T) {
	admin := true
	share := func(c *resourcev1.ResourceClaim, id types.UID) *resourcev1.ResourceClaim {
		c.Status.Allocation.Devices.Results[0].ShareID = &id
		return c
	}
	asAdmin := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		c.Status.Allocation.Devices.Results[0].AdminAccess = &admin
		return c
	}
	same := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return c }
	for name, test := range map[string]struct {
		held, wanted string
		first, then  func(*resourcev1.ResourceClaim) *resourcev1.ResourceClaim
		refused      string
	}{
		"same device":    {"gpu-0", "gpu-0", same, same, "device gpu-0 is still held by claim team-a/holder (holder-uid-1)"},
		"another device": {"gpu-0", "gpu-1", same, same, ""},
		"by an admin":    {"gpu-0", "gpu-0", asAdmin, same, ""},
		"for an admin":   {"gpu-0", "gpu-0", same, asAdmin, ""},
		"two shares": {
			"gpu-0", "gpu-0", func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return share(c, "a") },
			func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return share(c, "b") }, "",
		},
		"one share twice": {
			"gpu-0", "gpu-0", func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return share(c, "a") },
			func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return share(c, "a") }, "is still held",
		},
		"a share and all":       {"gpu-0", "gpu-0", func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return share(c, "a") }, same, "is still held"},
		"the other half":        {"mig-a", "mig-b", same, same, ""},
		"the board of a half":   {"mig-a", "mig-whole", same, same, "device mig-whole is still held by claim team-a/holder (holder-uid-1), which shares the board as mig-a"},
		"a half of the board":   {"mig-whole", "mig-b", same, same, "shares the board as mig-whole"},
		"a half, for an admin":  {"mig-whole", "mig-b", same, asAdmin, ""},
		"a half, held by admin": {"mig-whole", "mig-b", asAdmin, same, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 2)
			holder := test.first(n.api.allocate("holder", test.held))
			n.mustPrepare(holder)
			n.restart()
			wanted := test.then(n.api.allocate("wanted", test.wanted))
			_, err := n.prepare(wanted)
			if test.refused == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var held *HeldError
			if !errors.As(err, &held) || ClassOf(err) != ClassDeviceHeld || !strings.Contains(err.Error(), test.refused) {
				t.Fatalf("got %v, want %q in it", err, test.refused)
			}
			if held.HolderUID != holder.UID || held.Holder.Name != "holder" {
				t.Errorf("the holder is %+v", held)
			}
			// Whatever the API server says: only kubelet's word frees it.
			n.api.remove("holder")
			if _, err := n.prepare(wanted); ClassOf(err) != ClassDeviceHeld {
				t.Errorf("after the holder was deleted by force: %v", err)
			}
			if err := n.unprepare(holder); err != nil {
				t.Fatal(err)
			}
			n.mustPrepare(wanted)
		})
	}
}

// TestBootForgets: after a boot nothing is prepared any more, and kubelet's
// call makes it again.
func TestBootForgets(t *testing.T) {
	for name, wiped := range map[string]bool{"CDI on tmpfs": true, "CDI on disk": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 2)
			stays, goes := n.api.allocate("stays", "gpu-0"), n.api.allocate("goes", "gpu-1")
			before := n.mustPrepare(stays)
			n.mustPrepare(goes)
			n.boot("boot-2")
			if wiped {
				if err := os.RemoveAll(n.cdi); err != nil {
					t.Fatal(err)
				}
			}
			n.restart()
			if !wiped {
				n.expect("booted", nil, nil)
			}
			if !slices.Equal(n.observer.rebooted, []int{2}) {
				t.Errorf("boots observed: %v", n.observer.rebooted)
			}
			// The Pod of "goes" is gone; its device is free for another.
			n.mustPrepare(n.api.allocate("new", "gpu-1"))
			if after := n.mustPrepare(stays); !reflect.DeepEqual(before, after) {
				t.Errorf("kubelet is told %+v, before the boot %+v", after, before)
			}
			if len(n.files()) != 2 {
				t.Errorf("CDI files are %v", n.files())
			}
			n.restart()
			if len(n.observer.rebooted) != 1 {
				t.Error("one boot was seen twice")
			}
		})
	}
}

// TestCDIFileThatVanished is a node whose /var/run was wiped under one boot ID,
// as a container that stands for a node does when it restarts.
func TestCDIFileThatVanished(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	before := n.mustPrepare(claim)
	if err := os.RemoveAll(n.cdi); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if after := n.mustPrepare(claim); !reflect.DeepEqual(before, after) {
		t.Errorf("kubelet is told %+v, before %+v", after, before)
	}
	n.expect("prepared again", []string{string(claim.UID)}, []string{string(claim.UID) + "=PrepareCompleted"})
}

// TestAllocationThatChanged: the same claim comes with another device, and
// kubelet's call to unprepare the first never came.
func TestAllocationThatChanged(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	claim.Status.Allocation.Devices.Results[0].Device = "gpu-1"
	if devices := n.mustPrepare(claim); devices[0].DeviceName != "gpu-1" {
		t.Errorf("kubelet is told %+v", devices)
	}
	if !slices.Equal(n.hardware.released, []string{"gpu-0"}) {
		t.Errorf("released are %v", n.hardware.released)
	}
	n.mustPrepare(n.api.allocate("other", "gpu-0"))
}

func TestUnprepareWhilePreparing(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	other := n.driver() // of a rolling update
	n.hooks.then = func(point Point) {
		if point != AfterCDI {
			return
		}
		n.hooks.then = nil
		mine := n.engine
		n.engine = other
		if err := n.unprepare(claim); err != nil {
			t.Error(err)
		}
		n.engine = mine
	}
	if _, err := n.prepare(claim); ClassOf(err) != ClassUnprepared {
		t.Errorf("got %v", err)
	}
	n.expect("afterwards", nil, nil)
}

// TestALatePrepareReplacesNothing: a call that was slow comes to its end after
// the claim has got another device and was prepared for that.
func TestALatePrepareReplacesNothing(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocate("c", "gpu-0")
	anew := claim.DeepCopy()
	anew.Status.Allocation.Devices.Results[0].Device = "gpu-1"
	n.hooks.then = func(point Point) {
		if point == AfterCheckpointStarted {
			n.hooks.then = nil
			n.mustPrepare(anew)
		}
	}
	if _, err := n.prepare(claim); ClassOf(err) != ClassUnprepared {
		t.Errorf("got %v", err)
	}
	held, err := n.engine.Held(quiet)
	if err != nil {
		t.Fatal(err)
	}
	known := held[claim.UID]
	if known == nil || known.Devices[0].Name != "gpu-1" || !n.engine.CDI.Has("boot-1", claim.UID, known) {
		t.Errorf("recorded is %+v, and the file does not say so", known)
	}
}

// TestALatePrepareIsNotAnotherOne: the file of the first call is gone with the
// first record, and the second call has not written one yet.
func TestALatePrepareIsNotAnotherOne(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.hooks.then = func(point Point) {
		if point != AfterCDI {
			return
		}
		n.hooks.then = nil
		if err := n.unprepare(claim); err != nil {
			t.Error(err)
		}
		n.clock.SetTime(n.clock.Now().Add(time.Millisecond))
		n.hooks.crash = AfterCheckpointStarted
		alive(func() { _, _ = n.prepare(claim) })
	}
	if _, err := n.prepare(claim); ClassOf(err) != ClassUnprepared {
		t.Errorf("got %v", err)
	}
	n.expect("afterwards", nil, []string{string(claim.UID) + "=PrepareStarted"})
	n.mustPrepare(claim)
}

// TestTwoDriversOneNode prepares and unprepares from two drivers at once.
func TestTwoDriversOneNode(t *testing.T) {
	n := newNode(t, 4)
	drivers := []*Engine{n.engine, n.driver()}
	var group sync.WaitGroup
	for i, name := range []string{"a", "b", "c", "d"} {
		claim := n.api.allocate(name, "gpu-"+string('0'+byte(i)))
		for _, engine := range drivers {
			group.Go(func() {
				for range 3 {
					if err := engine.Prepare(t.Context(), []*resourcev1.ResourceClaim{claim})[claim.UID].Err; err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	group.Wait()
	if len(n.files()) != 4 || len(n.record()) != 4 {
		t.Errorf("files are %v, recorded %v", n.files(), n.record())
	}
	// All want one device: exactly one gets it.
	n = newNode(t, 1)
	drivers = []*Engine{n.engine, n.driver()}
	var mu sync.Mutex
	won := 0
	for i := range 8 {
		claim := n.api.allocate("race-"+string('0'+byte(i)), "gpu-0")
		group.Go(func() {
			err := drivers[i%2].Prepare(t.Context(), []*resourcev1.ResourceClaim{claim})[claim.UID].Err
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if ClassOf(err) != ClassDeviceHeld {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if won != 1 {
		t.Errorf("%d claims got one device", won)
	}
}

func TestCollect(t *testing.T) {
	for name, test := range map[string]struct {
		change func(n *node)
		why    string
	}{
		"in use":       {func(*node) {}, ""},
		"gone":         {func(n *node) { n.api.remove("c") }, "c: it is gone"},
		"replaced":     {func(n *node) { n.api.allocate("c", "gpu-0") }, "c: another claim has its name"},
		"deallocated":  {func(n *node) { n.api.claims["team-a/c"].Status.Allocation = nil }, "c: it is no longer allocated"},
		"unreserved":   {func(n *node) { n.api.claims["team-a/c"].Status.ReservedFor = nil }, "c: it is reserved for nobody"},
		"on elsewhere": {func(n *node) { n.api.claims["team-a/c"].Status.Allocation.Devices.Results[0].Pool = "x" }, "c: it is no longer allocated on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			n.mustPrepare(n.api.allocate("c", "gpu-0"))
			test.change(n)
			collect := func() {
				t.Helper()
				if err := n.engine.Collect(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			collect()
			n.clock.SetTime(n.clock.Now().Add(9 * time.Minute))
			collect()
			if len(n.observer.collected) != 0 || len(n.files()) != 1 {
				t.Fatal("it was collected too early")
			}
			n.clock.SetTime(n.clock.Now().Add(time.Minute))
			collect()
			if test.why == "" {
				if len(n.files()) != 1 || len(n.observer.collected) != 0 {
					t.Errorf("a claim in use was collected: %v", n.observer.collected)
				}
				return
			}
			if !slices.Equal(n.observer.collected, []string{test.why}) {
				t.Errorf("collected are %v, want %q", n.observer.collected, test.why)
			}
			n.expect("collected", nil, nil)
		})
	}
}

// TestCollectSeesAClaimThatCameBack: between the first look and the lock the
// claim is reserved again.
func TestCollectSeesAClaimThatCameBack(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	reserved := claim.Status.ReservedFor
	n.api.claims["team-a/c"].Status.ReservedFor = nil
	if err := n.engine.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.clock.SetTime(n.clock.Now().Add(time.Hour))
	n.engine.Claims = &changing{api: n.api, after: 1, change: func() { n.api.claims["team-a/c"].Status.ReservedFor = reserved }}
	if err := n.engine.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(n.files()) != 1 || len(n.observer.collected) != 0 {
		t.Errorf("it was collected: %v", n.observer.collected)
	}
	// Once more from the start: what was counted before must not count now.
	n.api.claims["team-a/c"].Status.ReservedFor = nil
	if err := n.engine.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(n.observer.collected) != 0 {
		t.Error("the time before it came back was counted")
	}
}

// changing is an API server that changes after so many reads.
type changing struct {
	*api
	after  int
	change func()
}

func (c *changing) Get(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim, err := c.api.Get(ctx, namespace, name)
	if c.after--; c.after == 0 {
		c.change()
	}
	return claim, err
}

// TestCollectingGoesOn: what can't be taken back keeps nothing else.
func TestCollectingGoesOn(t *testing.T) {
	n := newNode(t, 2)
	stuck, other := n.api.allocate("a", "gpu-0"), n.api.allocate("b", "gpu-1")
	n.mustPrepare(stuck)
	n.mustPrepare(other)
	n.api.remove("a")
	n.api.remove("b")
	if err := os.Remove(n.engine.CDI.Path(stuck.UID)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(n.engine.CDI.Path(stuck.UID), "not empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	_ = n.engine.Collect(quiet)
	n.clock.SetTime(n.clock.Now().Add(11 * time.Minute))
	if err := n.engine.Collect(quiet); err == nil || !strings.Contains(err.Error(), "claim team-a/a (") {
		t.Errorf("got %v", err)
	}
	if got := n.record(); !slices.Equal(got, []string{string(stuck.UID) + "=PrepareCompleted"}) {
		t.Errorf("recorded are %v", got)
	}
}

// TestAGuessThatIsPreparedWhileCollecting: what was only assumed is prepared,
// and its Pod deleted by force, while the API server is asked.
func TestAGuessThatIsPreparedWhileCollecting(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	remove(n, checkpoint.FileName)
	n.restart()
	n.engine.Claims = &slowAPI{api: n.api, first: func() {
		n.mustPrepare(claim)
		n.api.remove("c")
	}}
	if err := n.engine.Collect(quiet); err != nil {
		t.Fatal(err)
	}
	if _, err := n.prepare(n.api.allocate("rival", "gpu-0")); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
	n.clock.SetTime(n.clock.Now().Add(11 * time.Minute))
	if err := n.engine.Collect(quiet); err != nil {
		t.Fatal(err)
	}
	n.expect("collected", nil, nil)
}

// slowAPI has something done before its first answer.
type slowAPI struct {
	*api
	first func()
}

func (a *slowAPI) Get(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	if first := a.first; first != nil {
		a.first = nil
		first()
	}
	return a.api.Get(ctx, namespace, name)
}

func TestNoAPIServerCollectsNothing(t *testing.T) {
	n := newNode(t, 1)
	n.mustPrepare(n.api.allocate("c", "gpu-0"))
	n.api.remove("c")
	n.api.err = errors.New("connection refused")
	if err := n.engine.Collect(t.Context()); ClassOf(err) != ClassAPI {
		t.Errorf("got %v", err)
	}
	if len(n.files()) != 1 {
		t.Error("it was collected")
	}
}

func TestNoBootID(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.boot("")
	if _, err := n.prepare(claim); err == nil || !strings.Contains(err.Error(), "boot_id is empty") {
		t.Errorf("got %v", err)
	}
}
