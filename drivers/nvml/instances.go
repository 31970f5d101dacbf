package nvml

// This file makes MIG instances, finds them and destroys them.

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// instance is a GPU instance that exists.
type instance struct {
	partition
	// id is by which events name it.
	id     uint32
	handle nvml.GpuInstance
}

// board is a GPU in MIG mode, for those who change it.
type board struct {
	*session
	caller
	handle   nvml.Device
	profiles []profile
}

// listInstances are all GPU instances of a board.
func (s *session) listInstances(ctx context.Context, c caller, handle nvml.Device, profiles []profile) ([]instance, error) {
	var all []instance
	for i := range profiles {
		p := &profiles[i]
		handles, err := get(ctx, c, "nvmlDeviceGetGpuInstances", func() ([]nvml.GpuInstance, nvml.Return) {
			info := p.Info
			return handle.GetGpuInstances(&info)
		})
		if handles, err = optional(ctx, "instances", handles, err); err != nil {
			return nil, err
		}
		for _, gpuInstance := range handles {
			info, err := get(ctx, c, "nvmlGpuInstanceGetInfo", gpuInstance.GetInfo)
			if errors.Is(err, nvml.ERROR_NOT_FOUND) {
				continue // it has just been destroyed
			}
			if err != nil {
				return nil, err
			}
			all = append(all, instance{partition: partition{p, info.Placement}, id: info.Id, handle: gpuInstance})
		}
	}
	return all, nil
}

// find is the instance that a partition has become, if it has.
func (b *board) find(ctx context.Context, wanted partition) (*instance, error) {
	all, err := b.listInstances(ctx, b.caller, b.handle, b.profiles)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].is(wanted) {
			return &all[i], nil
		}
	}
	return nil, nil //nolint:nilnil // there is none, which is no error
}

func (p *partition) is(other partition) bool {
	return p.Info.Id == other.Info.Id && p.placement.Start == other.placement.Start
}

// ensure makes a partition, or finds it made, and returns the UUID of its MIG
// device. What it has made it takes back if it can't make the rest.
func (b *board) ensure(ctx context.Context, wanted partition) (string, error) {
	present, err := b.find(ctx, wanted)
	if err != nil {
		return "", fmt.Errorf("looking for the instance, %w", err)
	}
	if present != nil {
		uuid, err := b.complete(ctx, present)
		return uuid, err
	}
	made, err := get(ctx, b.caller, "nvmlDeviceCreateGpuInstanceWithPlacement", func() (nvml.GpuInstance, nvml.Return) {
		info, placement := wanted.Info, wanted.placement
		return b.handle.CreateGpuInstanceWithPlacement(&info, &placement)
	})
	if err != nil {
		return "", fmt.Errorf("making GPU instance, %w", err)
	}
	uuid, err := b.completeNew(ctx, wanted, made)
	if err != nil {
		// Also where the context has ended.
		undone := b.destroy(context.WithoutCancel(ctx), &instance{partition: wanted, handle: made})
		return "", errors.Join(err, undone)
	}
	return uuid, nil
}

func (b *board) completeNew(ctx context.Context, wanted partition, made nvml.GpuInstance) (string, error) {
	info, err := get(ctx, b.caller, "nvmlGpuInstanceGetInfo", made.GetInfo)
	if err != nil {
		return "", fmt.Errorf("reading the new GPU instance, %w", err)
	}
	return b.complete(ctx, &instance{partition: wanted, id: info.Id, handle: made})
}

// complete makes the compute instance that takes all of a GPU instance, unless
// there is one, and returns the UUID of the MIG device that the two are.
func (b *board) complete(ctx context.Context, present *instance) (string, error) {
	compute, err := b.computeInstances(ctx, present)
	if err != nil {
		return "", fmt.Errorf("looking for the compute instance, %w", err)
	}
	if len(compute) == 0 {
		made, err := b.compute(ctx, present)
		if err != nil {
			return "", fmt.Errorf("making compute instance, %w", err)
		}
		compute = append(compute, made)
	}
	info, err := get(ctx, b.caller, "nvmlComputeInstanceGetInfo", compute[0].GetInfo)
	if err != nil {
		return "", fmt.Errorf("reading compute instance, %w", err)
	}
	uuid, err := b.migUUID(ctx, present.id, info.Id)
	if err != nil {
		return "", fmt.Errorf("looking for the MIG device, %w", err)
	}
	return uuid, nil
}

// computeProfiles are those that a GPU instance can have.
func (b *board) computeProfiles(ctx context.Context, present *instance) ([]nvml.ComputeInstanceProfileInfo, error) {
	var all []nvml.ComputeInstanceProfileInfo
	for index := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, err := get(ctx, b.caller, "nvmlGpuInstanceGetComputeInstanceProfileInfo", func() (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			return present.handle.GetComputeInstanceProfileInfo(index, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		})
		if err != nil {
			if absent(err) {
				continue
			}
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

// computeInstances are those that a GPU instance has.
func (b *board) computeInstances(ctx context.Context, present *instance) ([]nvml.ComputeInstance, error) {
	profiles, err := b.computeProfiles(ctx, present)
	if err != nil {
		return nil, err
	}
	var all []nvml.ComputeInstance
	for _, profile := range profiles {
		handles, err := get(ctx, b.caller, "nvmlGpuInstanceGetComputeInstances", func() ([]nvml.ComputeInstance, nvml.Return) {
			info := profile
			return present.handle.GetComputeInstances(&info)
		})
		if handles, err = optional(ctx, "compute instances", handles, err); err != nil {
			return nil, err
		}
		all = append(all, handles...)
	}
	return all, nil
}

// compute makes the compute instance that has the most of its GPU instance.
func (b *board) compute(ctx context.Context, present *instance) (nvml.ComputeInstance, error) {
	profiles, err := b.computeProfiles(ctx, present)
	if err != nil {
		return nil, err
	}
	if len(profiles) == 0 {
		return nil, errors.New("NVML tells of no profile")
	}
	best := profiles[0]
	for _, p := range profiles[1:] {
		if p.SliceCount > best.SliceCount || p.SliceCount == best.SliceCount && p.MultiprocessorCount > best.MultiprocessorCount {
			best = p
		}
	}
	return get(ctx, b.caller, "nvmlGpuInstanceCreateComputeInstance", func() (nvml.ComputeInstance, nvml.Return) {
		return present.handle.CreateComputeInstance(&best)
	})
}

// errNoMIGDevice: there are a GPU and a compute instance and no device of them.
var errNoMIGDevice = errors.New("NVML lists no MIG device for the instances")

func (b *board) migUUID(ctx context.Context, gpuInstance, computeInstance uint32) (string, error) {
	count, err := get(ctx, b.caller, "nvmlDeviceGetMaxMigDeviceCount", b.handle.GetMaxMigDeviceCount)
	if err != nil {
		return "", err
	}
	for index := range count {
		mig, err := get(ctx, b.caller, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) { return b.handle.GetMigDeviceHandleByIndex(index) })
		if err != nil {
			if absent(err) || errors.Is(err, nvml.ERROR_NOT_FOUND) {
				continue // the places are not filled in order
			}
			return "", err
		}
		gi, err := get(ctx, b.caller, "nvmlDeviceGetGpuInstanceId", mig.GetGpuInstanceId)
		if err != nil {
			return "", err
		}
		ci, err := get(ctx, b.caller, "nvmlDeviceGetComputeInstanceId", mig.GetComputeInstanceId)
		if err != nil {
			return "", err
		}
		if uint32(gi) == gpuInstance && uint32(ci) == computeInstance { //nolint:gosec // NVML's own numbers
			return get(ctx, b.caller, "nvmlDeviceGetUUID", mig.GetUUID)
		}
	}
	return "", errNoMIGDevice
}

// destroy takes back a GPU instance with all its compute instances.
func (b *board) destroy(ctx context.Context, present *instance) error {
	compute, err := b.computeInstances(ctx, present)
	if err != nil {
		return fmt.Errorf("looking for compute instances, %w", err)
	}
	for _, c := range compute {
		if err := act(ctx, b.caller, "nvmlComputeInstanceDestroy", c.Destroy); err != nil && !errors.Is(err, nvml.ERROR_NOT_FOUND) {
			return fmt.Errorf("destroying compute instance, %w", err)
		}
	}
	if err := act(ctx, b.caller, "nvmlGpuInstanceDestroy", present.handle.Destroy); err != nil && !errors.Is(err, nvml.ERROR_NOT_FOUND) {
		return fmt.Errorf("destroying GPU instance, %w", err)
	}
	klog.FromContext(ctx).Info("Destroyed a MIG instance", "profile", present.Name, "start", present.placement.Start)
	return nil
}
