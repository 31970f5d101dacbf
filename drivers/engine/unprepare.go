package engine

// This file takes back what was prepared.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/checkpoint"
)

// Unprepare takes back what was prepared for claims, each for itself. A claim
// for which nothing was prepared is no error.
func (e *Engine) Unprepare(ctx context.Context, claims []kubeletplugin.NamespacedObject) map[types.UID]error {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", claim.NamespacedName.String(), "claimUID", claim.UID)
		begun := e.Clock.Now()
		err := e.unprepare(klog.NewContext(ctx, logger), claim.UID)
		e.Observer.Unprepared(claim.NamespacedName, e.Clock.Since(begun), err)
		if err != nil {
			err = fmt.Errorf("unpreparing claim %s, %w", claim.NamespacedName, err)
		}
		results[claim.UID] = err
	}
	return results
}

func (e *Engine) unprepare(ctx context.Context, uid types.UID) error {
	known := false
	err := e.change(ctx, func(state *checkpoint.State) error {
		if known = state.Claims[uid] != nil; known {
			return e.undo(ctx, state, uid)
		}
		if err := e.CDI.Remove(uid); err != nil {
			return &Error{Class: ClassCDI, Err: err}
		}
		if err := e.unshare(ctx, uid, nil); err != nil {
			return err
		}
		return errUnchanged
	})
	if err != nil || !known {
		return err
	}
	_ = e.at(ctx, AfterUnprepareCheckpoint, uid) // it is done
	klog.FromContext(ctx).Info("Unprepared")
	return nil
}

// undo removes all that was made for a claim that is in the state: the record
// last, so that after a crash it is found and undone again.
func (e *Engine) undo(ctx context.Context, state *checkpoint.State, uid types.UID) error {
	if err := e.at(ctx, BeforeUnprepareCDI, uid); err != nil {
		return err
	}
	if err := e.CDI.Remove(uid); err != nil {
		return &Error{Class: ClassCDI, Err: err}
	}
	if err := e.at(ctx, AfterUnprepareCDI, uid); err != nil {
		return err
	}
	claim := state.Claims[uid]
	if err := e.unshare(ctx, uid, claim); err != nil {
		return err
	}
	delete(state.Claims, uid)
	for _, device := range claim.Devices {
		if inUse(state, device.Name) {
			continue
		}
		if err := e.Hardware.Release(ctx, device.Name); err != nil {
			return &Error{Class: ClassHardware, Err: fmt.Errorf("releasing device %s, %w", device.Name, err)}
		}
	}
	return nil
}

func inUse(state *checkpoint.State, device string) bool {
	for _, claim := range state.Claims {
		for _, held := range claim.Devices {
			if held.Name == device {
				return true
			}
		}
	}
	return false
}

// Collect takes back what was prepared for claims that are over and that
// kubelet did not unprepare, which happens when it has lost its own state. A
// claim must have been found over for [Config.StaleAfter]: kubelet is given the
// time to end the containers first, also of a Pod that was deleted by force.
func (e *Engine) Collect(ctx context.Context) error {
	held, err := e.Held(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid := range e.stale {
		if held[uid] == nil {
			delete(e.stale, uid)
		}
	}
	var failed []error // one that can't be taken back keeps no other
	for _, uid := range sorted(held) {
		claim, err := e.Claims.Get(ctx, held[uid].Namespace, held[uid].Name)
		if err != nil {
			return errors.Join(append(failed, &Error{Class: ClassAPI, Err: err})...)
		}
		if e.over(uid, claim) == "" {
			delete(e.stale, uid)
			continue
		}
		since, known := e.stale[uid]
		if !known {
			since = e.Clock.Now()
			e.stale[uid] = since
		}
		// One that was guessed from its allocation never was prepared here.
		guessed := held[uid].Evidence == checkpoint.FromAPI
		if !guessed && e.Clock.Since(since) < e.StaleAfter {
			continue
		}
		if err := e.collect(ctx, uid, since); err != nil {
			failed = append(failed, fmt.Errorf("collecting claim %s/%s (%s), %w", held[uid].Namespace, held[uid].Name, uid, err))
		}
	}
	err = e.change(ctx, func(state *checkpoint.State) error {
		if err := e.unshareStrays(ctx, state); err != nil {
			return err
		}
		return errUnchanged
	})
	return errors.Join(append(failed, err)...)
}

// collect asks the API server again, now under the lock: kubelet prepares a
// claim only once it is reserved, so a claim that came back is seen here.
func (e *Engine) collect(ctx context.Context, uid types.UID, since time.Time) error {
	var name types.NamespacedName
	why, waits := "", false
	err := e.change(ctx, func(state *checkpoint.State) error {
		present := state.Claims[uid]
		if present == nil {
			return errUnchanged
		}
		claim, err := e.Claims.Get(ctx, present.Namespace, present.Name)
		if err != nil {
			return &Error{Class: ClassAPI, Err: err}
		}
		if why = e.over(uid, claim); why == "" {
			return errUnchanged
		}
		// It may have been prepared since it was found over: then it runs.
		if present.Evidence != checkpoint.FromAPI && (e.Clock.Since(since) < e.StaleAfter || e.Clock.Since(present.Since) < e.StaleAfter) {
			waits = true
			return errUnchanged
		}
		name = types.NamespacedName{Namespace: present.Namespace, Name: present.Name}
		return e.undo(ctx, state, uid)
	})
	if err != nil || waits {
		return err
	}
	delete(e.stale, uid)
	if why != "" {
		klog.FromContext(ctx).Info("Collected a claim that kubelet did not unprepare", "claim", name.String(), "claimUID", uid, "reason", why, "since", since)
		e.Observer.Collected(name, uid, why)
	}
	return nil
}
