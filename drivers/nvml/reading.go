package nvml

// This file asks a GPU how it is.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpuladder.dev/ladder/drivers/xid"
)

// reading is how a GPU is at one moment.
type reading struct {
	// signals that are seen, each with what makes the words of the table more
	// exact, if anything.
	signals map[xid.Signal]string
	// tellsAction says whether NVIDIA's driver tells what it asks for; asks
	// whether it asks for something.
	tellsAction, asks bool
	// uncorrectable is the volatile count of such memory errors; -1 if not told.
	uncorrectable int64
	// instances are those of a board in MIG mode.
	instances []instance
}

// lost are the return values that mean that the GPU has gone.
var lost = []nvml.Return{nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_NOT_FOUND}

// gone are those that mean that the library must be opened anew.
var gone = []nvml.Return{nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH}

func isOne(err error, returns []nvml.Return) bool {
	return slices.ContainsFunc(returns, func(ret nvml.Return) bool { return errors.Is(err, ret) })
}

// signalOf is what it means that a GPU can't be asked.
func signalOf(err error) xid.Signal {
	var hangs *TimeoutError
	switch {
	case errors.As(err, &hangs):
		return xid.NVMLTimeout
	case isOne(err, lost):
		return xid.GPULost
	case errors.Is(err, nvml.ERROR_RESET_REQUIRED):
		return xid.ResetRequired
	}
	return xid.NVMLError
}

// fields that are asked for, all by one call.
var fields = []uint32{
	nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
	nvml.FI_DEV_ECC_DBE_VOL_TOTAL,
	nvml.FI_DEV_REMAPPED_PENDING,
	nvml.FI_DEV_REMAPPED_FAILURE,
	nvml.FI_DEV_RETIRED_PENDING,
}

// read asks a GPU. links are those that should be up. The error is one of the
// GPU, or of the library if it is gone.
func (s *session) read(ctx context.Context, c caller, handle nvml.Device, links []int, profiles []profile) (reading, error) {
	r := reading{signals: map[xid.Signal]string{}, uncorrectable: -1}
	values, err := s.readFields(ctx, c, handle)
	if err != nil {
		return r, err
	}
	if action, told := values[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION]; told {
		r.tellsAction = true
		if signal := xid.RecoveryAction(action); signal != "" {
			r.asks = true
			r.signals[signal] = ""
			if signal == xid.ActionUnknown {
				r.signals[signal] = fmt.Sprintf("recovery action %d", action)
			}
		}
	}
	remaps, err := s.readRemaps(ctx, c, handle, values, r.signals)
	if err != nil {
		return r, err
	}
	if r.uncorrectable, err = s.readECC(ctx, c, handle, values); err != nil {
		return r, err
	}
	if r.uncorrectable > 0 {
		signal := xid.ECCUncorrectable
		if remaps {
			signal = xid.ECCUncorrectableRemap
		}
		r.signals[signal] = fmt.Sprintf("%d of them", r.uncorrectable)
	}
	if err := s.readRetirement(ctx, c, handle, values, r.signals); err != nil {
		return r, err
	}
	if err := s.readDownLinks(ctx, c, handle, links, r.signals); err != nil {
		return r, err
	}
	if len(profiles) > 0 {
		r.instances, err = s.listInstances(ctx, c, handle, profiles)
	}
	return r, err
}

// readFields are the fields that the GPU has, by number.
func (s *session) readFields(ctx context.Context, c caller, handle nvml.Device) (map[uint32]uint64, error) {
	if !s.has("nvmlDeviceGetFieldValues") {
		// Whether it answers at all is to be seen all the same.
		_, err := get(ctx, c, "nvmlDeviceGetMemoryInfo", handle.GetMemoryInfo)
		return nil, err
	}
	answers, err := get(ctx, c, "nvmlDeviceGetFieldValues", func() ([]nvml.FieldValue, nvml.Return) {
		asked := make([]nvml.FieldValue, len(fields))
		for i, field := range fields {
			asked[i].FieldId = field
		}
		ret := handle.GetFieldValues(asked)
		return asked, ret
	})
	if answers, err = optional(ctx, "fields", answers, err); err != nil {
		return nil, err
	}
	values := map[uint32]uint64{}
	for i := range answers {
		ret := nvml.Return(answers[i].NvmlReturn) //nolint:gosec // an enumeration
		if ret == nvml.SUCCESS {
			values[answers[i].FieldId] = numberOf(&answers[i])
			continue
		}
		err := &CallError{Call: fmt.Sprintf("nvmlDeviceGetFieldValues of field %d", answers[i].FieldId), Return: ret}
		if isOne(err, lost) || isOne(err, gone) || ret == nvml.ERROR_RESET_REQUIRED {
			return nil, err
		}
	}
	return values, nil
}

// numberOf is the value of a field, which is of one of several types. NVML has
// the byte order of the machine, which is little endian wherever it runs.
func numberOf(value *nvml.FieldValue) uint64 {
	bits := binary.LittleEndian.Uint64(value.Value[:])
	switch nvml.ValueType(value.ValueType) { //nolint:gosec // an enumeration
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return bits & 0xffffffff
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return bits & 0xffff
	}
	return bits
}

// readRemaps says whether the GPU remaps rows, which those since Ampere do.
func (s *session) readRemaps(ctx context.Context, c caller, handle nvml.Device, values map[uint32]uint64, signals map[xid.Signal]string) (bool, error) {
	waits, told := values[nvml.FI_DEV_REMAPPED_PENDING]
	failed, toldFailure := values[nvml.FI_DEV_REMAPPED_FAILURE]
	pending, failure := waits != 0, failed != 0
	if !(told && toldFailure) && s.has("nvmlDeviceGetRemappedRows") {
		type remaps struct{ pending, failure bool }
		rows, err := get(ctx, c, "nvmlDeviceGetRemappedRows", func() (remaps, nvml.Return) {
			_, _, pending, failure, ret := handle.GetRemappedRows()
			return remaps{pending, failure}, ret
		})
		asked := err == nil
		if rows, err = optional(ctx, "row remapping", rows, err); err != nil {
			return false, err
		}
		told = told || asked
		pending, failure = pending || rows.pending, failure || rows.failure
	}
	if pending {
		signals[xid.RowRemapPending] = ""
	}
	if failure {
		signals[xid.RowRemapFailure] = ""
	}
	return told, nil
}

// readECC is the count of uncorrectable errors since the last reset, or -1.
func (s *session) readECC(ctx context.Context, c caller, handle nvml.Device, values map[uint32]uint64) (int64, error) {
	if count, told := values[nvml.FI_DEV_ECC_DBE_VOL_TOTAL]; told {
		return int64(count), nil //nolint:gosec // a count of errors
	}
	if !s.has("nvmlDeviceGetTotalEccErrors") {
		return -1, nil
	}
	count, err := get(ctx, c, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	})
	if err != nil && absent(err) {
		return -1, nil // it has no ECC, or it is off
	}
	return int64(count), err //nolint:gosec // a count of errors
}

// readRetirement is for GPUs before Ampere, which retire pages.
func (s *session) readRetirement(ctx context.Context, c caller, handle nvml.Device, values map[uint32]uint64, signals map[xid.Signal]string) error {
	waits, told := values[nvml.FI_DEV_RETIRED_PENDING]
	pending := waits != 0
	if !told && s.has("nvmlDeviceGetRetiredPagesPendingStatus") {
		state, err := get(ctx, c, "nvmlDeviceGetRetiredPagesPendingStatus", handle.GetRetiredPagesPendingStatus)
		if state, err = optional(ctx, "page retirement", state, err); err != nil {
			return err
		}
		pending = state == nvml.FEATURE_ENABLED
	}
	if pending {
		signals[xid.PageRetirementPending] = ""
	}
	return nil
}

// readDownLinks looks at the NVLinks that should be up.
func (s *session) readDownLinks(ctx context.Context, c caller, handle nvml.Device, links []int, signals map[xid.Signal]string) error {
	var down []string
	for _, link := range links {
		state, err := get(ctx, c, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) { return handle.GetNvLinkState(link) })
		switch {
		case err != nil && !absent(err):
			return err
		case err != nil || state != nvml.FEATURE_ENABLED:
			down = append(down, fmt.Sprint(link))
		}
	}
	if len(down) > 0 {
		signals[xid.NVLinkDown] = fmt.Sprintf("%d of %d: %s", len(down), len(links), strings.Join(down, ", "))
	}
	return nil
}
