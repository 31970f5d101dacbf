package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// generateNames does what an API server does and client-go's fake does not: it
// names slices and counts their versions. Without versions the library can't
// tell that its cache is older than what it wrote last, and a change that it
// takes for done is lost until its next resync.
func generateNames(client *clientfake.Clientset) {
	var serial atomic.Int64
	client.PrependReactor("update", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.UpdateAction).GetObject().(*resourcev1.ResourceSlice)
		slice.ResourceVersion = fmt.Sprint(serial.Add(1))
		return false, nil, nil
	})
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice)
		if slice.Name == "" {
			slice.Name = fmt.Sprintf("%s%05d", slice.GenerateName, serial.Add(1))
		}
		slice.ResourceVersion = fmt.Sprint(serial.Add(1))
		return false, nil, nil
	})
}

// startNode runs [Node] for the test's duration, or until stop is called,
// which returns what Node returned.
func startNode(t *testing.T, client *clientfake.Clientset, node string, hardware inventory.Source) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Node(ctx, client, node, hardware) }()
	stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(10 * time.Second):
			return errors.New("it did not end")
		}
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func deviceCount(t *testing.T, client *clientfake.Clientset) int {
	count := 0
	for _, slice := range published(t, client) {
		count += len(slice.Spec.Devices)
	}
	return count
}

// TestBothWaysPublishTheSame is the promise of this package: what readers see
// does not tell how it was published.
func TestBothWaysPublishTheSame(t *testing.T) {
	f := testFleet(2, 130)
	byNode, direct := cluster(t, f), cluster(t, f)
	generateNames(byNode)
	for _, node := range f.NodeNames() {
		hardware, err := fake.New(f, node)
		if err != nil {
			t.Fatal(err)
		}
		startNode(t, byNode, node, hardware)
	}
	publishAll(t, direct, f.Slices(), quick)
	eventually(t, "all devices are published", func() bool { return deviceCount(t, byNode) == f.DeviceCount() })
	got, want := published(t, byNode), published(t, direct)
	if len(got) != len(want) {
		t.Fatalf("the library made %d slices, Direct %d", len(got), len(want))
	}
	for i := range got {
		if !strings.HasPrefix(got[i].Name, want[i].Name+"-") {
			t.Errorf("the library's slice %s is in the place of %s", got[i].Name, want[i].Name)
		}
		if got[i].Spec.Pool != want[i].Spec.Pool || *got[i].Spec.NodeName != *want[i].Spec.NodeName || got[i].Spec.Driver != want[i].Spec.Driver {
			t.Errorf("slice %d: the library made %+v, Direct %+v", i, got[i].Spec.Pool, want[i].Spec.Pool)
		}
		if !resourceslice.DevicesDeepEqual(got[i].Spec.Devices, want[i].Spec.Devices) {
			t.Errorf("slice %d: the devices differ", i)
		}
		if fmt.Sprint(got[i].OwnerReferences[0].UID) != fmt.Sprint(want[i].OwnerReferences[0].UID) || got[i].OwnerReferences[0].Name != want[i].OwnerReferences[0].Name {
			t.Errorf("slice %d: the owners differ: %+v, %+v", i, got[i].OwnerReferences, want[i].OwnerReferences)
		}
	}
}

// TestDirectTakesOver: Direct after the library leaves one complete pool.
func TestDirectTakesOver(t *testing.T) {
	f := testFleet(1, 2)
	client := cluster(t, f)
	generateNames(client)
	hardware, err := fake.New(f, "g-0000")
	if err != nil {
		t.Fatal(err)
	}
	stop := startNode(t, client, "g-0000", hardware)
	eventually(t, "the devices are published", func() bool { return deviceCount(t, client) == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Created: 1, Deleted: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	left := published(t, client)
	if len(left) != 1 || left[0].Spec.Pool.Generation != 2 {
		t.Errorf("left are %d slices, the first with %+v", len(left), left[0].Spec.Pool)
	}
}

func TestNodePublishesFaultsAndTheirEnd(t *testing.T) {
	f := testFleet(1, 2)
	client := cluster(t, f)
	generateNames(client)
	hardware, err := fake.New(f, "g-0000")
	if err != nil {
		t.Fatal(err)
	}
	stop := startNode(t, client, "g-0000", hardware)
	taints := func() int {
		count := 0
		for _, slice := range published(t, client) {
			for _, device := range slice.Spec.Devices {
				count += len(device.Taints)
			}
		}
		return count
	}
	eventually(t, "the devices are published", func() bool { return deviceCount(t, client) == 2 })
	if err := hardware.SetTaints("gpu-1", resourcev1.DeviceTaint{Key: "example.com/bad", Effect: resourcev1.DeviceTaintEffectNoSchedule}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the taint is published", func() bool { return taints() == 1 && deviceCount(t, client) == 2 })
	if err := hardware.SetTaints("gpu-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the taint is gone", func() bool { return taints() == 0 && deviceCount(t, client) == 2 })
	if err := stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if got := deviceCount(t, client); got != 2 {
		t.Errorf("%d devices are left after the end, want 2", got)
	}
}

func TestNodeFailsWithoutTheNode(t *testing.T) {
	client := clientfake.NewClientset()
	hardware, err := fake.New(testFleet(1, 1), "g-0000")
	if err != nil {
		t.Fatal(err)
	}
	if err := Node(t.Context(), client, "g-0000", hardware); err == nil || !strings.Contains(err.Error(), `looking up node`) {
		t.Errorf("got %v", err)
	}
}

type broken struct{ inventory.Source }

var errBroken = errors.New("the bus is gone")

func (broken) Pool(context.Context) (inventory.Pool, error) { return inventory.Pool{}, errBroken }

func TestNodeFailsWithItsInventory(t *testing.T) {
	client := cluster(t, testFleet(1, 1))
	if err := Node(t.Context(), client, "g-0000", broken{}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

func TestHandleErrorEndsOnWhatNoRetryMends(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	plugin := slicesOnly{stop: stop}
	plugin.HandleError(ctx, errBroken, "serving")
	if !errors.Is(context.Cause(ctx), errBroken) {
		t.Errorf("the cause is %v", context.Cause(ctx))
	}
}

func TestResources(t *testing.T) {
	for _, test := range []struct {
		gpus     int
		tainted  bool
		counters int
		want     string
	}{
		{0, false, 0, "[0]"},
		{1, false, 0, "[1]"},
		{128, false, 0, "[128]"},
		{129, false, 0, "[128 1]"},
		{64, true, 0, "[64]"},
		{129, true, 0, "[64 64 1]"},
		{70, false, 9, "[0 0 64 6]"},
	} {
		var devices []resourcev1.Device
		if test.gpus > 0 {
			devices = testFleet(1, test.gpus).Slices()[0].Spec.Devices
			if test.gpus > len(devices) {
				devices = append(devices, testFleet(1, test.gpus).Slices()[1].Spec.Devices...)
			}
		}
		if test.tainted {
			devices[0].Taints = []resourcev1.DeviceTaint{{Key: "example.com/bad"}}
		}
		hardware := inventory.Pool{Devices: devices, SharedCounters: make([]resourcev1.CounterSet, test.counters)}
		if test.counters > 0 {
			devices[0].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "c"}}
		}
		var sizes []int
		pool := Resources("p", hardware).Pools["p"]
		for _, slice := range pool.Slices {
			sizes = append(sizes, len(slice.Devices))
		}
		if got := fmt.Sprint(sizes); got != test.want {
			t.Errorf("%d devices, tainted %v: got %s, want %s", test.gpus, test.tainted, got, test.want)
		}
	}
}

// TestSlicesHaveTheLibrarysNames pins the rule by which the library starts the
// names of its slices: the index first, all of one length.
func TestSlicesHaveTheLibrarysNames(t *testing.T) {
	made := fleet.New(fleet.Group{Name: "g", Nodes: 1, Board: "T4", GPUs: 256}).Slices()
	if made[0].Name != "00000-gpu.gpuladder.dev-g-0000" || made[1].Name != "00001-gpu.gpuladder.dev-g-0000" {
		t.Errorf("got %s and %s", made[0].Name, made[1].Name)
	}
	if got := metav1.GetControllerOf(made[0]); got != nil {
		t.Errorf("a fleet's slice has an owner before it is published: %v", got)
	}
}
