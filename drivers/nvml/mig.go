package nvml

// This file reads into what a board in MIG mode can be split.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// profile is a kind of partition, and where it can be.
type profile struct {
	// Name as nvidia-smi prints it: 1g.10gb+me.
	Name string
	// Info is what NVML says of one; Info.Id is what nvidia-smi calls its ID.
	Info nvml.GpuInstanceProfileInfo
	// Placements are where one can be, in memory slices.
	Placements []nvml.GpuInstancePlacement
}

// partition is a profile at a place.
type partition struct {
	*profile
	placement nvml.GpuInstancePlacement
}

// name is that of the device: gpu-3b-00-mig-1g10gb-me-20-0, where the last two
// numbers are the profile's ID and the first memory slice.
func (p *partition) name(gpu string) string {
	profile := strings.NewReplacer(".", "", "+", "-", ",", "-").Replace(p.Name)
	return fmt.Sprintf("%s-mig-%s-%d-%d", gpu, strings.ToLower(profile), p.Info.Id, p.placement.Start)
}

// overlaps says whether two placements share a memory slice.
func overlaps(a, b nvml.GpuInstancePlacement) bool {
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}

// partitions are all that a board can have.
func partitions(profiles []profile) []partition {
	var all []partition
	for i := range profiles {
		for _, placement := range profiles[i].Placements {
			all = append(all, partition{&profiles[i], placement})
		}
	}
	return all
}

// biggest is the partition that has the most memory, and of those the most
// multiprocessors: it stands for the whole of a board in MIG mode.
func biggest(profiles []profile) (partition, bool) {
	var best *profile
	for i := range profiles {
		p := &profiles[i]
		if best == nil || p.Info.MemorySizeMB > best.Info.MemorySizeMB ||
			p.Info.MemorySizeMB == best.Info.MemorySizeMB && p.Info.MultiprocessorCount > best.Info.MultiprocessorCount {
			best = p
		}
	}
	if best == nil {
		return partition{}, false
	}
	return partition{best, best.Placements[0]}, true
}

// migSymbols are what a library must have for partitions.
var migSymbols = []string{
	"nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements",
	"nvmlDeviceGetGpuInstances", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstances",
	"nvmlComputeInstanceGetInfo", "nvmlComputeInstanceDestroy", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

// readProfiles are the profiles of a board that is in MIG mode; none of others.
func (s *session) readProfiles(ctx context.Context, c caller, f *facts, handle nvml.Device) ([]profile, error) {
	for _, symbol := range migSymbols {
		if !s.has(symbol) {
			return nil, nil
		}
	}
	mode, err := get(ctx, c, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		current, _, ret := handle.GetMigMode()
		return current, ret
	})
	if mode, err = optional(ctx, "MIG mode", mode, err); err != nil || mode != nvml.DEVICE_MIG_ENABLE {
		return nil, err
	}
	var profiles []profile
	for index := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, err := get(ctx, c, "nvmlDeviceGetGpuInstanceProfileInfo", func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return handle.GetGpuInstanceProfileInfo(index)
		})
		if err != nil {
			if absent(err) {
				continue
			}
			return nil, err
		}
		name, err := s.profileName(index, &info, f.Memory)
		if err != nil {
			klog.FromContext(ctx).Info("Leaving out a MIG profile", "gpu", f.Address.String(), "profile", info.Id, "reason", err.Error())
			continue
		}
		placements, err := get(ctx, c, "nvmlDeviceGetGpuInstancePossiblePlacements", func() ([]nvml.GpuInstancePlacement, nvml.Return) {
			return handle.GetGpuInstancePossiblePlacements(&info)
		})
		if placements, err = optional(ctx, "placements", placements, err); err != nil {
			return nil, err
		}
		if len(placements) == 0 {
			continue
		}
		slices.SortFunc(placements, func(a, b nvml.GpuInstancePlacement) int { return int(a.Start) - int(b.Start) })
		profiles = append(profiles, profile{Name: name, Info: info, Placements: placements})
	}
	return profiles, nil
}

// profileName is what nvidia-smi calls it, by go-nvlib's rule: slices, memory
// as a part of the board's, and what is special about it.
func (s *session) profileName(index int, info *nvml.GpuInstanceProfileInfo, memory uint64) (string, error) {
	if memory == 0 {
		return "", errors.New("the board has no memory")
	}
	made, err := s.names.NewMigProfile(index, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memory)
	if err != nil {
		return "", err
	}
	whole := made.GetInfo()
	whole.C = whole.G // one compute instance takes all of it
	return whole.String(), nil
}
