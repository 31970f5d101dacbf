package fakenvml

// This file describes boards.

import (
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Board is what a GPU reports about itself, in a YAML file.
type Board struct {
	// Name is that of nvmlDeviceGetName.
	Name string `json:"name"`
	// Architecture is one of Turing, Ampere, Ada Lovelace, Hopper, Blackwell.
	Architecture string `json:"architecture"`
	// ComputeCapability is that of CUDA: "9.0".
	ComputeCapability string `json:"computeCapability"`
	// DriverVersion is that of NVIDIA's driver: 580.105.08.
	DriverVersion string `json:"driverVersion"`
	// CUDAVersion is the highest that the driver supports: "13.0".
	CUDAVersion string `json:"cudaVersion"`
	// VBIOSVersion and PartNumber are printed by nvidia-smi -q.
	VBIOSVersion string `json:"vbiosVersion"`
	PartNumber   string `json:"partNumber"`
	// MemoryMiB is all memory that NVML reports, and ReservedMiB the part of it
	// that the driver keeps for itself.
	MemoryMiB   uint64 `json:"memoryMiB"`
	ReservedMiB uint64 `json:"reservedMiB"`
	BAR1MiB     uint64 `json:"bar1MiB"`
	PCI         PCI    `json:"pci"`
	Power       Power  `json:"power"`
	Clocks      Clocks `json:"clocks"`
	// Cores are CUDA cores, and MemoryBus is the width in bits.
	Cores     uint64 `json:"cores"`
	MemoryBus uint64 `json:"memoryBus"`
	NVLink    NVLink `json:"nvlink"`
	// Fabric: NVSwitches make a fabric that GPUs register with (Hopper on).
	Fabric bool `json:"fabric,omitempty"`
	// ECC: the memory corrects errors and counts them.
	ECC bool `json:"ecc,omitempty"`
	// RowRemap: bad rows of memory are remapped (Ampere on), and PageRetirement:
	// bad pages are retired (before).
	RowRemap       bool `json:"rowRemap,omitempty"`
	PageRetirement bool `json:"pageRetirement,omitempty"`
	// RecoveryAction: the driver says what would help (R570 on).
	RecoveryAction bool `json:"recoveryAction,omitempty"`
	// MIG are the profiles of GPU instances; none if the board can't be split.
	MIG []Profile `json:"mig,omitempty"`
	// MIGEnabled: the board comes with MIG mode on.
	MIGEnabled bool `json:"migEnabled,omitempty"`
}

// PCI is what the bus says of a board; IDs hold the device above the vendor.
type PCI struct {
	Device     uint32 `json:"device"`
	Subsystem  uint32 `json:"subsystem"`
	Generation uint64 `json:"generation"`
	Width      uint64 `json:"width"`
}

// Power is in watts.
type Power struct {
	Limit uint64 `json:"limit"`
	Min   uint64 `json:"min"`
	Max   uint64 `json:"max"`
}

// Clocks are the highest, in MHz.
type Clocks struct {
	Graphics uint64 `json:"graphics"`
	Memory   uint64 `json:"memory"`
}

// NVLink is what connects boards; the zero value is none.
type NVLink struct {
	Links uint64 `json:"links"`
	// Speed is that of one link, in MB/s.
	Speed   uint64 `json:"speed"`
	Version uint64 `json:"version"`
	// Switch is the PCI ID of the switches that links go to; 0: to other GPUs.
	Switch uint32 `json:"switch,omitempty"`
}

// Profile is one of nvmlDeviceGetGpuInstanceProfileInfo.
type Profile struct {
	Name string `json:"name"`
	// Index is NVML_GPU_INSTANCE_PROFILE_*, and ID what instances are made by.
	Index int `json:"index"`
	ID    int `json:"id"`
	// Slices are those of compute, and Instances the most that a GPU can have.
	Slices    int `json:"slices"`
	Instances int `json:"instances"`
	MemoryMiB int `json:"memoryMiB"`
	// Counts of an instance's units.
	Multiprocessors int `json:"multiprocessors"`
	CopyEngines     int `json:"copyEngines"`
	Decoders        int `json:"decoders,omitempty"`
	Encoders        int `json:"encoders,omitempty"`
	JPEGEngines     int `json:"jpegEngines,omitempty"`
	OFAEngines      int `json:"ofaEngines,omitempty"`
	// Size is how many memory slices an instance takes of the GPU's eight, and
	// Starts are those at which it may begin.
	Size   int   `json:"size"`
	Starts []int `json:"starts"`
	// ComputeProfile is NVML_COMPUTE_INSTANCE_PROFILE_* of the compute instance
	// that takes all of it. Default: that of its number of slices.
	ComputeProfile int `json:"computeProfile,omitempty"`
}

// architectures are NVML_DEVICE_ARCH_*.
var architectures = map[string]int{"Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}

// computeProfiles are NVML_COMPUTE_INSTANCE_PROFILE_* by number of slices.
var computeProfiles = map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}

// Limits of the library.
const (
	// MaxGPUs is the most that a machine can have.
	MaxGPUs          = 16
	memorySlices     = 8
	maxLinks         = 36
	profileIndices   = 0x12
	maxProfiles      = 16
	maxName          = 95
	maxProfileName   = 31
	computeProfileNo = 9
)

//go:embed boards
var boards embed.FS

// tiers are the files of boards by tier.
var tiers = map[string]string{
	"h100": "h100-sxm5-80gb", "a100-80": "a100-sxm4-80gb", "a100-40": "a100-sxm4-40gb",
	"l40s": "l40s", "l4": "l4", "a10": "a10", "t4": "t4",
}

// migSuffix ends the names of tiers whose boards have MIG mode on.
const migSuffix = "-mig"

// Tiers are the names of the tiers that [Tier] knows, in order of name.
func Tiers() []string {
	var names []string
	for name := range tiers {
		names = append(names, name)
		if board, err := Tier(name); err == nil && len(board.MIG) > 0 {
			names = append(names, name+migSuffix)
		}
	}
	slices.Sort(names)
	return names
}

// Tier is the board of a tier of the catalog: h100, or h100-mig with MIG mode on.
func Tier(name string) (Board, error) {
	base, mig := strings.CutSuffix(name, migSuffix)
	file, known := tiers[base]
	if !known {
		return Board{}, fmt.Errorf("there is no board for tier %q; there are %s", name, strings.Join(Tiers(), ", "))
	}
	data, err := boards.ReadFile("boards/" + file + ".yaml")
	if err != nil {
		return Board{}, fmt.Errorf("reading board, %w", err)
	}
	board, err := ParseBoard(data)
	if err != nil {
		return Board{}, err
	}
	board.MIGEnabled = mig
	return board, board.Validate()
}

// ParseBoard reads a board from YAML, in which no field may be unknown, and
// validates it.
func ParseBoard(data []byte) (Board, error) {
	var board Board
	if err := yaml.UnmarshalStrict(data, &board); err != nil {
		return Board{}, fmt.Errorf("reading board, %w", err)
	}
	for i := range board.MIG {
		if p := &board.MIG[i]; p.ComputeProfile == 0 {
			p.ComputeProfile = computeProfiles[p.Slices]
		}
	}
	return board, board.Validate()
}

var (
	version = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){1,2}$`)
	word    = regexp.MustCompile(`^[!-~]{1,31}$`)
	text    = regexp.MustCompile(`^[!-~]+( [!-~]+)*$`)
)

// Validate says what is wrong with a board, all of it.
func (b *Board) Validate() error {
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	wrong(!text.MatchString(b.Name) || len(b.Name) > maxName, "name: must be a line of 1 to %d characters, is %q", maxName, b.Name)
	wrong(architectures[b.Architecture] == 0, "architecture: there is no %q", b.Architecture)
	for _, v := range []struct{ field, value string }{
		{"computeCapability", b.ComputeCapability}, {"driverVersion", b.DriverVersion}, {"cudaVersion", b.CUDAVersion},
	} {
		wrong(!version.MatchString(v.value), "%s: must be two or three numbers joined by dots, is %q", v.field, v.value)
	}
	wrong(!word.MatchString(b.VBIOSVersion), "vbiosVersion: must be a word, is %q", b.VBIOSVersion)
	wrong(!word.MatchString(b.PartNumber), "partNumber: must be a word, is %q", b.PartNumber)
	wrong(b.MemoryMiB == 0 || b.MemoryMiB > 1<<32, "memoryMiB: must be 1 to 2^32, is %d", b.MemoryMiB)
	wrong(b.ReservedMiB > b.MemoryMiB, "reservedMiB: must be at most memoryMiB, is %d", b.ReservedMiB)
	wrong(b.PCI.Device == 0, "pci.device: is required")
	wrong(b.Power.Limit < b.Power.Min || b.Power.Limit > b.Power.Max, "power.limit: must be min to max, is %d", b.Power.Limit)
	wrong(b.NVLink.Links > maxLinks, "nvlink.links: must be at most %d, is %d", maxLinks, b.NVLink.Links)
	wrong(b.RowRemap && b.PageRetirement, "pageRetirement: a board has this or rowRemap")
	wrong(b.MIGEnabled && len(b.MIG) == 0, "migEnabled: %s can't be split", b.Name)
	wrong(len(b.MIG) > maxProfiles, "mig: must be at most %d profiles", maxProfiles)
	for i := range b.MIG {
		if err := b.MIG[i].validate(); err != nil {
			errs = append(errs, fmt.Errorf("mig[%d].%w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Profile) validate() error {
	switch {
	case !word.MatchString(p.Name) || len(p.Name) > maxProfileName:
		return fmt.Errorf("name: must be a word, is %q", p.Name)
	case p.Index < 0 || p.Index >= profileIndices:
		return fmt.Errorf("index: must be below %d, is %d", profileIndices, p.Index)
	case p.ID < 0 || p.ID > 255:
		return fmt.Errorf("id: must be 0 to 255, is %d", p.ID)
	case p.Slices < 1 || p.Slices > memorySlices:
		return fmt.Errorf("slices: must be 1 to %d, is %d", memorySlices, p.Slices)
	case p.Size < 1 || p.Size > memorySlices:
		return fmt.Errorf("size: must be 1 to %d, is %d", memorySlices, p.Size)
	case p.ComputeProfile < 0 || p.ComputeProfile >= computeProfileNo:
		return fmt.Errorf("computeProfile: must be below %d, is %d", computeProfileNo, p.ComputeProfile)
	case len(p.Starts) == 0 || len(p.Starts) > memorySlices:
		return fmt.Errorf("starts: must be 1 to %d", memorySlices)
	case min(p.Instances, p.MemoryMiB, p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines) < 0:
		return errors.New("instances: counts are never negative")
	}
	for _, start := range p.Starts {
		if start < 0 || start+p.Size > memorySlices {
			return fmt.Errorf("starts: must leave room for size in %d, is %d", memorySlices, start)
		}
	}
	return nil
}

// cuda is the version as NVML has it: 13000 for 13.0.
func (b *Board) cuda() int {
	major, minor, _ := strings.Cut(b.CUDAVersion, ".")
	return 1000*number(major) + 10*number(minor)
}

// number reads what Validate has seen to be one.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
