package fleet

// This file is the catalog of MIG: into which partitions each board can be split.

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MIG says how the boards of a group are partitioned.
type MIG struct {
	// Layout are the profiles that each board is split into for good, such as
	// [3g.40gb, 3g.40gb]; then only the partitions are devices. Without a layout
	// the board is split on demand: it is a device as a whole, and so is every
	// partition that it could have, with counters that say which of them exclude
	// each other (KEP-4815).
	Layout []string `json:"layout,omitempty"`
}

// MIGProfile is a kind of partition, as nvmlDeviceGetGpuInstanceProfileInfo
// tells it. No board of the catalog gives encoders to a partition.
type MIGProfile struct {
	// Name as nvidia-smi prints it: 1g.10gb+me.
	Name string
	// ID is the GPU instance profile's.
	ID int
	// MemoryMiB is the memory of one, in MiB.
	MemoryMiB int64
	// Counts of one's units.
	Multiprocessors, CopyEngines, Decoders, JPEGEngines, OFAEngines int64
	// Starts are the memory slices at which one may begin, and Size is how many
	// of the board's eight it takes.
	Starts []int
	Size   int
}

// migMemorySlices is how many memory slices a board has; NVIDIA's MIG guide
// says "fraction of memory" in eighths for every board of the catalog.
const migMemorySlices = 8

var (
	anySlice = []int{0, 1, 2, 3, 4, 5, 6}
	anyPair  = []int{0, 2, 4, 6}
	lowPair  = []int{0, 2, 4}
	halves   = []int{0, 4}
	start    = []int{0}
)

// migProfiles has the boards that can be partitioned, by name. Memory and
// multiprocessors are those of published output of nvidia-smi mig -lgip, and
// placements of -lgipp; the other units are those of NVIDIA's MIG guide,
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html.
var migProfiles = map[string][]MIGProfile{
	"H100-SXM5-80GB": {
		{"1g.10gb", 19, 9984, 16, 1, 1, 1, 0, anySlice, 1},
		{"1g.10gb+me", 20, 9984, 16, 1, 1, 1, 1, anySlice, 1},
		{"1g.20gb", 15, 20096, 26, 1, 1, 1, 0, anyPair, 2},
		{"2g.20gb", 14, 20096, 32, 2, 2, 2, 0, lowPair, 2},
		{"3g.40gb", 9, 40448, 60, 3, 3, 3, 0, halves, 4},
		{"4g.40gb", 5, 40448, 64, 4, 4, 4, 0, start, 4},
		{"7g.80gb", 0, 81152, 132, 8, 7, 7, 1, start, 8},
	},
	"A100-SXM4-80GB": {
		{"1g.10gb", 19, 9728, 14, 1, 0, 0, 0, anySlice, 1},
		{"1g.10gb+me", 20, 9728, 14, 1, 1, 1, 1, anySlice, 1},
		{"1g.20gb", 15, 19968, 14, 1, 1, 0, 0, anyPair, 2},
		{"2g.20gb", 14, 19968, 28, 2, 1, 0, 0, lowPair, 2},
		{"3g.40gb", 9, 40192, 42, 3, 2, 0, 0, halves, 4},
		{"4g.40gb", 5, 40192, 56, 4, 2, 0, 0, start, 4},
		{"7g.80gb", 0, 80896, 98, 7, 5, 1, 1, start, 8},
	},
	// 1g.10gb only with drivers from 2022 on; that of the board's capture has it.
	"A100-SXM4-40GB": {
		{"1g.5gb", 19, 4864, 14, 1, 0, 0, 0, anySlice, 1},
		{"1g.5gb+me", 20, 4864, 14, 1, 1, 1, 1, anySlice, 1},
		{"1g.10gb", 15, 9856, 14, 1, 1, 0, 0, anyPair, 2},
		{"2g.10gb", 14, 9856, 28, 2, 1, 0, 0, lowPair, 2},
		{"3g.20gb", 9, 19968, 42, 3, 2, 0, 0, halves, 4},
		{"4g.20gb", 5, 19968, 56, 4, 2, 0, 0, start, 4},
		{"7g.40gb", 0, 40192, 98, 7, 5, 1, 1, start, 8},
	},
}

// MIGProfiles are the profiles of a board of the catalog, smallest first; none
// if it can't be partitioned.
func MIGProfiles(board string) []MIGProfile {
	profiles := slices.Clone(migProfiles[board])
	for i := range profiles {
		profiles[i].Starts = slices.Clone(profiles[i].Starts)
	}
	return profiles
}

// amount is how much a partition has of one kind of unit.
type amount struct {
	// capacity is what NVIDIA's driver calls it in a device.
	capacity string
	// counter is what it calls it in a counter set, where names are DNS labels.
	counter string
	value   int64
}

// amounts are all kinds of units, always in the same order.
func (p *MIGProfile) amounts() []amount {
	return []amount{
		{CapacityMemory, "memory", p.MemoryMiB << 20},
		{CapacityMultiprocessors, "multiprocessors", p.Multiprocessors},
		{CapacityCopyEngines, "copy-engines", p.CopyEngines},
		{CapacityDecoders, "decoders", p.Decoders},
		{CapacityEncoders, "encoders", 0},
		{CapacityJPEGEngines, "jpeg-engines", p.JPEGEngines},
		{CapacityOFAEngines, "ofa-engines", p.OFAEngines},
	}
}

// wholeBoard is what the partitions of a board share: of each kind the most
// that one of them has, which is how NVIDIA's driver counts.
func wholeBoard(profiles []MIGProfile) MIGProfile {
	var whole MIGProfile
	for i := range profiles {
		p := &profiles[i]
		whole.MemoryMiB = max(whole.MemoryMiB, p.MemoryMiB)
		whole.Multiprocessors = max(whole.Multiprocessors, p.Multiprocessors)
		whole.CopyEngines = max(whole.CopyEngines, p.CopyEngines)
		whole.Decoders = max(whole.Decoders, p.Decoders)
		whole.JPEGEngines = max(whole.JPEGEngines, p.JPEGEngines)
		whole.OFAEngines = max(whole.OFAEngines, p.OFAEngines)
	}
	whole.Size = migMemorySlices
	return whole
}

// partition is a profile at a place.
type partition struct {
	MIGProfile
	start int
}

// name is that of NVIDIA's driver: gpu-0-mig-1g10gb-me-20-0, where the last two
// numbers are the profile's ID and the first memory slice.
func (p *partition) name(gpu int) string {
	profile := strings.NewReplacer(".", "", "+", "-").Replace(p.Name)
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", gpu, profile, p.ID, p.start)
}

// partitions are all that a board can have.
func partitions(profiles []MIGProfile) []partition {
	var all []partition
	for _, profile := range profiles {
		for _, start := range profile.Starts {
			all = append(all, partition{profile, start})
		}
	}
	return all
}

// arrange finds the first places, in the order of the layout, at which all of
// its profiles fit together. It says which one does not.
func arrange(profiles []MIGProfile, layout []string) ([]partition, error) {
	whole := wholeBoard(profiles)
	free := whole.amounts()
	var taken [migMemorySlices]bool
	var placed []partition
	deepest := 0
	var place func() bool
	place = func() bool {
		if len(placed) == len(layout) {
			return true
		}
		deepest = max(deepest, len(placed))
		at := slices.IndexFunc(profiles, func(p MIGProfile) bool { return p.Name == layout[len(placed)] })
		if at < 0 {
			return false
		}
		wanted := profiles[at].amounts()
		for i := range free {
			if free[i].value < wanted[i].value {
				return false
			}
		}
		for _, start := range profiles[at].Starts {
			slots := taken[start : start+profiles[at].Size]
			if slices.Contains(slots, true) {
				continue
			}
			for i := range slots {
				slots[i] = true
			}
			for i := range free {
				free[i].value -= wanted[i].value
			}
			placed = append(placed, partition{profiles[at], start})
			if place() {
				return true
			}
			placed = placed[:len(placed)-1]
			for i := range free {
				free[i].value += wanted[i].value
			}
			clear(slots)
		}
		return false
	}
	if place() {
		return placed, nil
	}
	return nil, fmt.Errorf("%s does not fit beside those before it", layout[deepest])
}

// validate checks a partitioning of a board.
func (m *MIG) validate(path *field.Path, board string) field.ErrorList {
	profiles, known := migProfiles[board]
	if !known {
		boards := []string{}
		for _, b := range catalog {
			if _, able := migProfiles[b.Name]; able {
				boards = append(boards, b.Name)
			}
		}
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("only %s can be partitioned", strings.Join(boards, ", ")))}
	}
	var names []string
	for i := range profiles {
		names = append(names, profiles[i].Name)
	}
	var errs field.ErrorList
	for i, name := range m.Layout {
		if !slices.Contains(names, name) {
			errs = append(errs, field.NotSupported(path.Child("layout").Index(i), name, names))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if _, err := arrange(profiles, m.Layout); err != nil {
		errs = append(errs, field.Invalid(path.Child("layout"), m.Layout, err.Error()))
	}
	return errs
}

// devicesPerGPU is how many devices each board of the group is.
func (g *Group) devicesPerGPU() int {
	switch {
	case g.MIG == nil:
		return 1
	case len(g.MIG.Layout) > 0:
		return len(g.MIG.Layout)
	}
	return 1 + len(partitions(migProfiles[g.Board]))
}
