package nvml

// This file lets devices be shared: what package sharing needs of NVML.

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var _ inventory.Sharer = &Inventory{}

// newSharer makes what shares the inventory's GPUs; nil where none is configured.
func (i *Inventory) newSharer() (*sharing.Manager, error) {
	if i.config.Sharing == nil {
		return nil, nil
	}
	config := *i.config.Sharing
	config.GPUs = gpusOf{i}
	return sharing.New(config)
}

// Share implements [inventory.Sharer].
func (i *Inventory) Share(ctx context.Context, device string, claim types.UID, asked v1alpha1.Sharing) (specs.ContainerEdits, error) {
	if i.sharer == nil {
		return specs.ContainerEdits{}, &inventory.UnsupportedError{Device: device, Strategy: asked.Strategy, Reason: "the driver is configured without it"}
	}
	return i.sharer.Share(ctx, device, claim, asked)
}

// Unshare implements [inventory.Sharer].
func (i *Inventory) Unshare(ctx context.Context, device string, claim types.UID) error {
	if i.sharer == nil {
		return nil
	}
	return i.sharer.Unshare(ctx, device, claim)
}

// Shared implements [inventory.Sharer].
func (i *Inventory) Shared(ctx context.Context) ([]inventory.Share, error) {
	if i.sharer == nil {
		return nil, nil
	}
	return i.sharer.Shared(ctx)
}

// gpusOf are the GPUs of an inventory as package sharing wants them.
type gpusOf struct{ *Inventory }

var _ sharing.GPUs = gpusOf{}

// target finds a device's GPU, and says where it is gone for good: never while
// nobody has looked.
func (g gpusOf) target(ctx context.Context, device string) (*target, error) {
	if err := g.wait(ctx); err != nil {
		return nil, fmt.Errorf("waiting for the first look at the GPUs, %w", err)
	}
	t, err := g.Inventory.target(device)
	if errors.Is(err, ErrNoDevice) {
		g.mu.Lock()
		away := g.away
		g.mu.Unlock()
		if away != nil {
			return nil, unavailable(away)
		}
	}
	if errors.Is(err, ErrNoDevice) || errors.Is(err, ErrGPUAbsent) && g.lost(device) {
		return nil, fmt.Errorf("%w: %w", sharing.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	t.caller = t.within(g.config.CallLimit)
	return t, nil
}

// GPU implements [sharing.GPUs].
func (g gpusOf) GPU(ctx context.Context, device string) (sharing.GPU, error) {
	t, err := g.target(ctx, device)
	if err != nil {
		return sharing.GPU{}, err
	}
	return sharing.GPU{UUID: t.UUID, Partitioned: t.wanted != nil}, nil
}

// ComputeMode implements [sharing.GPUs].
func (g gpusOf) ComputeMode(ctx context.Context, device string) (sharing.Mode, error) {
	const call = "nvmlDeviceGetComputeMode"
	t, err := g.target(ctx, device)
	if err != nil {
		return 0, err
	}
	if !t.session.has(call) {
		return 0, &GPUError{device, &CallError{Call: call, Return: nvml.ERROR_FUNCTION_NOT_FOUND}}
	}
	mode, err := get(ctx, t.caller, call, t.board.handle.GetComputeMode)
	if err != nil {
		return 0, g.failed(device, "reading its compute mode", err)
	}
	return sharing.Mode(mode), nil
}

// SetComputeMode implements [sharing.GPUs].
func (g gpusOf) SetComputeMode(ctx context.Context, device string, mode sharing.Mode) error {
	const call = "nvmlDeviceSetComputeMode"
	t, err := g.target(ctx, device)
	if err != nil {
		return err
	}
	if !t.session.has(call) {
		return &GPUError{device, &CallError{Call: call, Return: nvml.ERROR_FUNCTION_NOT_FOUND}}
	}
	if err := act(ctx, t.caller, call, func() nvml.Return { return t.board.handle.SetComputeMode(nvml.ComputeMode(mode)) }); err != nil {
		return g.failed(device, "setting its compute mode", err)
	}
	return nil
}

// failed names the device of an error. A GPU that is lost in this moment is
// known as such only after the next reading.
func (g gpusOf) failed(device, what string, err error) error {
	err = &GPUError{device, fmt.Errorf("%s, %w", what, err)}
	if errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		return fmt.Errorf("%w: %w", sharing.ErrGone, err)
	}
	return err
}
