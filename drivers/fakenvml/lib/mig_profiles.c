// MIG mode, and into what a GPU can be split: profiles and their placements.
#include <stdio.h>
#include <string.h>

#include "fakenvml.h"

const struct mig_profile *profile_by_id(unsigned id) {
	for (unsigned i = 0; i < world.board.profile_count; i++)
		if (world.board.profiles[i].id == id)
			return &world.board.profiles[i];
	return NULL;
}

static const struct mig_profile *profile_by_index(unsigned index) {
	for (unsigned i = 0; i < world.board.profile_count; i++)
		if (world.board.profiles[i].index == index)
			return &world.board.profiles[i];
	return NULL;
}

// ---- The mode.

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
	GPU(current);
	REQUIRE(pending != NULL, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(world.board.mig, NVML_ERROR_NOT_SUPPORTED);
	*current = target.state->mig != 0;
	*pending = target.state->mig_pending != 0;
	return NVML_SUCCESS;
}

// A GPU in use keeps its mode until it is reset; a GPU with instances refuses.
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
	GPU(activation);
	REQUIRE(world.board.mig, NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
	TRY(change());
	for (unsigned i = 0; i < world.state.instance_count; i++)
		if (world.state.instances[i].gpu == target.index && mode == 0) {
			state_drop();
			return NVML_ERROR_IN_USE;
		}
	target.state->mig_pending = mode;
	bool busy = target.state->mig != mode && processes_in(target.index, NONE, NONE);
	if (!busy)
		target.state->mig = mode;
	TRY(keep());
	*activation = busy ? NVML_ERROR_IN_USE : NVML_SUCCESS;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
	GPU(count);
	*count = 0;
	for (unsigned i = 0; target.state->mig && i < world.board.profile_count; i++)
		if (world.board.profiles[i].instances > *count)
			*count = world.board.profiles[i].instances;
	return NVML_SUCCESS;
}

// ---- Profiles. They are told whether the mode is on or not.

static nvmlReturn_t find_profile(unsigned index, const struct mig_profile **profile) {
	REQUIRE(index < GPU_INSTANCE_PROFILES, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(world.board.mig, NVML_ERROR_NOT_SUPPORTED);
	*profile = profile_by_index(index);
	return *profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info) {
	GPU(info);
	const struct mig_profile *p;
	TRY(find_profile(profile, &p));
	*info = (nvmlGpuInstanceProfileInfo_t){
		.id = p->id, .isP2pSupported = 0, .sliceCount = p->slices, .instanceCount = p->instances,
		.multiprocessorCount = p->multiprocessors, .copyEngineCount = p->copy_engines,
		.decoderCount = p->decoders, .encoderCount = p->encoders, .jpegCount = p->jpeg_engines,
		.ofaCount = p->ofa_engines, .memorySizeMB = p->memory_mb,
	};
	return NVML_SUCCESS;
}

// fill writes the second or the third version, which differ in two fields.
static nvmlReturn_t fill(const struct mig_profile *p, void *info) {
	unsigned version = *(unsigned *)info;
	if (version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
		nvmlGpuInstanceProfileInfo_v2_t *v2 = info;
		*v2 = (nvmlGpuInstanceProfileInfo_v2_t){
			.version = version, .id = p->id, .sliceCount = p->slices, .instanceCount = p->instances,
			.multiprocessorCount = p->multiprocessors, .copyEngineCount = p->copy_engines,
			.decoderCount = p->decoders, .encoderCount = p->encoders, .jpegCount = p->jpeg_engines,
			.ofaCount = p->ofa_engines, .memorySizeMB = p->memory_mb,
		};
		snprintf(v2->name, sizeof(v2->name), "MIG %s", p->name);
		return NVML_SUCCESS;
	}
	REQUIRE(version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	nvmlGpuInstanceProfileInfo_v3_t *v3 = info;
	*v3 = (nvmlGpuInstanceProfileInfo_v3_t){
		.version = version, .id = p->id, .sliceCount = p->slices, .instanceCount = p->instances,
		.multiprocessorCount = p->multiprocessors, .copyEngineCount = p->copy_engines,
		.decoderCount = p->decoders, .encoderCount = p->encoders, .jpegCount = p->jpeg_engines,
		.ofaCount = p->ofa_engines, .memorySizeMB = p->memory_mb,
	};
	snprintf(v3->name, sizeof(v3->name), "MIG %s", p->name);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, void *info) {
	GPU(info);
	const struct mig_profile *p;
	TRY(find_profile(profile, &p));
	return fill(p, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id, void *info) {
	GPU(info);
	const struct mig_profile *p = profile_by_id(id);
	REQUIRE(world.board.mig && p != NULL, NVML_ERROR_NOT_SUPPORTED);
	return fill(p, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                  nvmlGpuInstancePlacement_t *placements, unsigned int *count) {
	GPU(count);
	const struct mig_profile *p = profile_by_id(id);
	REQUIRE(world.board.mig && p != NULL, NVML_ERROR_NOT_SUPPORTED);
	for (unsigned i = 0; placements != NULL && i < p->start_count; i++)
		placements[i] = (nvmlGpuInstancePlacement_t){p->starts[i], p->size};
	*count = p->start_count;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                               nvmlGpuInstancePlacement_t *placements, unsigned int *count) {
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}
