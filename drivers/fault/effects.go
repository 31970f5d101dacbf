package fault

// This file is what the faults do to the driver.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/plugin"
	"gpuladder.dev/ladder/drivers/xid"
	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/policies/fleet"
)

var (
	_ engine.Hooks = &Set{}
	_ plugin.Gate  = &Set{}
)

// At implements [engine.Hooks]. Prepares are slow, and fail, when the claim is
// recorded as started: that is where hardware would be made ready.
func (s *Set) At(ctx context.Context, point engine.Point, claim types.UID) error {
	for _, f := range s.of(fault.CrashAt) {
		if string(f.Point) != string(point) {
			continue
		}
		// Before the crash, so that it is over when the driver comes back.
		if err := s.fired(f.ID, func(f fault.Fault) bool { return f.Once }); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Fault: crashing", "point", point, "claimUID", claim)
		klog.Flush()
		s.config.Kill()
	}
	if point != engine.AfterCheckpointStarted {
		return nil
	}
	never := func(fault.Fault) bool { return false }
	for _, f := range s.of(fault.SlowPrepare) {
		if err := errors.Join(s.fired(f.ID, never), s.wait(ctx, time.Duration(f.Duration))); err != nil {
			return err
		}
	}
	for _, f := range s.of(fault.FailPrepare) {
		err := s.fired(f.ID, func(f fault.Fault) bool { return f.Times > 0 && f.Fired >= f.Times })
		return errors.Join(errors.New(f.Message), err)
	}
	return nil
}

// Publishing implements [plugin.Gate]. Slices that are withheld are not stale.
func (s *Set) Publishing() plugin.Publishing {
	switch {
	case len(s.of(fault.WithholdSlice)) > 0:
		return plugin.PublishNothing
	case len(s.of(fault.StaleSlice)) > 0:
		return plugin.PublishNoChange
	}
	return plugin.PublishAll
}

// Troubles are what the hardware would report, for the devices that there are:
// a fault of a board is one of all its partitions, and of a partition one of
// the board.
func (s *Set) Troubles(devices []string) []inventory.Trouble {
	worst := map[inventory.Origin]inventory.Trouble{}
	var order []inventory.Origin
	for _, f := range s.of(fault.XID, fault.Lost, fault.Remap) {
		trouble, is := troubleOf(f)
		if !is {
			continue
		}
		for _, device := range devices {
			if fleet.GPUOf(device) != fleet.GPUOf(f.Device) {
				continue
			}
			trouble.Device = device
			present, known := worst[trouble.Origin]
			if !known {
				order = append(order, trouble.Origin)
			}
			if !known || trouble.Severity > present.Severity {
				worst[trouble.Origin] = trouble
			}
		}
	}
	troubles := make([]inventory.Trouble, len(order))
	for i, origin := range order {
		troubles[i] = worst[origin]
	}
	return troubles
}

// troubleOf is false for an XID that is an application's own.
func troubleOf(f fault.Fault) (inventory.Trouble, bool) {
	var made inventory.Trouble
	switch f.Kind {
	case fault.XID:
		made.Source, made.Reason, made.Message = "xid", fmt.Sprintf("Xid%d", f.Code), xid.Describe(f.Code)
		made.Severity = xid.SeverityOf(f.Code)
	case fault.Lost:
		made.Source, made.Reason, made.Message = "bus", "GPULost", "the GPU does not answer any more"
		made.Severity = inventory.Failed
	case fault.Remap:
		made.Source, made.Reason, made.Message = "row-remap", "RowRemapPending", "rows of memory wait to be remapped; NVIDIA recommends: "+string(xid.ResetGPU)
		made.Severity = inventory.Suspect
	}
	return made, made.Severity > inventory.Healthy
}
