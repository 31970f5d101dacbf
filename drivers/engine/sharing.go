package engine

// This file has devices shared as a claim's parameters ask for.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// sharing reads from an allocation how its devices of this driver are to be
// shared: those of which something is to be set, by name. Parameters of the
// class come before those of the claim, and of several the last counts.
func (e *Engine) sharing(claim *resourcev1.ResourceClaim) (map[string]v1alpha1.Sharing, error) {
	configs, err := e.configs(claim)
	if err != nil || len(configs) == 0 {
		return nil, err
	}
	asked := map[string]v1alpha1.Sharing{}
	seen := map[string]*v1alpha1.Sharing{}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if result.Driver != e.Driver || result.Pool != e.Pool {
			continue
		}
		wanted, err := sharingOf(result, configs)
		if err != nil {
			return nil, err
		}
		if other, twice := seen[result.Device]; twice && !equality.Semantic.DeepEqual(other, wanted) {
			return nil, fail(ClassUnsupported, "its requests ask for device %s to be shared in two ways", result.Device)
		}
		seen[result.Device] = wanted
		if wanted == nil {
			continue
		}
		if e.Sharer == nil {
			return nil, &Error{Class: ClassUnsupported, Err: &inventory.UnsupportedError{
				Device: result.Device, Strategy: wanted.Strategy, Reason: "on this node devices are Exclusive only",
			}}
		}
		asked[result.Device] = *wanted
	}
	if len(asked) == 0 {
		return nil, nil
	}
	return asked, nil
}

// config is what is said of some requests, or with none of all.
type config struct {
	source   resourcev1.AllocationConfigSource
	requests []string
	sharing  *v1alpha1.Sharing
}

// configs are the parameters for this driver that say how to share, those of
// the class first.
func (e *Engine) configs(claim *resourcev1.ResourceClaim) ([]config, error) {
	var all []config
	for i := range claim.Status.Allocation.Devices.Config {
		given := &claim.Status.Allocation.Devices.Config[i]
		if given.Opaque == nil || given.Opaque.Driver != e.Driver {
			continue
		}
		read, err := v1alpha1.DecodeGPUConfig(given.Opaque.Parameters.Raw)
		if err != nil {
			return nil, fail(ClassUnsupported, "its parameters can't be used (number %d of its allocation, %s), %w", i+1, given.Source, err)
		}
		if read.Sharing != nil {
			all = append(all, config{given.Source, given.Requests, read.Sharing})
		}
	}
	slices.SortStableFunc(all, func(a, b config) int { return rank(a.source) - rank(b.source) })
	return all, nil
}

func rank(source resourcev1.AllocationConfigSource) int {
	if source == resourcev1.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

// sharingOf is what the last of the configs says that speaks of the device, in
// canonical form: nil for Exclusive. Who has admin access only looks on, and
// must not change the device for those who use it.
func sharingOf(result *resourcev1.DeviceRequestAllocationResult, configs []config) (*v1alpha1.Sharing, error) {
	admin := result.AdminAccess != nil && *result.AdminAccess
	var last *v1alpha1.Sharing
	for _, c := range configs {
		if len(c.requests) > 0 && !slices.Contains(c.requests, result.Request) && !slices.Contains(c.requests, resourceclaim.BaseRequestRef(result.Request)) {
			continue
		}
		if admin && rank(c.source) == 0 {
			continue // the class means those who use the device
		}
		last = c.sharing.Canonical()
	}
	if last != nil && admin {
		return nil, &Error{Class: ClassUnsupported, Err: &inventory.UnsupportedError{
			Device: result.Device, Strategy: last.Strategy, Reason: "it is allocated with admin access",
		}}
	}
	return last, nil
}

// settingsFit says whether two claims that share a device may have it set like
// this. An MPS daemon has its devices for itself.
func settingsFit(a, b *checkpoint.Claim, device string) bool {
	mine, is := a.Sharing[device]
	other, has := b.Sharing[device]
	if is != has {
		return false
	}
	return !is || mine.Strategy != v1alpha1.SharingMPS && equality.Semantic.DeepEqual(mine, other)
}

// share sets one device up, if the claim asks for it, and adds what its
// containers need for that.
func (e *Engine) share(ctx context.Context, uid types.UID, claim *checkpoint.Claim, device string, edits *specs.ContainerEdits) error {
	asked, is := claim.Sharing[device]
	if !is {
		return nil
	}
	if e.Sharer == nil { // recorded by a driver of other hardware
		return fail(ClassUnsupported, "device %s can't be shared: on this node devices are Exclusive only", device)
	}
	more, err := e.Sharer.Share(ctx, device, uid, *asked.DeepCopy())
	if unsupported := new(inventory.UnsupportedError); errors.As(err, &unsupported) {
		return &Error{Class: ClassUnsupported, Err: unsupported}
	}
	if err != nil {
		return &Error{Class: ClassHardware, Err: fmt.Errorf("sharing device %s by %s, %w", device, asked.Strategy, err)}
	}
	edits.Env = append(slices.Clone(edits.Env), more.Env...)
	edits.DeviceNodes = append(slices.Clone(edits.DeviceNodes), more.DeviceNodes...)
	edits.Mounts = append(slices.Clone(edits.Mounts), more.Mounts...)
	edits.Hooks = append(slices.Clone(edits.Hooks), more.Hooks...)
	edits.AdditionalGIDs = append(slices.Clone(edits.AdditionalGIDs), more.AdditionalGIDs...)
	return nil
}

// unshare sets all devices back that are set up for a claim: those of its
// record, which may be nil, and whatever else there is.
func (e *Engine) unshare(ctx context.Context, uid types.UID, claim *checkpoint.Claim) error {
	if e.Sharer == nil {
		return nil
	}
	devices := map[string]bool{}
	if claim != nil {
		for device := range claim.Sharing {
			devices[device] = true
		}
	}
	all, err := e.Sharer.Shared(ctx)
	if err != nil {
		return &Error{Class: ClassHardware, Err: fmt.Errorf("looking up how devices are shared, %w", err)}
	}
	for _, share := range all {
		if share.Claim == uid {
			devices[share.Device] = true
		}
	}
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		if err := e.unshareOne(ctx, device, uid); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) unshareOne(ctx context.Context, device string, uid types.UID) error {
	if err := e.Sharer.Unshare(ctx, device, uid); err != nil {
		return &Error{Class: ClassHardware, Err: fmt.Errorf("setting device %s back, %w", device, err)}
	}
	return nil
}

// unshareStrays sets back what is set up for claims that are not in the state,
// or that have other devices there: what is left of a checkpoint that was lost,
// of another boot, or of a prepare that went on after its claim had ended. The
// lock is held, so that none of them is being prepared.
func (e *Engine) unshareStrays(ctx context.Context, state *checkpoint.State) error {
	if e.Sharer == nil {
		return nil
	}
	all, err := e.Sharer.Shared(ctx)
	if err != nil {
		return &Error{Class: ClassHardware, Err: fmt.Errorf("looking up how devices are shared, %w", err)}
	}
	var failed []error // one that can't be set back keeps no other
	for _, share := range all {
		if claim := state.Claims[share.Claim]; claim != nil && slices.Contains(names(claim), share.Device) {
			continue
		}
		klog.FromContext(ctx).Info("Setting back a device that is shared for a claim that does not have it", "device", share.Device, "claimUID", share.Claim)
		failed = append(failed, e.unshareOne(ctx, share.Device, share.Claim))
	}
	return errors.Join(failed...)
}

// unshareLate sets back what a prepare has set up after its claim has ended,
// unless the claim has been begun anew. The lock is held.
func (e *Engine) unshareLate(ctx context.Context, uid types.UID, present, claim *checkpoint.Claim) {
	if e.Sharer == nil {
		return
	}
	for _, device := range slices.Sorted(maps.Keys(claim.Sharing)) {
		if present != nil && slices.Contains(names(present), device) {
			continue
		}
		if err := e.unshareOne(ctx, device, uid); err != nil {
			klog.FromContext(ctx).Error(err, "A device stays shared until claims are collected", "device", device)
		}
	}
}
