package fakenvml

// This file says what nvidia-smi -q -x would, for programs that compare it with
// NVML. It is a simulation too, and says so.

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SMILabel is in a comment of what [Control.SMI] returns: whoever reports on the
// machine is to report that nothing of it is real.
const SMILabel = "simulated by ladder-fakenvml, not by NVIDIA's nvidia-smi"

// smiLog is as much of the XML of nvidia-smi -q -x, of its DTD in version 12, as
// the boards tell.
type smiLog struct {
	XMLName xml.Name `xml:"nvidia_smi_log"`
	Label   string   `xml:",comment"`
	Driver  string   `xml:"driver_version"`
	CUDA    string   `xml:"cuda_version"`
	Count   int      `xml:"attached_gpus"`
	GPUs    []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	ID           string     `xml:"id,attr"`
	Product      string     `xml:"product_name"`
	Brand        string     `xml:"product_brand"`
	Architecture string     `xml:"product_architecture"`
	CurrentMIG   string     `xml:"mig_mode>current_mig"`
	PendingMIG   string     `xml:"mig_mode>pending_mig"`
	MIG          smiDevices `xml:"mig_devices"`
	Serial       string     `xml:"serial"`
	UUID         string     `xml:"uuid"`
	Minor        int        `xml:"minor_number"`
	VBIOS        string     `xml:"vbios_version"`
	PartNumber   string     `xml:"gpu_part_number"`
	PCI          smiPCI     `xml:"pci"`
	Memory       smiMemory  `xml:"fb_memory_usage"`
}

// smiDevices are MIG devices, or the word None.
type smiDevices struct {
	None    string      `xml:",chardata"`
	Devices []smiDevice `xml:"mig_device"`
}

type smiDevice struct {
	Index           int    `xml:"index"`
	GPUInstance     string `xml:"gpu_instance_id"`
	ComputeInstance string `xml:"compute_instance_id"`
}

type smiPCI struct {
	Bus    string `xml:"pci_bus"`
	Device string `xml:"pci_device"`
	Domain string `xml:"pci_domain"`
	ID     string `xml:"pci_device_id"`
	BusID  string `xml:"pci_bus_id"`
}

type smiMemory struct {
	Total    string `xml:"total"`
	Reserved string `xml:"reserved"`
}

// SMI is what nvidia-smi -q -x would print of the boards in the folder, as they
// are now: XML.
func (c Control) SMI() ([]byte, error) {
	conf, err := c.settings()
	if err != nil {
		return nil, err
	}
	gpus, err := c.Installed()
	if err != nil {
		return nil, err
	}
	now, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("reading state of boards, %w", err)
	}
	if now.get("unloaded") != 0 {
		return nil, errors.New("NVIDIA's driver is not loaded")
	}
	number := func(name string) uint64 {
		value, _ := strconv.ParseUint(conf[name], 10, 64) // written by Install
		return value
	}
	log := smiLog{Label: " " + SMILabel + " ", Driver: conf["driver"], CUDA: fmt.Sprintf("%d.%d", number("cuda")/1000, number("cuda")%1000/10)}
	for i, g := range gpus {
		if now.gpu(i, "vanished") != 0 {
			continue
		}
		busID := fmt.Sprintf("%08X:%02X:%02X.0", g.Domain, g.Bus, g.Device)
		made := smiGPU{
			ID: busID, Product: conf["name"], Brand: "NVIDIA", Architecture: architectureOf(number("architecture")),
			CurrentMIG: "N/A", PendingMIG: "N/A", MIG: smiDevices{None: "None"}, UUID: g.UUID, Minor: g.Minor,
			VBIOS: conf["vbios"], PartNumber: conf["part_number"], Serial: conf["serial "+g.UUID],
			PCI: smiPCI{
				Bus: fmt.Sprintf("%02X", g.Bus), Device: fmt.Sprintf("%02X", g.Device), Domain: fmt.Sprintf("%04X", g.Domain),
				ID: fmt.Sprintf("%08X", number("pci_device_id")), BusID: busID,
			},
			Memory: smiMemory{Total: mebibytes(number("memory")), Reserved: mebibytes(number("reserved"))},
		}
		if number("mig") != 0 {
			made.CurrentMIG, made.PendingMIG = mode(now.gpu(i, "mig")), mode(now.gpu(i, "mig_pending"))
			if devices := now.computes(i); len(devices) > 0 {
				made.MIG = smiDevices{Devices: devices}
			}
		}
		log.GPUs = append(log.GPUs, made)
	}
	log.Count = len(log.GPUs)
	out, err := xml.MarshalIndent(log, "", "\t")
	if err != nil {
		return nil, fmt.Errorf("writing XML, %w", err)
	}
	return append([]byte(xml.Header), append(out, '\n')...), nil
}

// settings are the lines of board.conf that are a name and a value, and the
// serial numbers by UUID.
func (c Control) settings() (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(c.Dir, confName))
	if err != nil {
		return nil, fmt.Errorf("reading board, %w", err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if words := strings.Fields(value); name == "gpu" && len(words) > 1 {
			all["serial "+words[0]] = words[1]
			continue
		}
		all[name] = value
	}
	return all, nil
}

// computes are the MIG devices of a GPU. A line is compute GPU GPU-INSTANCE ID
// and more.
func (s *state) computes(gpu int) []smiDevice {
	var all []smiDevice
	for _, words := range s.lines {
		if len(words) > 3 && words[0] == "compute" && words[1] == strconv.Itoa(gpu) {
			all = append(all, smiDevice{Index: len(all), GPUInstance: words[2], ComputeInstance: words[3]})
		}
	}
	return all
}

func architectureOf(number uint64) string {
	for name, is := range architectures {
		if uint64(is) == number { //nolint:gosec // a small number
			return name
		}
	}
	return "Unknown"
}

func mode(is uint64) string {
	if is != 0 {
		return "Enabled"
	}
	return "Disabled"
}

func mebibytes(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
