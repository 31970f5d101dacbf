package xid

// This file is the health table: what each XID and each signal that NVML offers
// means for a device. It is all that the drivers know of that, on one screen
// after another, with the source of each row.
//
// Sources:
//
//	catalog   NVIDIA's XID catalog for driver branch 610, column "immediate
//	          action", by a transcription of it:
//	          https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
//	catalog*  the same row, checked against a second transcription
//	unused    the catalog has the code and says that GPUs since Ampere do not use it
//	silent    the catalog has the code and recommends nothing
//	memory    "GPU Memory Error Management",
//	          https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
//	flags     its chapter "error recovery and response flags"
//	checks    NVIDIA's health checks,
//	          https://docs.nvidia.com/health-validation/reference/checks/xid.md
//	nvml      the comments of nvml.h
//	ladder    nobody else's rule: what a driver does that can't ask any more

import "gpuladder.dev/ladder/drivers/inventory"

// catalog is in order of codes. What is in no row is unknown.
var catalog = []Row{
	{1, 7, Unknown, "", "unused"},
	{8, 8, RestartApp, "GPU stopped processing", "catalog"},
	{9, 10, Unknown, "", "unused"},
	{11, 11, RestartApp, "invalid or corrupted push buffer stream", "catalog"},
	{12, 12, Unknown, "", "unused"},
	{13, 13, RestartApp, "graphics engine exception", "catalog*"},
	{14, 14, Ignore, "", "catalog"},
	{15, 24, Unknown, "", "unused"},
	{25, 25, RestartApp, "invalid or illegal push buffer stream", "catalog"},
	{26, 30, Unknown, "", "unused"},
	{31, 31, RestartApp, "GPU memory page fault", "catalog*"},
	{32, 32, RestartApp, "invalid or corrupted push buffer stream", "catalog*"},
	{33, 36, Unknown, "", "unused"},
	{37, 38, Ignore, "driver firmware error", "catalog"},
	{39, 41, RestartApp, "", "catalog"},
	{42, 42, Unknown, "", "unused"},
	{43, 43, Ignore, "GPU stopped processing", "catalog*"},
	{44, 44, Ignore, "graphics engine fault during context switch", "catalog"},
	{45, 45, Ignore, "preemptive cleanup", "catalog*"}, // the error that it comes with counts
	{46, 46, ResetGPU, "GPU stopped processing", "catalog"},
	{47, 47, Unknown, "", "unused"},
	{48, 48, ResetGPU, "double bit ECC error", "catalog*"},
	{49, 53, Unknown, "", "unused"},
	{54, 54, Inspect, "auxiliary power is not connected", "catalog"},
	{55, 59, Unknown, "", "unused"},
	{60, 60, RestartApp, "video processor exception", "catalog"},
	{61, 61, Unknown, "", "unused"},
	{62, 62, ResetGPU, "internal micro-controller halt", "catalog"},
	{63, 63, Ignore, "row remapping or page retirement recorded", "catalog*"},
	{64, 64, ResetGPU, "row remapper or page retirement failure", "catalog*"}, // see [failures]
	{65, 65, Unknown, "", "unused"},
	{66, 67, Ignore, "illegal access by driver", "catalog"},
	{68, 68, RestartApp, "NVDEC0 exception", "catalog"},
	{69, 69, RestartApp, "graphics engine class error", "catalog*"},
	{70, 72, RestartApp, "copy engine error", "catalog"},
	{73, 73, Unknown, "", "unused"},
	{74, 74, Inspect, "NVLink error", "catalog*"},
	{75, 77, RestartApp, "copy engine error", "catalog"},
	{78, 78, Inspect, "vGPU start error", "catalog"},
	{79, 79, RestartNode, "GPU has fallen off the bus", "catalog*"},
	{80, 80, RestartApp, "corrupted data sent to GPU", "catalog"},
	{81, 81, Unknown, "", "unused"},
	{82, 82, RestartApp, "NVJPG0 error", "catalog"},
	{83, 84, RestartApp, "NVDEC error", "catalog"},
	{85, 85, RestartApp, "copy engine error", "catalog"},
	{86, 86, RestartApp, "OFA exception", "catalog"},
	{87, 87, Unknown, "", "unused"},
	{88, 89, RestartApp, "NVDEC error", "catalog"},
	{90, 91, Unknown, "", "unused"},
	{92, 92, Ignore, "high single bit ECC error rate", "catalog*"},
	{93, 93, Ignore, "InfoROM wear limit", "catalog"},
	{94, 94, RestartApp, "contained ECC error", "catalog*"},
	{95, 95, ResetGPU, "uncontained ECC error", "catalog*"},
	{96, 98, RestartApp, "NVDEC error", "catalog"},
	{99, 105, RestartApp, "NVJPG error", "catalog"},
	{106, 108, Ignore, "", "catalog"},
	{109, 109, ResetGPU, "context switch timeout", "catalog*"},
	{110, 110, ResetGPU, "security fault", "catalog"},
	{111, 118, Unknown, "", "unused"},
	{119, 119, ResetGPU, "GSP RPC timeout", "catalog*"},
	{120, 120, ResetGPU, "GSP error", "catalog*"},
	{121, 121, Ignore, "C2C link error", "catalog"},
	{122, 125, Unknown, "", "unused"},
	{126, 135, RestartApp, "", "catalog"},
	{136, 136, ResetGPU, "NVLink training failed", "catalog"},
	{137, 137, Ignore, "NVLink access without privilege", "catalog"},
	{138, 138, Unknown, "", "unused"},
	{139, 139, RestartApp, "", "catalog"},
	{140, 140, ResetGPU, "unrecovered ECC error", "catalog*"},
	{141, 141, Ignore, "", "catalog"},
	{142, 142, Inspect, "", "catalog"},
	{143, 143, ResetGPU, "GPU initialization failed", "catalog*"},
	{144, 150, Inspect, "NVLink error", "catalog"}, // NVLink 5: what to do depends on the sub-code
	{151, 151, RestartNode, "key rotation error", "catalog"},
	{154, 154, AskGPU, "GPU recovery action changed", "catalog"},
	{155, 155, ResetGPU, "NVLink error", "catalog"},
	{156, 156, ResetGPU, "resource retirement", "catalog"},
	{157, 157, Ignore, "resource retirement failure", "catalog"},
	{158, 158, ResetGPU, "GPU fatal timeout", "catalog"},
	{159, 159, Inspect, "", "catalog"},
	{160, 161, Ignore, "channel retirement", "catalog"},
	{162, 172, Unknown, "", "silent"},
}

// failures are the codes that mean failure although NVIDIA recommends a reset:
// rows could not be remapped any more, and a reset does not bring new ones.
var failures = []int{64}

// Signals, in the order of the table.
const (
	GPULost               Signal = "gpu-lost"
	GPUUnavailable        Signal = "gpu-unavailable"
	ResetRequired         Signal = "reset-required"
	NVMLTimeout           Signal = "nvml-timeout"
	NVMLError             Signal = "nvml-error"
	NVMLUnavailable       Signal = "nvml-unavailable"
	EventsTimeout         Signal = "events-timeout"
	ActionGPUReset        Signal = "recovery-gpu-reset"
	ActionNodeReboot      Signal = "recovery-node-reboot"
	ActionDrainP2P        Signal = "recovery-drain-p2p"
	ActionDrainAndReset   Signal = "recovery-drain-and-reset"
	ActionRecoverIMEX     Signal = "recovery-imex-domain"
	ActionBusReset        Signal = "recovery-bus-reset"
	ActionSystemReboot    Signal = "recovery-system-reboot"
	ActionUnknown         Signal = "recovery-unknown"
	ECCUncorrectable      Signal = "ecc-uncorrectable"
	ECCUncorrectableRemap Signal = "ecc-uncorrectable-with-remapping"
	RowRemapPending       Signal = "row-remap-pending"
	RowRemapFailure       Signal = "row-remap-failure"
	PageRetirementPending Signal = "page-retirement-pending"
	RetirementRecorded    Signal = "dram-retirement"
	RetirementFailure     Signal = "dram-retirement-failure"
	PoisonContained       Signal = "poison-non-fatal"
	PoisonFatal           Signal = "poison-fatal"
	SingleBitStorm        Signal = "ecc-single-bit-storm"
	NVLinkDown            Signal = "nvlink-down"
)

const (
	healthy = inventory.Healthy
	suspect = inventory.Suspect
	failed  = inventory.Failed
)

// signals are what is seen with NVML, without an XID. Latched ones are events:
// no later reading shows them.
var signals = []SignalRow{
	{GPULost, "bus", failed, "GPULost", false, "the GPU does not answer any more", "checks"},
	{GPUUnavailable, "unavailable", suspect, "GPUUnavailable", true, "the GPU has become unavailable", "nvml"},
	{ResetRequired, "reset", suspect, "ResetRequired", false, "the GPU answers nothing before a reset", "nvml"},
	{NVMLTimeout, "nvml", suspect, "NVMLTimeout", false, "a question to the GPU stays without an answer", "ladder"},
	{NVMLError, "nvml", suspect, "NVMLError", false, "NVML fails to tell how the GPU is", "ladder"},
	{NVMLUnavailable, "nvml", suspect, "NVMLUnavailable", false, "NVIDIA's driver can't be reached", "ladder"},
	{EventsTimeout, "events", suspect, "EventsTimeout", false, "errors of the GPU can't be heard", "ladder"},

	{ActionGPUReset, "recovery-action", suspect, "GPUReset", false, "NVIDIA's driver asks for a reset of the GPU", "flags"},
	{ActionNodeReboot, "recovery-action", failed, "NodeReboot", false, "NVIDIA's driver asks for a restart of the node", "flags"},
	{ActionDrainP2P, "recovery-action", suspect, "DrainP2P", false, "NVIDIA's driver asks to end peer-to-peer work", "flags"},
	{ActionDrainAndReset, "recovery-action", suspect, "DrainAndReset", false, "NVIDIA's driver asks for a reset once the work is done", "flags"},
	{ActionRecoverIMEX, "recovery-action", suspect, "RecoverIMEXDomain", false, "NVIDIA's driver asks to recover the IMEX domain", "flags"},
	{ActionBusReset, "recovery-action", suspect, "BusReset", false, "NVIDIA's driver asks for a reset by the bus", "nvml"},
	{ActionSystemReboot, "recovery-action", failed, "SystemReboot", false, "NVIDIA's driver asks for a restart of the whole system", "nvml"},
	{ActionUnknown, "recovery-action", suspect, "RecoveryAction", false, "NVIDIA's driver asks for something that this driver does not know", "ladder"},

	// Without row remapping (before Ampere) nothing contains such an error. With
	// it, XID 94 and 95 and the recovery action say whether it was contained.
	{ECCUncorrectable, "ecc", suspect, "UncorrectableECC", false, "uncorrectable errors of memory since the last reset", "memory"},
	{ECCUncorrectableRemap, "ecc", healthy, "UncorrectableECC", false, "uncorrectable errors of memory since the last reset", "memory"},
	{RowRemapPending, "row-remap", suspect, "RowRemapPending", false, "rows of memory wait to be remapped; NVIDIA recommends: reset the GPU", "memory"},
	{RowRemapFailure, "row-remap", failed, "RowRemapFailure", false, "rows of memory can't be remapped any more; NVIDIA recommends: return the board", "memory"},
	{PageRetirementPending, "page-retirement", suspect, "PageRetirementPending", false, "pages of memory wait to be retired; NVIDIA recommends: reset the GPU", "memory"},
	{RetirementRecorded, "retirement", healthy, "DRAMRetirement", true, "a part of memory was retired", "nvml"},
	{RetirementFailure, "retirement", failed, "DRAMRetirementFailure", true, "a part of memory could not be retired", "nvml"},
	{PoisonContained, "poison", healthy, "NonFatalPoison", true, "an application met poisoned memory", "nvml"},
	{PoisonFatal, "poison", suspect, "FatalPoison", true, "the GPU met poisoned memory", "nvml"},
	{SingleBitStorm, "ecc-storm", healthy, "SingleBitStorm", true, "many single bit errors of memory", "nvml"},

	{NVLinkDown, "nvlink", suspect, "NVLinkDown", false, "NVLinks are down that were up", "checks"},
}
