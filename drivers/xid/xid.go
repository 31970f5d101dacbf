// Package xid says what the error events of NVIDIA's kernel driver, and what
// else NVML shows, mean for whoever hands out GPUs: table.go has it all.
//
// The source of the XIDs is the immediate action in NVIDIA's XID catalog,
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html.
// An error of an application is none of the device: it never counts against it.
package xid

import (
	"fmt"
	"slices"

	"gpuladder.dev/ladder/drivers/inventory"
)

// Action is what NVIDIA recommends to do at once.
type Action string

// Actions.
const (
	// RestartApp: the application is at fault, or all that is lost.
	RestartApp Action = "restart the application"
	// Ignore: for information.
	Ignore Action = "nothing"
	// ResetGPU: the device works again after a reset.
	ResetGPU Action = "reset the GPU"
	// RestartNode: only a restart of the machine, or more, can help.
	RestartNode Action = "restart the node"
	// Inspect: a workflow of its own, mechanics, firmware or NVIDIA's support.
	Inspect Action = "inspect the hardware"
	// AskGPU: the GPU's recovery action has changed, and says more than the code.
	AskGPU Action = "see the GPU's recovery action"
	// Unknown: the catalog does not have it, or does not say.
	Unknown Action = "unknown"
)

// Source of troubles that are XIDs.
const Source = "xid"

// Row is what the table says of the codes from First to Last.
type Row struct {
	First, Last int
	Action      Action
	// Words say what happened, where the catalog's own are known.
	Words string
	// Ref is where the row comes from: see table.go.
	Ref string
}

// Catalog is the table of XIDs, in order of codes.
func Catalog() []Row { return slices.Clone(catalog) }

func rowOf(code int) Row {
	for _, row := range catalog {
		if row.First <= code && code <= row.Last {
			return row
		}
	}
	return Row{First: code, Last: code, Action: Unknown}
}

// ActionOf finds what the catalog recommends.
func ActionOf(code int) Action { return rowOf(code).Action }

// SeverityOf is what an error means for the device: failed where no reset
// helps, or rows could not be remapped any more; suspect where something has to
// be done, or nobody knows; and healthy where it is the application's.
func SeverityOf(code int) inventory.Severity {
	if slices.Contains(failures, code) {
		return inventory.Failed
	}
	switch ActionOf(code) {
	case RestartApp, Ignore:
		return inventory.Healthy
	case RestartNode:
		return inventory.Failed
	}
	return inventory.Suspect
}

// Reason is the one word for an XID: Xid79.
func Reason(code int) string { return fmt.Sprintf("Xid%d", code) }

// Describe says what happened and what to do, in a few words.
func Describe(code int) string {
	row := rowOf(code)
	what := row.Words
	if what == "" {
		what = fmt.Sprintf("XID %d", code)
	}
	if row.Action != Unknown {
		return fmt.Sprintf("%s; NVIDIA recommends: %s", what, row.Action)
	}
	return what + "; NVIDIA's catalog recommends nothing"
}

// Signal is something that NVML shows, other than an XID. Health policies name
// signals by it.
type Signal string

// SignalRow is what the table says of a signal.
type SignalRow struct {
	Signal Signal
	// Source is that of the troubles; see [inventory.Origin].
	Source string
	// Severity is Healthy where it is known and does not count.
	Severity inventory.Severity
	// Reason is the one word for it.
	Reason string
	// Latched signals are events.
	Latched bool
	// Words say what is wrong.
	Words string
	// Ref is where the row comes from: see table.go.
	Ref string
}

// Signals is the table of signals.
func Signals() []SignalRow { return slices.Clone(signals) }

// RowOf finds a signal. It is false for one that the table does not have.
func RowOf(signal Signal) (SignalRow, bool) {
	at := slices.IndexFunc(signals, func(row SignalRow) bool { return row.Signal == signal })
	if at < 0 {
		return SignalRow{}, false
	}
	return signals[at], true
}

// recoveryActions are the values of NVML's field 230,
// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (nvmlDeviceGpuRecoveryAction_t).
var recoveryActions = []Signal{
	"", ActionGPUReset, ActionNodeReboot, ActionDrainP2P, ActionDrainAndReset, ActionRecoverIMEX, ActionBusReset, ActionSystemReboot,
}

// RecoveryAction is the signal of a value of NVML's recovery action field; ""
// for 0, which asks for nothing.
func RecoveryAction(value uint64) Signal {
	if value < uint64(len(recoveryActions)) {
		return recoveryActions[value]
	}
	return ActionUnknown
}
