package sharing

// This file is what the driver asks for.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var _ inventory.Sharer = &Manager{}

// Share implements [inventory.Sharer].
func (m *Manager) Share(ctx context.Context, name string, claim types.UID, sharing v1alpha1.Sharing) (specs.ContainerEdits, error) {
	gpu, err := m.config.GPUs.GPU(ctx, name)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if gpu.Partitioned {
		if why := inventory.RefusedOfPartitions(&sharing); why != "" {
			return specs.ContainerEdits{}, &inventory.UnsupportedError{Device: name, Strategy: sharing.Strategy, Reason: why}
		}
	}
	edits := specs.ContainerEdits{Env: []string{inventory.VariableSharing + "=" + string(sharing.Strategy)}}
	if gpu.Partitioned || sharing.IsExclusive() {
		return edits, nil // programs of one partition take turns as it is
	}
	err = m.locked(ctx, func(s *state) error {
		if err := m.record(ctx, s, name, claim, sharing); err != nil {
			return err
		}
		if sharing.Strategy == v1alpha1.SharingTimeSlicing {
			if err := m.setMode(ctx, name, ModeDefault); err != nil {
				return err
			}
			return m.setInterval(ctx, gpu.UUID, sharing.Interval())
		}
		if err := m.setMode(ctx, name, ModeExclusiveProcess); err != nil {
			return err
		}
		return m.serve(ctx, s, claim)
	})
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if sharing.Strategy == v1alpha1.SharingMPS {
		m.addMPS(&edits, claim)
	}
	return edits, nil
}

// setMode sets a compute mode that is not there already.
func (m *Manager) setMode(ctx context.Context, name string, mode Mode) error {
	if is, err := m.config.GPUs.ComputeMode(ctx, name); err != nil || is == mode {
		return err
	}
	return m.config.GPUs.SetComputeMode(ctx, name, mode)
}

// record writes down what is begun, with the mode that is there before it.
func (m *Manager) record(ctx context.Context, s *state, name string, claim types.UID, sharing v1alpha1.Sharing) error {
	d := s.Devices[name]
	if d == nil {
		before, err := m.config.GPUs.ComputeMode(ctx, name)
		if err != nil {
			return err
		}
		d = &device{Before: before, Claims: map[types.UID]v1alpha1.Sharing{}}
		s.Devices[name] = d
	}
	for _, other := range slices.Sorted(maps.Keys(d.Claims)) {
		if other != claim && (sharing.Strategy == v1alpha1.SharingMPS || !equality.Semantic.DeepEqual(d.Claims[other], sharing)) {
			return fmt.Errorf("it is still set up for claim %s in another way", other)
		}
	}
	if known, is := d.Claims[claim]; is && equality.Semantic.DeepEqual(known, sharing) {
		return nil
	}
	d.Claims[claim] = sharing
	return m.save(s)
}

// Unshare implements [inventory.Sharer]. The daemon of a claim ends with the
// first of its devices.
func (m *Manager) Unshare(ctx context.Context, name string, claim types.UID) error {
	return m.locked(ctx, func(s *state) error {
		if err := m.end(ctx, s, claim); err != nil {
			return err
		}
		d := s.Devices[name]
		if d == nil {
			return nil
		}
		sharing, is := d.Claims[claim]
		if !is {
			return nil
		}
		if len(d.Claims) == 1 {
			if err := m.setBack(ctx, name, d.Before, sharing); err != nil {
				return err
			}
			delete(s.Devices, name)
		} else {
			delete(d.Claims, claim)
		}
		return m.save(s)
	})
}

// setBack undoes what was set for the last claim of a device.
func (m *Manager) setBack(ctx context.Context, name string, before Mode, sharing v1alpha1.Sharing) error {
	gpu, err := m.config.GPUs.GPU(ctx, name)
	if err == nil && sharing.Strategy == v1alpha1.SharingTimeSlicing && sharing.Interval() != v1alpha1.IntervalDefault {
		err = m.setInterval(ctx, gpu.UUID, v1alpha1.IntervalDefault)
	}
	if err == nil {
		err = m.setMode(ctx, name, before)
	}
	if errors.Is(err, ErrGone) {
		klog.FromContext(ctx).Info("There is nothing to set back", "device", name, "reason", err.Error())
		return nil
	}
	return err
}

// Shared implements [inventory.Sharer].
func (m *Manager) Shared(ctx context.Context) ([]inventory.Share, error) {
	var all []inventory.Share
	err := m.locked(ctx, func(s *state) error {
		for _, name := range slices.Sorted(maps.Keys(s.Devices)) {
			for _, claim := range slices.Sorted(maps.Keys(s.Devices[name].Claims)) {
				all = append(all, inventory.Share{Device: name, Claim: claim})
			}
		}
		return nil
	})
	return all, err
}

// Run keeps the daemons running until ctx is done: one that has died, also with
// the driver before this one, is started again. Programs that were connected to
// it have failed; those that come after find the new one. Daemons run on when
// Run ends.
func (m *Manager) Run(ctx context.Context) error {
	period := m.config.Clock.NewTicker(m.config.Period)
	defer period.Stop()
	for {
		if err := m.mend(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "An MPS daemon can't be kept running; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-period.C():
		}
	}
}

// mend looks at each daemon once, each for itself.
func (m *Manager) mend(ctx context.Context) error {
	return m.locked(ctx, func(s *state) error {
		var failed []error
		for _, claim := range slices.Sorted(maps.Keys(s.Daemons)) {
			if !s.Daemons[claim].Ending {
				failed = append(failed, m.serve(ctx, s, claim))
			}
		}
		return errors.Join(failed...)
	})
}
