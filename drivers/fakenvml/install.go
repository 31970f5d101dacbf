package fakenvml

// This file puts boards into a machine: file board.conf, which the library reads.

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpuladder.dev/ladder/policies/fleet"
)

// Machine is what boards are put into.
type Machine struct {
	// Name makes UUIDs and serial numbers; two machines of one name have the same.
	Name string
	// GPUs is how many of the board it has: 1 to [MaxGPUs].
	GPUs int
	// NUMANodes is how many CPUs they are spread over. Default: two for four
	// GPUs and more, as in common servers, and one for less.
	NUMANodes int
}

// GPU is a place in a machine.
type GPU struct {
	// UUID is that of nvmlDeviceGetUUID.
	UUID string
	// Domain, Bus and Device are the PCI address, and Root the bus of the root
	// complex that it is below.
	Domain, Bus, Device, Root int
	// NUMANode is that of the root.
	NUMANode int
	// Minor is the number in /dev/nvidia0.
	Minor int
}

// BusID is the address as Linux writes it: 0000:11:00.0.
func (g GPU) BusID() string {
	return fmt.Sprintf("%04x:%02x:%02x.0", g.Domain, g.Bus, g.Device)
}

// Name is the address as device names have it: gpu-11-00.
func (g GPU) Name() string {
	if g.Domain != 0 {
		return fmt.Sprintf("gpu-%04x-%02x-%02x", g.Domain, g.Bus, g.Device)
	}
	return fmt.Sprintf("gpu-%02x-%02x", g.Bus, g.Device)
}

// Places are the GPUs of a machine, which are where those of a fleet are.
func (m Machine) Places() []GPU {
	nodes := m.NUMANodes
	if nodes == 0 {
		nodes = fleet.DefaultNUMANodes(m.GPUs)
	}
	var made []GPU
	for i, at := range fleet.Places(m.GPUs, nodes) {
		made = append(made, GPU{
			UUID: m.uuid(i), Domain: at.Domain, Bus: at.Bus, Root: at.RootBus, NUMANode: int(at.NUMANode), Minor: i,
		})
	}
	return made
}

func (m Machine) sum(gpu int) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "fakenvml/%s/%d", m.Name, gpu))
}

// uuid is name-based: RFC 9562, version 8.
func (m Machine) uuid(gpu int) string {
	id := m.sum(gpu)
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

// serial has thirteen digits, as NVIDIA's have.
func (m Machine) serial(gpu int) string {
	id := m.sum(gpu)
	return fmt.Sprintf("165%010d", uint64(id[16])<<24|uint64(id[17])<<16|uint64(id[18])<<8|uint64(id[19]))
}

// Install puts a board into the machine whose folder it is, as if it was just
// booted: nothing has happened to it. Processes that have the library
// initialised see the state at once, and the board when they initialise it anew.
func Install(dir string, board Board, machine Machine) error {
	if err := board.Validate(); err != nil {
		return fmt.Errorf("installing board, %w", err)
	}
	if machine.GPUs < 1 || machine.GPUs > MaxGPUs {
		return fmt.Errorf("installing board, a machine has 1 to %d GPUs, not %d", MaxGPUs, machine.GPUs)
	}
	if machine.NUMANodes < 0 || machine.NUMANodes > machine.GPUs {
		return fmt.Errorf("installing board, %d GPUs can't be on %d NUMA nodes", machine.GPUs, machine.NUMANodes)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a driver's files are for all
		return fmt.Errorf("installing board, %w", err)
	}
	conf := filepath.Join(dir, confName)
	if err := os.WriteFile(conf+".new", []byte(render(board, machine)), 0o644); err != nil { //nolint:gosec // as above
		return fmt.Errorf("installing board, %w", err)
	}
	if err := os.Rename(conf+".new", conf); err != nil {
		return fmt.Errorf("installing board, %w", err)
	}
	return Control{Dir: dir}.change(func(s *state) error {
		s.lines = nil
		if board.MIGEnabled {
			for gpu := range machine.GPUs {
				s.setGPU(gpu, "mig", 1)
				s.setGPU(gpu, "mig_pending", 1)
			}
		}
		return nil
	})
}

// IsInstalled says whether a folder has just this hardware, whatever has happened
// to it since.
func IsInstalled(dir string, board Board, machine Machine) bool {
	conf, err := os.ReadFile(filepath.Join(dir, confName))
	return err == nil && string(conf) == render(board, machine)
}

// confName is the file of the hardware.
const confName = "board.conf"

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// render writes board.conf.
func render(b Board, m Machine) string {
	const nvidia, fabricCompleted, cpusPerNode = 14, 3, 32
	var out strings.Builder
	put := func(name string, value any) { fmt.Fprintf(&out, "%s %v\n", name, value) }
	put("fakenvml-board", 1)
	put("name", b.Name)
	put("driver", b.DriverVersion)
	major, _, _ := strings.Cut(b.CUDAVersion, ".")
	put("nvml", major+"."+b.DriverVersion)
	put("vbios", b.VBIOSVersion)
	put("part_number", b.PartNumber)
	put("cuda", b.cuda())
	put("brand", nvidia)
	put("architecture", architectures[b.Architecture])
	ccMajor, ccMinor, _ := strings.Cut(b.ComputeCapability, ".")
	put("cc_major", number(ccMajor))
	put("cc_minor", number(ccMinor))
	put("memory", b.MemoryMiB<<20)
	put("reserved", b.ReservedMiB<<20)
	put("bar1", b.BAR1MiB<<20)
	put("pci_device_id", b.PCI.Device)
	put("pci_subsystem_id", b.PCI.Subsystem)
	put("pcie_generation", b.PCI.Generation)
	put("pcie_width", b.PCI.Width)
	put("power_limit", b.Power.Limit*1000)
	put("power_min", b.Power.Min*1000)
	put("power_max", b.Power.Max*1000)
	put("clock_graphics", b.Clocks.Graphics)
	put("clock_memory", b.Clocks.Memory)
	put("cores", b.Cores)
	put("memory_bus", b.MemoryBus)
	put("cpus_per_node", cpusPerNode)
	put("nvlinks", b.NVLink.Links)
	put("nvlink_speed", b.NVLink.Speed)
	put("nvlink_version", b.NVLink.Version)
	put("nvswitch_id", b.NVLink.Switch)
	put("fabric", fabricCompleted*one(b.Fabric))
	put("ecc", one(b.ECC))
	put("row_remap", one(b.RowRemap))
	put("page_retirement", one(b.PageRetirement))
	put("recovery_action", one(b.RecoveryAction))
	put("mig", one(len(b.MIG) > 0))
	for _, p := range b.MIG {
		fmt.Fprintf(&out, "profile %s %d %d %d %d %d %d %d %d %d %d %d %d %d %s\n", p.Name, p.Index, p.ID, p.Slices, p.Instances,
			p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines, p.MemoryMiB, p.Size,
			p.ComputeProfile, strings.Trim(fmt.Sprint(p.Starts), "[]"))
	}
	for i, g := range m.Places() {
		fmt.Fprintf(&out, "gpu %s %s %d %d %d %d %d %d %d\n", g.UUID, m.serial(i), g.Domain, g.Bus, g.Device, g.Root, g.Minor, g.NUMANode, i+1)
	}
	return out.String()
}
