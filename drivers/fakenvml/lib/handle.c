// Handles. One is a number: a tag, the kind, the GPU, the IDs of the instances
// and the serial number of the last of them, so that the handle of an instance
// that was destroyed is never that of a later one.
#include <string.h>

#include "fakenvml.h"

enum kind { KIND_GPU = 1, KIND_MIG, KIND_INSTANCE, KIND_COMPUTE, KIND_EVENT_SET };

// No address looks like this, of the library's or of its caller's.
static const uint64_t tag = 0x4E56;

static void *handle(enum kind kind, unsigned gpu, unsigned gi, unsigned ci, unsigned serial) {
	return (void *)(uintptr_t)(tag << 48 | (uint64_t)kind << 44 | (uint64_t)(gpu & 0xFF) << 36 |
	                           (uint64_t)(gi & 0xF) << 32 | (uint64_t)(ci & 0xF) << 28 | (serial & 0xFFFFFFF));
}

struct parts {
	enum kind kind;
	unsigned gpu, gi, ci, serial;
};

static bool parts_of(const void *handle, struct parts *parts) {
	uint64_t value = (uint64_t)(uintptr_t)handle;
	*parts = (struct parts){(enum kind)(value >> 44 & 0xF), value >> 36 & 0xFF, value >> 32 & 0xF, value >> 28 & 0xF, value & 0xFFFFFFF};
	return value >> 48 == tag;
}

nvmlDevice_t gpu_handle(unsigned gpu) {
	return handle(KIND_GPU, gpu, 0, 0, 0);
}

nvmlDevice_t mig_handle(const struct compute_instance *c) {
	return handle(KIND_MIG, c->gpu, c->gi, c->id, c->serial);
}

nvmlGpuInstance_t instance_handle(const struct gpu_instance *g) {
	return handle(KIND_INSTANCE, g->gpu, g->id, 0, g->serial);
}

nvmlComputeInstance_t compute_handle(const struct compute_instance *c) {
	return handle(KIND_COMPUTE, c->gpu, c->gi, c->id, c->serial);
}

nvmlEventSet_t event_set_handle(unsigned index) {
	return handle(KIND_EVENT_SET, 0, 0, 0, index);
}

bool event_set_index(nvmlEventSet_t set, unsigned *index) {
	struct parts parts;
	bool is = parts_of(set, &parts) && parts.kind == KIND_EVENT_SET;
	*index = parts.serial;
	return is;
}

bool is_device(const void *handle) {
	struct parts parts;
	return parts_of(handle, &parts) && (parts.kind == KIND_GPU || parts.kind == KIND_MIG);
}

static nvmlReturn_t find(struct call *call, const void *handle, enum kind kind, struct parts *parts) {
	REQUIRE(parts_of(handle, parts) && (parts->kind == kind || (kind == KIND_GPU && parts->kind == KIND_MIG)) &&
	        parts->gpu < world.board.gpu_count, NVML_ERROR_INVALID_ARGUMENT);
	return call_gpu(call, parts->gpu);
}

static nvmlReturn_t find_compute(const struct parts *parts, struct compute_instance **compute) {
	*compute = compute_by_id(parts->gpu, parts->gi, parts->ci);
	return *compute != NULL && ((*compute)->serial & 0xFFFFFFF) == parts->serial ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t target_of(struct call *call, nvmlDevice_t device, struct target *target) {
	struct parts parts;
	memset(target, 0, sizeof(*target));
	TRY(find(call, device, KIND_GPU, &parts));
	target->index = parts.gpu;
	target->gpu = &world.board.gpus[parts.gpu];
	target->state = &world.state.gpus[parts.gpu];
	if (parts.kind == KIND_GPU)
		return NVML_SUCCESS;
	TRY(find_compute(&parts, &target->compute));
	target->instance = instance_by_id(parts.gpu, parts.gi);
	return target->instance == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t gpu_of(struct call *call, nvmlDevice_t device, struct target *target) {
	TRY(target_of(call, device, target));
	return target->compute == NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t instance_of(struct call *call, nvmlGpuInstance_t handle, struct gpu_instance **instance) {
	struct parts parts;
	TRY(find(call, handle, KIND_INSTANCE, &parts));
	*instance = instance_by_id(parts.gpu, parts.gi);
	return *instance != NULL && ((*instance)->serial & 0xFFFFFFF) == parts.serial ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t compute_of(struct call *call, nvmlComputeInstance_t handle, struct compute_instance **compute) {
	struct parts parts;
	TRY(find(call, handle, KIND_COMPUTE, &parts));
	return find_compute(&parts, compute);
}
