package engine

// This file refuses devices that a claim must not get.

import (
	"context"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
)

// available says whether a claim may have its devices: none has failed, and
// none is held by another claim, whole or in part. A suspected device is no
// reason: the claim was allocated before the suspicion, and the taint keeps
// others away.
//
// This is the last line of defence against giving a device to two: the API
// server frees the devices of a Pod that is deleted by force while its
// containers still run.
func (e *Engine) available(ctx context.Context, state *checkpoint.State, uid types.UID, wanted *checkpoint.Claim, pool inventory.Pool) error {
	for _, device := range wanted.Devices {
		if severity, why := e.Hardware.Trouble(device.Name); severity == inventory.Failed && !device.AdminAccess {
			return fail(ClassDeviceFailed, "device %s has failed: %s", device.Name, why)
		}
	}
	for _, other := range sorted(state.Claims) {
		if other == uid {
			continue
		}
		held := conflict(wanted, state.Claims[other], pool)
		if held == nil {
			continue
		}
		gone, err := e.dropWrongGuess(ctx, state, other)
		if err != nil {
			return err
		}
		if gone {
			continue
		}
		held.HolderUID = other
		held.Holder = types.NamespacedName{Namespace: state.Claims[other].Namespace, Name: state.Claims[other].Name}
		return &Error{Class: ClassDeviceHeld, Err: held}
	}
	// Each pair fits; do all together?
	crowded := together(state, uid, wanted, pool)
	for _, other := range sorted(state.Claims) {
		if crowded == nil || other == uid {
			continue
		}
		if _, err := e.dropWrongGuess(ctx, state, other); err != nil {
			return err
		}
		crowded = together(state, uid, wanted, pool)
	}
	if crowded != nil {
		return &Error{Class: ClassDeviceHeld, Err: crowded}
	}
	return nil
}

func sorted(claims map[types.UID]*checkpoint.Claim) []types.UID {
	var uids []types.UID
	for uid := range claims {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// conflict finds a device that can't be used by both, or returns nil.
func conflict(wanted, holder *checkpoint.Claim, pool inventory.Pool) *HeldError {
	for _, device := range wanted.Devices {
		for _, held := range holder.Devices {
			switch {
			case device.AdminAccess || held.AdminAccess:
			case device.Name == held.Name:
				if device.ShareID == "" || held.ShareID == "" || device.ShareID == held.ShareID {
					return &HeldError{Device: device.Name, HolderDevice: held.Name}
				}
				if !settingsFit(wanted, holder, device.Name) {
					return &HeldError{Device: device.Name, HolderDevice: held.Name, OtherSharing: true}
				}
			case !fit(pool, device.Name, held.Name):
				return &HeldError{Device: device.Name, HolderDevice: held.Name}
			}
		}
	}
	return nil
}

// together adds up what all claims consume of the shared counters that the
// wanted devices need. It returns nil if there is enough; otherwise it names a
// wanted device that is too much, and who consumes what it would need. A board
// of which more is held than there is, as after the checkpoint was lost, keeps
// no device of another board from its claim.
func together(state *checkpoint.State, uid types.UID, wanted *checkpoint.Claim, pool inventory.Pool) *CrowdedError {
	var all []string
	for other, claim := range state.Claims {
		if other != uid {
			all = append(all, held(claim)...)
		}
	}
	for _, name := range held(wanted) {
		all = append(all, name)
		device := find(pool, name)
		if short, is := exceeded(pool, func(of counter) bool { return consumes(device, of) }, all...); is {
			return &CrowdedError{Device: name, CounterSet: short.set, Counter: short.name, Holders: consumers(state, uid, short, pool)}
		}
	}
	return nil
}

// consumers are those of a counter, by the UIDs of their claims.
func consumers(state *checkpoint.State, except types.UID, of counter, pool inventory.Pool) []HeldError {
	var all []HeldError
	for _, uid := range sorted(state.Claims) {
		if uid == except {
			continue
		}
		claim := state.Claims[uid]
		for _, name := range held(claim) {
			if consumes(find(pool, name), of) {
				all = append(all, HeldError{
					Device: name, HolderDevice: name, HolderUID: uid,
					Holder: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
				})
			}
		}
	}
	return all
}

func consumes(device *resourcev1.Device, of counter) bool {
	if device == nil {
		return false
	}
	return slices.ContainsFunc(device.ConsumesCounters, func(c resourcev1.DeviceCounterConsumption) bool {
		amount, is := c.Counters[of.name]
		return is && c.CounterSet == of.set && amount.Value.Sign() > 0
	})
}

func held(claim *checkpoint.Claim) []string {
	var all []string
	for _, device := range claim.Devices {
		if !device.AdminAccess {
			all = append(all, device.Name)
		}
	}
	return all
}

// counter is one of the pool's shared ones.
type counter struct{ set, name string }

// fit says whether the devices can be in use at the same time.
func fit(pool inventory.Pool, devices ...string) bool {
	_, is := exceeded(pool, func(counter) bool { return true }, devices...)
	return !is
}

// exceeded finds a shared counter of the pool, among those that matter, of which
// the devices together consume more than there is. Devices that are not in the
// pool consume nothing; one that is named twice consumes once.
func exceeded(pool inventory.Pool, matters func(counter) bool, devices ...string) (first counter, is bool) {
	left := map[counter]*resource.Quantity{}
	for i := range pool.SharedCounters {
		for name, value := range pool.SharedCounters[i].Counters {
			amount := value.Value.DeepCopy()
			left[counter{pool.SharedCounters[i].Name, name}] = &amount
		}
	}
	counted := map[string]bool{}
	for _, name := range devices {
		device := find(pool, name)
		if device == nil || counted[name] {
			continue
		}
		counted[name] = true
		for _, consumed := range device.ConsumesCounters {
			for _, name := range slices.Sorted(maps.Keys(consumed.Counters)) {
				of := counter{consumed.CounterSet, name}
				if !matters(of) {
					continue
				}
				amount := left[of]
				if amount == nil {
					return of, true
				}
				if amount.Sub(consumed.Counters[name].Value); amount.Sign() < 0 {
					return of, true
				}
			}
		}
	}
	return counter{}, false
}

// dropWrongGuess drops a holder that was wrongly assumed to be prepared.
func (e *Engine) dropWrongGuess(ctx context.Context, state *checkpoint.State, uid types.UID) (dropped bool, err error) {
	wrong, err := e.guessWasWrong(ctx, uid, state.Claims[uid])
	if err != nil || !wrong {
		return false, err
	}
	klog.FromContext(ctx).Info("Dropping a claim that was assumed to be prepared", "other", uid)
	return true, e.undo(ctx, state, uid)
}

// guessWasWrong looks again at a holder that is known only by its allocation as
// it was when the checkpoint was lost. Where the API server now says that the
// claim is over, it never was prepared here or kubelet has unprepared it.
func (e *Engine) guessWasWrong(ctx context.Context, uid types.UID, holder *checkpoint.Claim) (bool, error) {
	if holder.Evidence != checkpoint.FromAPI {
		return false, nil
	}
	claim, err := e.Claims.Get(ctx, holder.Namespace, holder.Name)
	if err != nil {
		return false, &Error{Class: ClassAPI, Err: err}
	}
	return e.over(uid, claim) != "", nil
}

// over says why a claim with this UID no longer needs what was prepared for it
// here, or "" if it does.
func (e *Engine) over(uid types.UID, claim *resourcev1.ResourceClaim) string {
	switch {
	case claim == nil:
		return "it is gone"
	case claim.UID != uid:
		return "another claim has its name"
	case claim.Status.Allocation == nil:
		return "it is no longer allocated"
	case len(e.allocated(claim)) == 0:
		return "it is no longer allocated on this node"
	case len(claim.Status.ReservedFor) == 0:
		return "it is reserved for nobody"
	}
	return ""
}

// allocated are the devices of this node that a claim has.
func (e *Engine) allocated(claim *resourcev1.ResourceClaim) []checkpoint.Device {
	if claim.Status.Allocation == nil {
		return nil
	}
	var devices []checkpoint.Device
	for i := range claim.Status.Allocation.Devices.Results {
		if result := &claim.Status.Allocation.Devices.Results[i]; result.Driver == e.Driver && result.Pool == e.Pool {
			devices = append(devices, deviceOf(result))
		}
	}
	return devices
}

func deviceOf(result *resourcev1.DeviceRequestAllocationResult) checkpoint.Device {
	made := checkpoint.Device{Request: result.Request, Name: result.Device}
	if result.AdminAccess != nil {
		made.AdminAccess = *result.AdminAccess
	}
	if result.ShareID != nil {
		made.ShareID = *result.ShareID
	}
	return made
}
