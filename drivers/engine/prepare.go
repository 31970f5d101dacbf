package engine

// This file prepares claims.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// Prepare prepares claims, each for itself: one that fails keeps no other from
// being prepared. A claim that was prepared already gets the same answer again,
// also if a device has failed since.
func (e *Engine) Prepare(ctx context.Context, claims []*resourcev1.ResourceClaim) map[types.UID]kubeletplugin.PrepareResult {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", name.String(), "claimUID", claim.UID)
		begun := e.Clock.Now()
		devices, err := e.prepare(klog.NewContext(ctx, logger), claim)
		e.Observer.Prepared(name, e.Clock.Since(begun), err)
		if err != nil {
			err = fmt.Errorf("preparing claim %s, %w", name, err)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results
}

func (e *Engine) prepare(ctx context.Context, claim *resourcev1.ResourceClaim) ([]kubeletplugin.Device, error) {
	pool, err := e.Hardware.Pool(ctx)
	if err != nil {
		return nil, &Error{Class: ClassHardware, Err: err}
	}
	wanted, err := e.wanted(claim, pool)
	if err != nil {
		return nil, err
	}
	known, boot, err := e.begin(ctx, claim.UID, wanted, pool)
	if err != nil {
		return nil, err
	}
	// From here to its end the lock is not held.
	if err := e.complete(ctx, boot, claim.UID, known); err != nil {
		return nil, errors.Join(err, e.giveUp(ctx, claim.UID, known))
	}
	return e.answer(claim.UID, known, pool), nil
}

// complete does all that is left to do for a claim that was begun.
func (e *Engine) complete(ctx context.Context, boot string, uid types.UID, known *checkpoint.Claim) error {
	if known.Phase == checkpoint.PrepareStarted {
		if err := e.at(ctx, AfterCheckpointStarted, uid); err != nil {
			return err
		}
	}
	if known.Phase == checkpoint.PrepareCompleted && e.CDI.Has(boot, uid, known) {
		return nil
	}
	if err := e.makeReady(ctx, boot, uid, known); err != nil {
		return err
	}
	return e.finish(ctx, boot, uid, known)
}

// wanted reads from an allocation what this node's driver has to prepare.
func (e *Engine) wanted(claim *resourcev1.ResourceClaim, pool inventory.Pool) (*checkpoint.Claim, error) {
	if claim.Status.Allocation == nil {
		return nil, fail(ClassNotAllocated, "it has no allocation")
	}
	wanted := &checkpoint.Claim{Namespace: claim.Namespace, Name: claim.Name}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if result.Driver != e.Driver {
			continue
		}
		if result.Pool != e.Pool {
			return nil, fail(ClassNotAllocated, "device %s is allocated from pool %s, and this node has pool %s", result.Device, result.Pool, e.Pool)
		}
		device := find(pool, result.Device)
		if device == nil {
			return nil, fail(ClassUnknownDevice, "device %s is allocated, and this node has none of that name", result.Device)
		}
		made := deviceOf(result)
		if model := device.Attributes[fleet.AttributeModel].StringValue; model != nil {
			made.Model = *model
		}
		wanted.Devices = append(wanted.Devices, made)
	}
	if len(wanted.Devices) == 0 {
		return nil, fail(ClassNotAllocated, "no device of %s is allocated to it", e.Driver)
	}
	var err error
	if wanted.Sharing, err = e.sharing(claim); err != nil {
		return nil, err
	}
	return wanted, nil
}

func find(pool inventory.Pool, name string) *resourcev1.Device {
	at := slices.IndexFunc(pool.Devices, func(d resourcev1.Device) bool { return d.Name == name })
	if at < 0 {
		return nil
	}
	return &pool.Devices[at]
}

// begin records a claim as started, or finds it further. It returns the record,
// which may be of an earlier call, and the boot ID that it belongs to.
func (e *Engine) begin(ctx context.Context, uid types.UID, wanted *checkpoint.Claim, pool inventory.Pool) (known *checkpoint.Claim, boot string, err error) {
	err = e.change(ctx, func(state *checkpoint.State) error {
		boot = state.BootID
		present := state.Claims[uid]
		if present != nil && !sameDevices(present, wanted) {
			// Its allocation was taken back and made anew, and kubelet's call to
			// unprepare it never came.
			klog.FromContext(ctx).Info("The claim has other devices than when it was prepared", "before", names(present), "now", names(wanted))
			if err := e.undo(ctx, state, uid); err != nil {
				return err
			}
			present = nil
		}
		if present != nil && present.Phase == checkpoint.PrepareCompleted {
			known = present.DeepCopy()
			return errUnchanged
		}
		if e.Settled != nil {
			if err := e.Settled(ctx, pool); err != nil {
				return &Error{Class: ClassHardware, Err: err}
			}
		}
		if err := e.available(ctx, state, uid, wanted, pool); err != nil {
			return err
		}
		if err := e.at(ctx, BeforeCheckpointStarted, uid); err != nil {
			return err
		}
		known = wanted.DeepCopy()
		known.Phase, known.Since = checkpoint.PrepareStarted, e.Clock.Now().UTC()
		if present != nil && sameStart(present, known) {
			known.Since = present.Since
			return errUnchanged
		}
		state.Claims[uid] = known.DeepCopy()
		return nil
	})
	if err != nil && known != nil {
		// It was being written: the record may be on the disk all the same.
		return nil, "", errors.Join(err, e.giveUp(ctx, uid, known))
	}
	return known, boot, err
}

// sameStart: it was started as it is to be, by a driver that died or by one
// that is at it now.
func sameStart(present, wanted *checkpoint.Claim) bool {
	return present.Phase == checkpoint.PrepareStarted && present.Evidence == checkpoint.Recorded && slices.Equal(present.Devices, wanted.Devices) && sameSharing(present, wanted)
}

func sameSharing(a, b *checkpoint.Claim) bool {
	return equality.Semantic.DeepEqual(a.Sharing, b.Sharing) // nil is as good as empty
}

// sameDevices compares allocations: what a device was when it was prepared does
// not matter, but how it is to be shared does.
func sameDevices(a, b *checkpoint.Claim) bool {
	return sameSharing(a, b) && slices.EqualFunc(a.Devices, b.Devices, func(a, b checkpoint.Device) bool {
		a.Model, b.Model = "", ""
		return a == b
	})
}

func names(claim *checkpoint.Claim) []string {
	var all []string
	for _, device := range claim.Devices {
		all = append(all, device.Name)
	}
	return all
}

// makeReady does everything that can be repeated without harm: the hardware,
// and the CDI file.
func (e *Engine) makeReady(ctx context.Context, boot string, uid types.UID, claim *checkpoint.Claim) error {
	edits := cdi.Edits{}
	for _, device := range claim.Devices {
		if _, done := edits[device.Name]; done {
			continue
		}
		made, err := e.Hardware.Edits(ctx, device.Name)
		if err != nil {
			return &Error{Class: ClassHardware, Err: fmt.Errorf("making device %s ready, %w", device.Name, err)}
		}
		if err := e.share(ctx, uid, claim, device.Name, &made); err != nil {
			return err
		}
		edits[device.Name] = made
	}
	// Under the lock: a file that was written late would replace that of whoever
	// has prepared the claim anew since.
	err := e.change(ctx, func(state *checkpoint.State) error {
		if present := state.Claims[uid]; present == nil || !sameDevices(present, claim) {
			return errMeanwhile
		}
		if err := e.CDI.Write(boot, uid, claim, edits); err != nil {
			return &Error{Class: ClassCDI, Err: err}
		}
		return errUnchanged
	})
	if err != nil {
		return err
	}
	if claim.Phase == checkpoint.PrepareCompleted {
		return nil
	}
	return e.at(ctx, AfterCDI, uid)
}

// errMeanwhile: someone else has ended what this call has begun.
var errMeanwhile = fail(ClassUnprepared, "it was unprepared in the meantime")

// finish records a claim as completed, unless someone has unprepared it since
// it was begun, be it that it was begun anew.
func (e *Engine) finish(ctx context.Context, boot string, uid types.UID, claim *checkpoint.Claim) error {
	completed := claim.Phase == checkpoint.PrepareCompleted
	err := e.change(ctx, func(state *checkpoint.State) error {
		present := state.Claims[uid]
		if present == nil || !sameDevices(present, claim) || !e.CDI.Has(boot, uid, claim) {
			return errMeanwhile
		}
		if present.Phase == checkpoint.PrepareCompleted {
			return errUnchanged
		}
		if err := e.at(ctx, BeforeCheckpointCompleted, uid); err != nil {
			return err
		}
		present.Phase, present.Since, present.Evidence = checkpoint.PrepareCompleted, e.Clock.Now().UTC(), checkpoint.Recorded
		return nil
	})
	if err != nil || completed {
		return err
	}
	// It is done; nothing can make it fail any more.
	_ = e.at(ctx, AfterCheckpointCompleted, uid)
	klog.FromContext(ctx).Info("Prepared", "devices", names(claim))
	return nil
}

// giveUp takes back a prepare that failed, so that it holds nothing. What some
// other call has begun since is left to that one. If taking back fails too, the
// record stays: the next call goes on from there.
func (e *Engine) giveUp(ctx context.Context, uid types.UID, claim *checkpoint.Claim) error {
	completed := claim.Phase == checkpoint.PrepareCompleted
	if completed && len(claim.Sharing) == 0 {
		return nil // it was completed before this call and still is, if nobody ended it
	}
	ctx = context.WithoutCancel(ctx)
	err := e.change(ctx, func(state *checkpoint.State) error {
		present := state.Claims[uid]
		if completed || present == nil || present.Phase == checkpoint.PrepareCompleted || !sameDevices(present, claim) || !present.Since.Equal(claim.Since) {
			e.unshareLate(ctx, uid, present, claim)
			return errUnchanged
		}
		return e.undo(ctx, state, uid)
	})
	if err != nil {
		return fmt.Errorf("taking it back, %w", err)
	}
	return nil
}

// answer is what kubelet is told.
func (e *Engine) answer(uid types.UID, claim *checkpoint.Claim, pool inventory.Pool) []kubeletplugin.Device {
	devices := cdi.Devices(e.Driver, e.Pool, uid, claim)
	for i := range devices {
		device := find(pool, devices[i].DeviceName)
		if device == nil {
			continue
		}
		attributes := make(map[string]resourcev1.DeviceAttribute, len(device.Attributes))
		for name, value := range device.Attributes {
			attributes[string(name)] = value
		}
		devices[i].Metadata = &kubeletplugin.DeviceMetadata{Attributes: attributes}
	}
	return devices
}
