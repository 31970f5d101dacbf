package sharing

// This file sets how long a program's turn is.

import (
	"context"
	"fmt"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// intervals are the lengths of a turn as nvidia-smi numbers them.
var intervals = map[v1alpha1.TimeSliceInterval]int{
	v1alpha1.IntervalDefault: 0,
	v1alpha1.IntervalShort:   1,
	v1alpha1.IntervalMedium:  2,
	v1alpha1.IntervalLong:    3,
}

// setInterval sets it for all of a GPU. NVML has no function for it.
func (m *Manager) setInterval(ctx context.Context, uuid string, interval v1alpha1.TimeSliceInterval) error {
	number, known := intervals[interval]
	if !known {
		return fmt.Errorf("setting the interval, there is none called %s", interval)
	}
	if _, err := m.programs.run(ctx, call{
		program: "nvidia-smi", args: []string{"compute-policy", fmt.Sprintf("--set-timeslice=%d", number), "-i", uuid},
	}); err != nil {
		return fmt.Errorf("setting the interval of %s, %w", uuid, err)
	}
	return nil
}
