package nvml

// This file reads what a GPU is: all that does not change while it is there.

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// facts are what a GPU says of itself.
type facts struct {
	identity
	Product, Brand, Architecture string
	// Capability is the CUDA compute capability: 9.0.
	Capability string
	// Memory in bytes.
	Memory uint64
	// Driver and CUDA are versions as NVML prints them; CUDA as its number,
	// 12040 for 12.4.
	Driver string
	CUDA   int
	// Profiles are what a board in MIG mode can be split into; none for others.
	Profiles []profile
	// Links are the NVLinks that are up.
	Links []int
}

// optional is a fact that a GPU need not have: it is left out where NVML does
// not tell it. An error is one that says something of the GPU.
func optional[T any](ctx context.Context, what string, value T, err error) (T, error) {
	if err == nil {
		return value, nil
	}
	var none T
	if absent(err) {
		klog.FromContext(ctx).V(2).Info("NVML does not tell", "what", what, "reason", err.Error())
		return none, nil
	}
	return none, err
}

// absent says whether an error means that there is nothing to be told, and not
// that something is wrong with the GPU.
func absent(err error) bool {
	for _, ret := range []nvml.Return{
		nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_DEPRECATED,
	} {
		if errors.Is(err, ret) {
			return true
		}
	}
	return errors.Is(err, errNoWord)
}

// errNoWord: go-nvlib has no word for a value, or did not get the value.
var errNoWord = errors.New("there is no word for it")

// readFacts asks a GPU. The library is asked for the names of what it has.
func (s *session) readFacts(ctx context.Context, c caller, index int, handle nvml.Device) (*facts, error) {
	f := &facts{Driver: s.driverVersion, CUDA: s.cudaVersion}
	f.Index = index
	pci, err := get(ctx, c, "nvmlDeviceGetPciInfo", handle.GetPciInfo)
	if err != nil {
		return nil, err
	}
	f.Address = addressOf(&pci)
	if f.UUID, err = get(ctx, c, "nvmlDeviceGetUUID", handle.GetUUID); err != nil {
		return f, err
	}
	if f.Product, err = get(ctx, c, "nvmlDeviceGetName", handle.GetName); err != nil {
		return f, err
	}
	f.Model = modelOf(f.Product)
	memory, err := get(ctx, c, "nvmlDeviceGetMemoryInfo", handle.GetMemoryInfo)
	if err != nil {
		return f, err
	}
	f.Memory = memory.Total
	if f.Capability, err = s.word(ctx, c, "nvmlDeviceGetCudaComputeCapability", func() (string, error) {
		major, minor, ret := handle.GetCudaComputeCapability()
		if ret != nvml.SUCCESS {
			return "", ret
		}
		return fmt.Sprintf("%d.%d", major, minor), nil
	}); err != nil {
		return f, err
	}
	named, err := s.names.NewDevice(handle)
	if err != nil {
		return f, fmt.Errorf("naming GPU, %w", err)
	}
	if f.Architecture, err = s.word(ctx, c, "nvmlDeviceGetArchitecture", named.GetArchitectureAsString); err != nil {
		return f, err
	}
	if f.Brand, err = s.word(ctx, c, "nvmlDeviceGetBrand", named.GetBrandAsString); err != nil {
		return f, err
	}
	if f.Links, err = s.readLinks(ctx, c, handle); err != nil {
		return f, err
	}
	f.Profiles, err = s.readProfiles(ctx, c, f, handle)
	return f, err
}

// word asks for an optional fact that is a word. go-nvlib's errors do not say
// what NVML has returned, so all of them mean that there is no such word.
func (s *session) word(ctx context.Context, c caller, call string, f func() (string, error)) (string, error) {
	if !s.has(call) {
		return "", nil
	}
	word, err := do(ctx, c, call, func() (string, error) {
		word, err := f()
		var ret nvml.Return
		switch {
		case err == nil:
			return word, nil
		case errors.As(err, &ret):
			return "", &CallError{Call: call, Return: ret}
		}
		return "", fmt.Errorf("%s, %w", err.Error(), errNoWord)
	})
	return optional(ctx, call, word, err)
}

// readLinks finds the NVLinks that are up.
func (s *session) readLinks(ctx context.Context, c caller, handle nvml.Device) ([]int, error) {
	if !s.has("nvmlDeviceGetNvLinkState") {
		return nil, nil
	}
	var up []int
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := get(ctx, c, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) { return handle.GetNvLinkState(link) })
		if err != nil {
			if absent(err) {
				break // it has no more of them
			}
			return nil, err
		}
		if state == nvml.FEATURE_ENABLED {
			up = append(up, link)
		}
	}
	return up, nil
}
