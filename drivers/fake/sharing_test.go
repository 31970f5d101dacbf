package fake

import (
	"errors"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestSharing(t *testing.T) {
	pool := poolOf("gpu-0", "gpu-1", "gpu-1-mig-1g-10gb-0")
	for i := range pool.Devices[1:] {
		pool.Devices[i+1].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "set"}}
	}
	slicing := func(interval v1alpha1.TimeSliceInterval) v1alpha1.Sharing {
		return v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: interval}}
	}
	mps := v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS}
	for name, test := range map[string]struct {
		device  string
		sharing v1alpha1.Sharing
		refused string
	}{
		"time slicing":             {"gpu-0", slicing(v1alpha1.IntervalLong), ""},
		"MPS":                      {"gpu-0", mps, ""},
		"turns in a partition":     {"gpu-1-mig-1g-10gb-0", slicing(v1alpha1.IntervalDefault), ""},
		"interval of a partition":  {"gpu-1-mig-1g-10gb-0", slicing(v1alpha1.IntervalShort), "device gpu-1-mig-1g-10gb-0 can't be shared by TimeSlicing: its board is in MIG mode, where the interval"},
		"MPS in a partition":       {"gpu-1-mig-1g-10gb-0", mps, "by MPS: its board is in MIG mode, where no compute mode can be set"},
		"MPS on a whole MIG board": {"gpu-1", mps, "device gpu-1 can't be shared by MPS"},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHardware(t.Context(), pool, nil)
			edits, err := h.Share(t.Context(), test.device, "uid", test.sharing)
			shared, _ := h.Shared(t.Context())
			if test.refused != "" {
				var unsupported *inventory.UnsupportedError
				if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), test.refused) || len(shared) != 0 {
					t.Errorf("got %v, shared are %v", err, shared)
				}
				return
			}
			if err != nil || !slices.Equal(edits.Env, []string{"LADDER_SHARING=" + string(test.sharing.Strategy)}) {
				t.Errorf("the edits are %+v, %v", edits, err)
			}
			if !slices.Equal(shared, []inventory.Share{{Device: test.device, Claim: "uid"}}) {
				t.Errorf("shared are %v", shared)
			}
			for range 2 {
				if err := h.Unshare(t.Context(), test.device, "uid"); err != nil {
					t.Error(err)
				}
			}
			if shared, _ := h.Shared(t.Context()); len(shared) != 0 {
				t.Errorf("still shared are %v", shared)
			}
		})
	}
	if _, err := NewHardware(t.Context(), pool, nil).Share(t.Context(), "gpu-9", "uid", mps); err == nil || !strings.Contains(err.Error(), "gpu-9") {
		t.Errorf("a device that is not there: %v", err)
	}
}
