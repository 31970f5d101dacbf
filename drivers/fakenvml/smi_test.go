package fakenvml

import (
	"encoding/xml"
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestSMISaysWhatNVMLDoes, also of what has happened since.
func TestSMISaysWhatNVMLDoes(t *testing.T) {
	m := newMachine(t, "h100-mig", 2)
	read := func() (log smiLog, text string) {
		t.Helper()
		data, err := m.SMI()
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(data, &log); err != nil {
			t.Fatal(err)
		}
		return log, string(data)
	}
	log, text := read()
	if !strings.Contains(text, "<!-- "+SMILabel+" -->") {
		t.Errorf("it does not say that it is a simulation: %s", text)
	}
	version, _ := m.SystemGetDriverVersion()
	if log.Driver != version || log.CUDA != "13.0" || log.Count != 2 || len(log.GPUs) != 2 {
		t.Fatalf("got driver %s, CUDA %s, %d GPUs", log.Driver, log.CUDA, log.Count)
	}
	for i, g := range log.GPUs {
		device, ret := m.DeviceGetHandleByIndex(i)
		m.ok(ret)
		name, _ := device.GetName()
		uuid, _ := device.GetUUID()
		serial, _ := device.GetSerial()
		minor, _ := device.GetMinorNumber()
		memory, _ := device.GetMemoryInfo()
		pci, _ := device.GetPciInfo()
		if g.Product != name || g.UUID != uuid || g.Serial != serial || g.Minor != minor || g.Memory.Total != mebibytes(memory.Total) || g.Architecture != "Hopper" {
			t.Errorf("GPU %d is %+v", i, g)
		}
		var id []byte
		for _, c := range pci.BusId {
			if c != 0 {
				id = append(id, byte(c))
			}
		}
		if !strings.EqualFold(g.PCI.BusID, string(id)) || g.ID != g.PCI.BusID {
			t.Errorf("GPU %d is at %s, in NVML at %s", i, g.PCI.BusID, id)
		}
		if g.CurrentMIG != "Enabled" || strings.TrimSpace(g.MIG.None) != "None" {
			t.Errorf("MIG of GPU %d is %s, devices %+v", i, g.CurrentMIG, g.MIG)
		}
	}
	device, ret := m.DeviceGetHandleByIndex(1)
	m.ok(ret)
	info, ret := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	m.ok(ret)
	instance, ret := device.CreateGpuInstance(&info)
	m.ok(ret)
	profile, ret := instance.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 0)
	m.ok(ret)
	_, ret = instance.CreateComputeInstance(&profile)
	m.ok(ret)
	made, _ := instance.GetInfo()
	if log, _ := read(); len(log.GPUs[0].MIG.Devices) != 0 || len(log.GPUs[1].MIG.Devices) != 1 || log.GPUs[1].MIG.Devices[0].GPUInstance != fmt.Sprint(made.Id) {
		t.Errorf("after one was made there are %+v and %+v", log.GPUs[0].MIG, log.GPUs[1].MIG)
	}
	if err := m.Vanish(0); err != nil {
		t.Fatal(err)
	}
	if log, _ := read(); log.Count != 1 || log.GPUs[0].Minor != 1 {
		t.Errorf("after one has vanished: %+v", log.GPUs)
	}
	if err := m.UnloadDriver(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SMI(); err == nil {
		t.Error("without a driver there is an answer")
	}
}

// TestFolderIn finds boards whatever the architecture of who has installed them.
func TestFolderIn(t *testing.T) {
	root := t.TempDir()
	if _, err := FolderIn(root); err == nil {
		t.Error("an empty folder has boards")
	}
	board, err := Tier("l4")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"usr/lib/riscv64-linux-gnu", LibraryFolder()} {
		if err := Install(root+"/"+folder, board, Machine{Name: "m", GPUs: 1}); err != nil {
			t.Fatal(err)
		}
		if got, err := FolderIn(root); err != nil || got != root+"/"+folder {
			t.Errorf("got %s, %v, want that of %s", got, err, folder)
		}
	}
}
