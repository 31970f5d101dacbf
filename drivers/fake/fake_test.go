package fake

import (
	"reflect"
	"sync"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/fleet"
)

func inventoryOf(t *testing.T, gpus int) *Inventory {
	t.Helper()
	made, err := New(fleet.New(fleet.Group{Name: "g", Nodes: 2, Board: "L4", GPUs: gpus}), "g-0001")
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestDevicesAreThoseOfTheFleet(t *testing.T) {
	f := fleet.New(fleet.Group{Name: "g", Nodes: 2, Board: "L4", GPUs: 12})
	want, err := f.Devices("g-0001")
	if err != nil {
		t.Fatal(err)
	}
	got, err := inventoryOf(t, 12).Pool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Devices, want) || len(got.SharedCounters) != 0 {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUnknownNode(t *testing.T) {
	if _, err := New(fleet.New(fleet.Group{Name: "g", Nodes: 1}), "g-0001"); err == nil {
		t.Error("a node that the fleet does not have was accepted")
	}
}

func TestDevicesBelongToTheCaller(t *testing.T) {
	i := inventoryOf(t, 1)
	first, _ := i.Pool(t.Context())
	first.Devices[0].Name = "other"
	first.Devices[0].Attributes[fleet.AttributeModel] = resourcev1.DeviceAttribute{}
	second, _ := i.Pool(t.Context())
	if second.Devices[0].Name != "gpu-0" || second.Devices[0].Attributes[fleet.AttributeModel].StringValue == nil {
		t.Error("a caller changed the inventory")
	}
}

func TestTaintsAreToldOnceAndSeen(t *testing.T) {
	i := inventoryOf(t, 2)
	taint := resourcev1.DeviceTaint{Key: "example.com/bad", Effect: resourcev1.DeviceTaintEffectNoSchedule}
	for range 3 {
		if err := i.SetTaints("gpu-1", taint); err != nil {
			t.Fatal(err)
		}
	}
	<-i.Changed()
	select {
	case <-i.Changed():
		t.Error("changes before the first reading were told twice")
	default:
	}
	pool, _ := i.Pool(t.Context())
	if len(pool.Devices[0].Taints) != 0 || len(pool.Devices[1].Taints) != 1 || pool.Devices[1].Taints[0].Key != taint.Key {
		t.Errorf("unexpected taints %v and %v", pool.Devices[0].Taints, pool.Devices[1].Taints)
	}
	if err := i.SetTaints("gpu-1"); err != nil {
		t.Fatal(err)
	}
	<-i.Changed()
	if pool, _ = i.Pool(t.Context()); len(pool.Devices[1].Taints) != 0 {
		t.Error("the taint stayed")
	}
	if err := i.SetTaints("gpu-7", taint); err == nil {
		t.Error("a device that is not there was tainted")
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	i := inventoryOf(t, 8)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				if err := i.SetTaints("gpu-3", resourcev1.DeviceTaint{Key: "example.com/bad"}); err != nil {
					t.Error(err)
				}
				if _, err := i.Pool(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
