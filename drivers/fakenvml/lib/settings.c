// What can be set on a GPU and asked of it: modes, memory, power, clocks, and
// the processes that use it.
#include <string.h>

#include "fakenvml.h"

// memory_of is what a device has, in bytes; a MIG device shares that of its
// GPU instance.
static void memory_of(const struct target *target, nvmlMemory_v2_t *memory) {
	memory->total = world.board.memory;
	memory->reserved = world.board.reserved;
	memory->used = target->state->memory_used;
	if (target->instance != NULL) {
		const struct mig_profile *p = profile_by_id(target->instance->profile);
		memory->total = p == NULL ? 0 : (unsigned long long)p->memory_mb << 20;
		memory->reserved = 0;
		memory->used = 0;
		for (unsigned i = 0; i < world.state.process_count; i++) {
			const struct process *own = &world.state.processes[i];
			if (own->gpu == target->index && own->gi == target->instance->id)
				memory->used += own->memory;
		}
	}
	unsigned long long free = memory->total - memory->reserved;
	memory->used = memory->used > free ? free : memory->used;
	memory->free = free - memory->used;
}

// The first version counts what is reserved as used.
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
	DEVICE(memory);
	nvmlMemory_v2_t now;
	memory_of(&target, &now);
	*memory = (nvmlMemory_t){.total = now.total, .free = now.free, .used = now.used + now.reserved};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
	DEVICE(memory);
	REQUIRE(memory->version == STRUCT_VERSION(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	memory_of(&target, memory);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
	DEVICE(memory);
	*memory = (nvmlBAR1Memory_t){.total = world.board.bar1, .free = world.board.bar1};
	return NVML_SUCCESS;
}

// ---- Modes.

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
	DEVICE(mode);
	*mode = target.compute != NULL ? target.compute->mode : (unsigned)target.state->compute_mode;
	return NVML_SUCCESS;
}

// In MIG mode the mode is that of a MIG device.
EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode) {
	enum { EXCLUSIVE_THREAD = 1, MODES = 4 };
	BEGIN();
	struct target target;
	TRY(target_of(&call, device, &target));
	REQUIRE(mode < MODES, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(mode != EXCLUSIVE_THREAD, NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(target.compute != NULL || !target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	struct compute_instance before = target.compute == NULL ? (struct compute_instance){0} : *target.compute;
	TRY(change());
	if (target.compute == NULL) {
		target.state->compute_mode = mode;
		return keep();
	}
	struct compute_instance *compute = compute_by_id(before.gpu, before.gi, before.id);
	if (compute == NULL || compute->serial != before.serial) {
		state_drop();
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	compute->mode = mode;
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
	GPU(mode);
	*mode = target.state->persistence != 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode) {
	BEGIN();
	struct target target;
	TRY(gpu_of(&call, device, &target));
	REQUIRE(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
	TRY(change());
	target.state->persistence = mode;
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned int *mode) {
	GPU(mode);
	*mode = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned int *active) {
	GPU(active);
	*active = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode) {
	GPU(mode);
	*mode = 0; // bare metal
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode) {
	enum { HMM = 1 };
	GPU(mode);
	REQUIRE(mode->version == STRUCT_VERSION(nvmlDeviceAddressingMode_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	mode->value = HMM;
	return NVML_SUCCESS;
}

// ---- Power, clocks, temperature.

static unsigned power_limit(const struct target *target) {
	return (unsigned)(target->state->power_limit ? target->state->power_limit : world.board.power_limit);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit) {
	GPU(limit);
	*limit = power_limit(&target);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit) {
	GPU(limit);
	*limit = power_limit(&target);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit) {
	GPU(limit);
	*limit = (unsigned)world.board.power_limit;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high) {
	GPU(low);
	REQUIRE(high != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*low = (unsigned)world.board.power_min;
	*high = (unsigned)world.board.power_max;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit) {
	BEGIN();
	struct target target;
	TRY(gpu_of(&call, device, &target));
	REQUIRE(limit >= world.board.power_min && limit <= world.board.power_max, NVML_ERROR_INVALID_ARGUMENT);
	TRY(change());
	target.state->power_limit = limit;
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power) {
	GPU(power);
	*power = (unsigned)(target.state->power ? target.state->power : world.board.power_limit / 10);
	return NVML_SUCCESS;
}

static unsigned temperature_of(const struct target *target) {
	enum { IDLE = 30 };
	return (unsigned)(target->state->temperature ? target->state->temperature : IDLE);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *temperature) {
	GPU(temperature);
	REQUIRE(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
	*temperature = temperature_of(&target);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature) {
	GPU(temperature);
	REQUIRE(temperature->version == STRUCT_VERSION(nvmlTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	REQUIRE(temperature->sensorType == 0, NVML_ERROR_INVALID_ARGUMENT);
	temperature->temperature = (int)temperature_of(&target);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock) {
	enum { MEMORY = 2, VIDEO = 3 };
	GPU(clock);
	REQUIRE(type <= VIDEO, NVML_ERROR_INVALID_ARGUMENT);
	*clock = (unsigned)(type == MEMORY ? world.board.clock_memory : world.board.clock_graphics);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
	GPU(state);
	*state = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
	enum { IDLE = 1 };
	GPU(reasons);
	*reasons = IDLE;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
	GPU(rates);
	REQUIRE(!target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	*rates = (nvmlUtilization_t){0, 0};
	return NVML_SUCCESS;
}

// ---- Processes. A GPU tells of those of all its instances.

static bool uses(const struct process *p, const struct target *target) {
	return p->gpu == target->index &&
	       (target->compute == NULL || (p->gi == target->compute->gi && p->ci == target->compute->id));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
	DEVICE(count);
	unsigned room = *count;
	REQUIRE(room == 0 || infos != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	for (unsigned i = 0; i < world.state.process_count; i++) {
		const struct process *p = &world.state.processes[i];
		if (!uses(p, &target))
			continue;
		if (*count < room)
			infos[*count] = (nvmlProcessInfo_v2_t){p->pid, p->memory, p->gi, p->ci};
		++*count;
	}
	return *count <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count, const char *function) {
	struct call call __attribute__((cleanup(call_end))) = {function, false};
	struct target target;
	TRY(call_begin(&call));
	REQUIRE(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
	TRY(target_of(&call, device, &target));
	*count = 0;
	return NVML_SUCCESS;
}

#define NO_PROCESSES(name)                                                                                \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) { \
		(void)infos;                                                                              \
		return no_processes(device, count, #name);                                                \
	}
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
