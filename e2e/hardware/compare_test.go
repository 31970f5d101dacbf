package hardware

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// two GPUs as nvidia-smi shows them; the second is in MIG mode.
const twoGPUs = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Mon Nov 30 02:00:00 2026</timestamp>
	<driver_version>580.105.08</driver_version>
	<cuda_version>13.0</cuda_version>
	<attached_gpus>2</attached_gpus>
	<gpu id="00000000:3B:00.0">
		<product_name>NVIDIA H200</product_name>
		<product_architecture>Hopper</product_architecture>
		<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
		<mig_devices>None</mig_devices>
		<uuid>GPU-aaaa</uuid>
		<minor_number>0</minor_number>
		<pci><pci_bus_id>00000000:3B:00.0</pci_bus_id></pci>
		<fb_memory_usage><total>143771 MiB</total><reserved>600 MiB</reserved></fb_memory_usage>
		<bar1_memory_usage><total>262144 MiB</total></bar1_memory_usage>
	</gpu>
	<gpu id="00010000:18:00.0">
		<product_name>NVIDIA H200</product_name>
		<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
		<mig_devices>
			<mig_device><index>0</index><gpu_instance_id>9</gpu_instance_id><compute_instance_id>0</compute_instance_id></mig_device>
		</mig_devices>
		<uuid>GPU-bbbb</uuid>
		<minor_number>1</minor_number>
		<pci><pci_bus_id>00010000:18:00.0</pci_bus_id></pci>
		<fb_memory_usage><total>143771 MiB</total></fb_memory_usage>
	</gpu>
</nvidia_smi_log>
`

func TestParseSMI(t *testing.T) {
	smi, err := ParseSMI([]byte(twoGPUs))
	if err != nil {
		t.Fatal(err)
	}
	if smi.Simulated || smi.Driver != "580.105.08" || smi.CUDA != "13.0" || len(smi.GPUs) != 2 {
		t.Fatalf("got %+v", smi)
	}
	first, second := smi.GPUs[0], smi.GPUs[1]
	if first.address() != "0000:3b:00.0" || first.Memory != "143771 MiB" || first.Minor != "0" || first.MIG != "Disabled" || len(first.Partitions) != 0 {
		t.Errorf("the first is %+v", first)
	}
	if want := []SMIPartition{{GPUInstance: "9", ComputeInstance: "0"}}; second.address() != "10000:18:00.0" || !slices.Equal(second.Partitions, want) {
		t.Errorf("the second is %+v at %s", second, second.address())
	}
	for _, wrong := range []string{"", "No devices were found", "<html></html>", twoGPUs[:500]} {
		if _, err := ParseSMI([]byte(wrong)); err == nil {
			t.Errorf("%.20q is read", wrong)
		}
	}
}

// published are the devices of the two GPUs.
func published() []resourcev1.Device {
	device := func(name, kind, uuid, address string, memory int64) resourcev1.Device {
		text := func(s string) resourcev1.DeviceAttribute { return resourcev1.DeviceAttribute{StringValue: &s} }
		version := func(s string) resourcev1.DeviceAttribute { return resourcev1.DeviceAttribute{VersionValue: &s} }
		made := resourcev1.Device{
			Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"type": text(kind), "productName": text("NVIDIA H200"), "architecture": text("Hopper"), "resource.kubernetes.io/pciBusID": text(address),
				"driverVersion": version("580.105.8"), "cudaDriverVersion": version("13.0.0"), "uuid": text(uuid),
			},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: *resource.NewQuantity(memory<<20, resource.BinarySI)}},
		}
		if kind == "mig" {
			made.Attributes["parentUUID"] = made.Attributes["uuid"]
			delete(made.Attributes, "uuid")
		}
		return made
	}
	return []resourcev1.Device{
		device("gpu-3b-00", "gpu", "GPU-aaaa", "0000:3b:00.0", 143771),
		device("gpu-10000-18-00-mig-2", "mig", "GPU-bbbb", "10000:18:00.0", 40448),
		device("gpu-10000-18-00-mig-1", "mig", "GPU-bbbb", "10000:18:00.0", 18000),
	}
}

func TestCompare(t *testing.T) {
	parse := func(change ...string) *SMI {
		t.Helper()
		smi, err := ParseSMI([]byte(strings.NewReplacer(change...).Replace(twoGPUs)))
		if err != nil {
			t.Fatal(err)
		}
		return smi
	}
	if wrong := differences(Compare(published(), parse())); len(wrong) != 0 {
		t.Errorf("these differ: %+v", wrong)
	}
	if wrong := differences(Compare(published()[1:], parse())); len(wrong) != 2 || wrong[0].What != "number of GPUs" || wrong[1].SMI != "GPU-aaaa" {
		t.Errorf("a GPU that was not published: %+v", wrong)
	}
	for what, change := range map[string][]string{
		"name":           {"<product_name>NVIDIA H200</product_name>\n\t\t<product_arch", "<product_name>NVIDIA H100</product_name>\n\t\t<product_arch"},
		"driver version": {"580.105.08", "580.105.09"}, "CUDA version": {"13.0<", "13.1<"},
		"memory": {"<total>143771 MiB</total><reserved>", "<total>143772 MiB</total><reserved>"}, "architecture": {"Hopper", "Ampere"},
		"MIG mode": {"<current_mig>Disabled", "<current_mig>Enabled"}, "PCI address": {"<pci_bus_id>00000000:3B", "<pci_bus_id>00000000:3C"},
	} {
		wrong := differences(Compare(published(), parse(change...)))
		if len(wrong) == 0 || slices.ContainsFunc(wrong, func(c Comparison) bool { return c.What != what }) {
			t.Errorf("%s: %+v", what, wrong)
		}
	}
	if wrong := differences(Compare(published(), parse("GPU-bbbb", "GPU-cccc"))); len(wrong) != 2 || wrong[0].Driver != "GPU-bbbb" || wrong[1].SMI != "GPU-cccc" {
		t.Errorf("another UUID: %+v", wrong)
	}
}

// TestChosen: of a board that is split, the smallest partition.
func TestChosen(t *testing.T) {
	all := boards(published())
	if len(all) != 2 || len(all[0].chosen()) != 1 || all[0].chosen()[0].Name != "gpu-3b-00" {
		t.Fatalf("got %+v", all)
	}
	if chosen := all[1].chosen(); len(chosen) != 1 || chosen[0].Name != "gpu-10000-18-00-mig-1" {
		t.Errorf("got %+v", chosen)
	}
}

func TestPresent(t *testing.T) {
	sysfs, root := t.TempDir(), t.TempDir()
	o := Options{Sysfs: sysfs, DriverRoot: root}
	put := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	device := func(address, vendor, class string) {
		put(filepath.Join(sysfs, "bus/pci/devices", address, "vendor"), vendor+"\n")
		put(filepath.Join(sysfs, "bus/pci/devices", address, "class"), class+"\n")
	}
	device("0000:00:1f.0", "0x8086", "0x060100")
	device("0000:01:00.1", "0x10de", "0x040300") // the sound of a board
	device("0000:02:00.0", "0x1002", "0x030000")
	if _, err := Present(o); !errors.Is(err, ErrNoGPU) || !strings.Contains(err.Error(), "no NVIDIA GPU here: none of the 3 devices") {
		t.Errorf("got %v", err)
	}
	if _, err := Run(t.Context(), Options{Driver: "d", Assets: "a", Sysfs: sysfs, DriverRoot: root}); !errors.Is(err, ErrNoGPU) {
		t.Errorf("got %v", err)
	}
	put(filepath.Join(root, controllerNode), "")
	if got, err := Present(o); err != nil || len(got) != 0 {
		t.Errorf("with NVIDIA's device node: %v, %v", got, err)
	}
	device("0000:3b:00.0", "0x10de", "0x030200")
	device("0000:18:00.0", "0x10de", "0x030000")
	if got, err := Present(o); err != nil || !slices.Equal(got, []string{"0000:18:00.0", "0000:3b:00.0"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Run(t.Context(), Options{Sysfs: sysfs}); err == nil || errors.Is(err, ErrNoGPU) {
		t.Errorf("without programs: %v", err)
	}
}

func TestReport(t *testing.T) {
	r := &Report{
		Started: time.Date(2026, 11, 30, 2, 0, 0, 0, time.UTC), DriverVersion: "580.105.08", GPUs: []GPU{{Name: "NVIDIA H200", Address: "0000:3b:00.0"}},
		Steps: []Step{{Name: "one", Passed: true}}, Troubles: []string{"gpu-3b-00: RowRemapPending"},
	}
	if r.passed() {
		t.Error("a check that has compared nothing passes")
	}
	r.Comparisons = []Comparison{compared("g", "name", "a", "a")}
	if !r.passed() {
		t.Error("it does not pass")
	}
	r.Steps = append(r.Steps, Step{Name: "two", Said: "a | b\nc"})
	if text := r.Markdown(); r.passed() || !strings.Contains(text, `| FAIL | two | 0 | a \| b c |`) || !strings.Contains(text, "**Failed**") ||
		strings.Contains(text, "simulation") || !strings.Contains(text, "RowRemapPending") {
		t.Errorf("got %s", text)
	}
	if got, want := r.name(), "2026-11-30-nvidia-h200-580.105.08"; got != want {
		t.Errorf("the files are called %s, want %s", got, want)
	}
}
