// Package xid says what the error events of NVIDIA's kernel driver mean for
// whoever hands out GPUs.
//
// The source is the immediate action in NVIDIA's XID catalog,
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html.
// An error of an application is none of the device: it never counts against it.
package xid

import (
	"fmt"

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
	// Unknown: the catalog does not have it, or does not say.
	Unknown Action = "unknown"
)

// span is the codes from first to last.
type span struct {
	first, last int
	action      Action
}

// catalog is in order of codes. What is in no span is unknown.
var catalog = []span{
	{8, 8, RestartApp},
	{11, 11, RestartApp},
	{13, 13, RestartApp},
	{14, 14, Ignore},
	{25, 25, RestartApp},
	{31, 32, RestartApp},
	{37, 38, Ignore},
	{39, 41, RestartApp},
	{43, 45, Ignore}, // 45: follow the error that it comes with
	{46, 46, ResetGPU},
	{48, 48, ResetGPU},
	{54, 54, Inspect},
	{60, 60, RestartApp},
	{62, 62, ResetGPU},
	{63, 63, Ignore},
	{64, 64, ResetGPU},
	{66, 67, Ignore},
	{68, 72, RestartApp},
	{74, 74, Inspect},
	{75, 77, RestartApp},
	{78, 78, Inspect},
	{79, 79, RestartNode},
	{80, 80, RestartApp},
	{82, 86, RestartApp},
	{88, 89, RestartApp},
	{92, 93, Ignore},
	{94, 94, RestartApp},
	{95, 95, ResetGPU},
	{96, 105, RestartApp},
	{106, 108, Ignore},
	{109, 110, ResetGPU},
	{119, 120, ResetGPU},
	{121, 121, Ignore},
	{126, 135, RestartApp},
	{136, 136, ResetGPU},
	{137, 137, Ignore},
	{139, 139, RestartApp},
	{140, 140, ResetGPU},
	{141, 141, Ignore},
	{142, 142, Inspect},
	{143, 143, ResetGPU},
	{144, 150, Inspect},
	{151, 151, RestartNode},
	{155, 156, ResetGPU},
	{157, 157, Ignore},
	{158, 158, ResetGPU},
	{159, 159, Inspect},
	{160, 161, Ignore},
}

// words are those of the catalog for codes that operators meet.
var words = map[int]string{
	13: "graphics engine exception", 31: "GPU memory page fault", 32: "invalid or corrupted push buffer stream",
	43: "GPU stopped processing", 45: "preemptive cleanup", 48: "double bit ECC error", 62: "internal micro-controller halt",
	63: "row remapping or page retirement recorded", 64: "row remapper or page retirement failure", 74: "NVLink error",
	79: "GPU has fallen off the bus", 92: "high single bit ECC error rate", 94: "contained ECC error", 95: "uncontained ECC error",
	109: "context switch timeout", 119: "GSP RPC timeout", 120: "GSP error", 136: "NVLink training failed",
	140: "unrecovered ECC error", 143: "GPU initialization failed", 158: "GPU fatal timeout",
}

// ActionOf finds what the catalog recommends.
func ActionOf(code int) Action {
	for _, s := range catalog {
		if s.first <= code && code <= s.last {
			return s.action
		}
	}
	return Unknown
}

// SeverityOf is what an error means for the device: failed where no reset
// helps, or rows could not be remapped any more; suspect where something has to
// be done, or nobody knows; and healthy where it is the application's.
func SeverityOf(code int) inventory.Severity {
	if code == 64 {
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

// Describe says what happened and what to do, in a few words.
func Describe(code int) string {
	what := words[code]
	if what == "" {
		what = fmt.Sprintf("XID %d", code)
	}
	if action := ActionOf(code); action != Unknown {
		return fmt.Sprintf("%s; NVIDIA recommends: %s", what, action)
	}
	return what + "; NVIDIA's catalog recommends nothing"
}
