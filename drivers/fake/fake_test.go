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
	got, err := inventoryOf(t, 12).Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
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
	first, _ := i.Devices(t.Context())
	first[0].Name = "other"
	first[0].Attributes[fleet.AttributeModel] = resourcev1.DeviceAttribute{}
	second, _ := i.Devices(t.Context())
	if second[0].Name != "gpu-0" || second[0].Attributes[fleet.AttributeModel].StringValue == nil {
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
	devices, _ := i.Devices(t.Context())
	if len(devices[0].Taints) != 0 || len(devices[1].Taints) != 1 || devices[1].Taints[0].Key != taint.Key {
		t.Errorf("unexpected taints %v and %v", devices[0].Taints, devices[1].Taints)
	}
	if err := i.SetTaints("gpu-1"); err != nil {
		t.Fatal(err)
	}
	<-i.Changed()
	if devices, _ = i.Devices(t.Context()); len(devices[1].Taints) != 0 {
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
				if _, err := i.Devices(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
