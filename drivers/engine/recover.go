package engine

// This file brings back the state after a crash, a boot, or damage.

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/bootid"
	"gpuladder.dev/ladder/drivers/checkpoint"
)

// Start brings the disk in order after whatever ended the last driver: it reads
// the checkpoint, forgets it if the node has booted, makes it again if it is
// lost, removes CDI files of claims that are not in it, and sets devices back
// that are shared for such claims. It can be called again after an error.
func (e *Engine) Start(ctx context.Context) error {
	return e.change(ctx, func(state *checkpoint.State) error {
		files, err := e.CDI.Claims(state.BootID)
		if err != nil {
			return &Error{Class: ClassCDI, Err: err}
		}
		for uid := range files {
			if state.Claims[uid] != nil {
				continue
			}
			klog.FromContext(ctx).Info("Removing the CDI file of a claim that is not prepared", "claimUID", uid)
			if err := e.CDI.Remove(uid); err != nil {
				return &Error{Class: ClassCDI, Err: err}
			}
		}
		if err := e.unshareStrays(ctx, state); err != nil {
			// The hardware may be away; it does no harm until claims are collected.
			klog.FromContext(ctx).Error(err, "Devices stay shared until claims are collected")
		}
		return errUnchanged
	})
}

// load reads the state; the lock is held. What it has to mend it writes before
// it returns.
func (e *Engine) load(ctx context.Context) (*checkpoint.State, error) {
	loaded, err := e.Store.Load()
	if err != nil {
		return nil, &Error{Class: ClassCheckpoint, Err: err}
	}
	boot, err := bootid.Read(e.BootIDFile)
	if err != nil {
		return nil, &Error{Class: ClassCheckpoint, Err: err}
	}
	readable := loaded.Origin == checkpoint.Current || loaded.Origin == checkpoint.Previous
	switch {
	case readable && loaded.State.BootID != boot:
		return e.forget(ctx, loaded, boot)
	case loaded.Origin == checkpoint.Current:
		return loaded.State, nil
	default:
		return e.recover(ctx, loaded, boot)
	}
}

// forget begins anew in another boot of the node: no container of the last one
// runs any more, and kubelet prepares again what its Pods need.
func (e *Engine) forget(ctx context.Context, loaded checkpoint.Loaded, boot string) (*checkpoint.State, error) {
	klog.FromContext(ctx).Info("The node has booted since the checkpoint was written", "claims", len(loaded.State.Claims), "bootID", boot)
	files, err := e.CDI.Claims(boot)
	if err != nil {
		return nil, &Error{Class: ClassCDI, Err: err}
	}
	for uid := range files {
		if err := e.CDI.Remove(uid); err != nil {
			return nil, &Error{Class: ClassCDI, Err: err}
		}
	}
	state := checkpoint.New(boot)
	if err := e.replace(loaded, state); err != nil {
		return nil, err
	}
	e.Observer.Rebooted(len(loaded.State.Claims))
	return state, nil
}

// replace writes a state in the place of what was loaded.
func (e *Engine) replace(loaded checkpoint.Loaded, state *checkpoint.State) error {
	if loaded.Origin != checkpoint.Current {
		if err := e.Store.SetAside(); err != nil {
			return &Error{Class: ClassCheckpoint, Err: err}
		}
	}
	if err := e.Store.Save(state); err != nil {
		return &Error{Class: ClassCheckpoint, Err: err}
	}
	return nil
}

// recover makes the checkpoint again from all that is left: the file before
// the lost one, the CDI files, and the API server's claims. Where they differ,
// a claim too many is kept rather than one too few, since a claim that is not
// known does not hold its devices; kubelet or [Engine.Collect] ends it.
func (e *Engine) recover(ctx context.Context, loaded checkpoint.Loaded, boot string) (*checkpoint.State, error) {
	logger := klog.FromContext(ctx)
	files, err := e.CDI.Claims(boot)
	if err != nil {
		return nil, &Error{Class: ClassCDI, Err: err}
	}
	list, err := e.Claims.List(ctx)
	if err != nil {
		return nil, &Error{Class: ClassAPI, Err: err}
	}
	inAPI := map[types.UID]*resourcev1.ResourceClaim{}
	for _, claim := range list {
		if e.over(claim.UID, claim) == "" {
			inAPI[claim.UID] = claim
		}
	}

	state := loaded.State.DeepCopy()
	state.BootID = boot
	for uid, claim := range state.Claims {
		file, found := files[uid]
		switch {
		case found && file == nil:
			// Damaged, and not removed: its containers may run. It is written again
			// when kubelet asks.
		case found:
			// The file is the last thing to be made, and the first to go.
			if sameDevices(file, claim) {
				claim.Phase = checkpoint.PrepareCompleted
			}
		case inAPI[uid] == nil:
			delete(state.Claims, uid) // the lost change was its end
		default:
			// Its end may be lost, or it had only been begun: no container of it
			// runs, so it holds its devices no longer than the API server says.
			claim.Phase, claim.Evidence = checkpoint.PrepareStarted, checkpoint.FromAPI
		}
	}
	for uid, claim := range files {
		if claim != nil && state.Claims[uid] == nil {
			claim.Evidence, claim.Since = checkpoint.FromCDI, e.Clock.Now().UTC()
			state.Claims[uid] = claim
		}
	}
	for uid, claim := range inAPI {
		if state.Claims[uid] == nil {
			// Parameters that can't be read were refused, and nothing was shared.
			sharing, _ := e.sharing(claim)
			state.Claims[uid] = &checkpoint.Claim{
				Namespace: claim.Namespace, Name: claim.Name, Phase: checkpoint.PrepareStarted,
				Devices: e.allocated(claim), Sharing: sharing, Since: e.Clock.Now().UTC(), Evidence: checkpoint.FromAPI,
			}
		}
	}
	if err := e.replace(loaded, state); err != nil {
		return nil, err
	}
	if loaded.Problem != nil || len(state.Claims) > 0 {
		logger.Error(loaded.Problem, "Made the checkpoint again", "origin", loaded.Origin, "claims", len(state.Claims))
		e.Observer.Recovered(loaded.Origin, loaded.Problem, len(state.Claims))
	}
	// Only now that it is written what they prove: they are damaged, or of
	// another boot.
	for uid, claim := range files {
		if claim != nil {
			continue
		}
		if err := e.CDI.Remove(uid); err != nil {
			return nil, &Error{Class: ClassCDI, Err: err}
		}
	}
	return state, nil
}
