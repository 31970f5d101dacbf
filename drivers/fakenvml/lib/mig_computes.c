// Compute instances: parts of a GPU instance that share its memory and engines.
// Each is a MIG device.
#include <stdio.h>
#include <string.h>

#include "fakenvml.h"

enum { REV1 = 7 }; // one slice with more multiprocessors than the others have

struct compute_instance *compute_by_id(unsigned gpu, unsigned gi, unsigned id) {
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		struct compute_instance *c = &world.state.computes[i];
		if (c->gpu == gpu && c->gi == gi && c->id == id)
			return c;
	}
	return NULL;
}

// compute_slices is how many slices a compute profile has in a GPU instance of
// a profile; 0 if it can't be had there. A profile's number is its ID.
unsigned compute_slices(const struct mig_profile *p, unsigned profile) {
	static const unsigned slices[COMPUTE_INSTANCE_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
	if (profile >= COMPUTE_INSTANCE_PROFILES)
		return 0;
	if (profile == p->compute_profile)
		return p->slices;
	// Of the others, those that are not more than half, rounded up.
	bool part = profile != REV1 && profile != COMPUTE_INSTANCE_PROFILES - 1 && slices[profile] < p->slices && slices[profile] * 2 <= p->slices + 1;
	return part ? slices[profile] : 0;
}

// compute_multiprocessors: the whole instance has all, parts have as many per
// slice as the smallest profile.
unsigned compute_multiprocessors(const struct mig_profile *p, unsigned profile) {
	unsigned slices = compute_slices(p, profile), least = p->multiprocessors / p->slices;
	if (slices == p->slices)
		return p->multiprocessors;
	for (unsigned i = 0; i < world.board.profile_count; i++) {
		const struct mig_profile *other = &world.board.profiles[i];
		if (other->slices == 1 && other->multiprocessors < least)
			least = other->multiprocessors;
	}
	return least * slices;
}

static nvmlReturn_t profile_of(struct call *call, nvmlGpuInstance_t handle, struct gpu_instance **g, const struct mig_profile **p) {
	TRY(instance_of(call, handle, g));
	*p = profile_by_id((*g)->profile);
	return *p == NULL ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

// ---- Profiles.

static nvmlReturn_t describe(struct call *call, nvmlGpuInstance_t handle, unsigned profile, unsigned engines,
                             nvmlComputeInstanceProfileInfo_t *info, char *name) {
	TRY(call_begin(call));
	struct gpu_instance *g;
	const struct mig_profile *p;
	TRY(profile_of(call, handle, &g, &p));
	REQUIRE(profile < COMPUTE_INSTANCE_PROFILES && engines < ENGINE_PROFILES, NVML_ERROR_INVALID_ARGUMENT);
	unsigned slices = compute_slices(p, profile);
	REQUIRE(slices > 0, NVML_ERROR_NOT_SUPPORTED);
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = profile, .sliceCount = slices, .instanceCount = p->slices / slices,
		.multiprocessorCount = compute_multiprocessors(p, profile), .copyEngineCount = p->copy_engines,
		.decoderCount = p->decoders, .encoderCount = p->encoders, .jpegCount = p->jpeg_engines, .ofaCount = p->ofa_engines,
	};
	if (slices == p->slices)
		snprintf(name, NAME_V2_SIZE, "MIG %s", p->name);
	else
		snprintf(name, NAME_V2_SIZE, "MIG %uc.%s", slices, p->name);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned int profile,
                                                                 unsigned int engines, nvmlComputeInstanceProfileInfo_t *info) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	char name[NAME_V2_SIZE];
	REQUIRE(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
	return describe(&call, handle, profile, engines, info, name);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned int profile,
                                                                  unsigned int engines, void *info) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	REQUIRE(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
	if (*(unsigned *)info == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2)) {
		nvmlComputeInstanceProfileInfo_v2_t *v2 = info;
		return describe(&call, handle, profile, engines, &v2->info, v2->name);
	}
	REQUIRE(*(unsigned *)info == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	nvmlComputeInstanceProfileInfo_v3_t *v3 = info;
	v3->capabilities = 0;
	return describe(&call, handle, profile, engines, &v3->info, v3->name);
}

// ---- Places: the compute slices of the GPU instance.

static bool is_free(const struct gpu_instance *g, const struct mig_profile *p, unsigned start, unsigned size) {
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		const struct compute_instance *c = &world.state.computes[i];
		unsigned taken = compute_slices(p, c->profile);
		if (c->gpu == g->gpu && c->gi == g->id && start < c->start + taken && c->start < start + size)
			return false;
	}
	return start + size <= p->slices;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle, unsigned int profile,
                                                                        nvmlComputeInstancePlacement_t *placements, unsigned int *count) {
	BEGIN();
	REQUIRE(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	const struct mig_profile *p;
	TRY(profile_of(&call, handle, &g, &p));
	unsigned slices = compute_slices(p, profile);
	REQUIRE(slices > 0, NVML_ERROR_NOT_SUPPORTED);
	*count = 0;
	for (unsigned start = 0; start + slices <= p->slices; start += slices) {
		if (placements != NULL)
			placements[*count] = (nvmlComputeInstancePlacement_t){start, slices};
		++*count;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned int profile, unsigned int *count) {
	BEGIN();
	REQUIRE(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	const struct mig_profile *p;
	TRY(profile_of(&call, handle, &g, &p));
	unsigned slices = compute_slices(p, profile);
	REQUIRE(slices > 0, NVML_ERROR_NOT_SUPPORTED);
	*count = 0;
	for (unsigned start = 0; start + slices <= p->slices; start += slices)
		*count += is_free(g, p, start, slices);
	return NVML_SUCCESS;
}

// ---- Life.

static nvmlReturn_t place(const struct gpu_instance *g, const struct mig_profile *p, unsigned profile,
                          const nvmlComputeInstancePlacement_t *at, struct compute_instance *made) {
	unsigned slices = compute_slices(p, profile), start = at == NULL ? 0 : at->start;
	while (at == NULL && start + slices <= p->slices && !is_free(g, p, start, slices))
		start += slices;
	REQUIRE(is_free(g, p, start, slices), NVML_ERROR_INSUFFICIENT_RESOURCES);
	unsigned id = 0;
	while (compute_by_id(g->gpu, g->id, id) != NULL)
		id++;
	REQUIRE(world.state.compute_count < MAX_INSTANCES, NVML_ERROR_INSUFFICIENT_RESOURCES);
	*made = (struct compute_instance){g->gpu, g->id, id, profile, start, 0, (unsigned)++world.state.serial};
	world.state.computes[world.state.compute_count++] = *made;
	return NVML_SUCCESS;
}

static nvmlReturn_t create(struct call *call, nvmlGpuInstance_t handle, unsigned profile,
                           const nvmlComputeInstancePlacement_t *at, nvmlComputeInstance_t *created) {
	TRY(call_begin(call));
	REQUIRE(created != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	const struct mig_profile *p;
	TRY(profile_of(call, handle, &g, &p));
	unsigned slices = compute_slices(p, profile);
	REQUIRE(slices > 0, NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(at == NULL || (at->size == slices && at->start % slices == 0 && at->start < MEMORY_SLICES), NVML_ERROR_INVALID_ARGUMENT);
	TRY(change());
	struct compute_instance made;
	nvmlReturn_t result = profile_of(call, handle, &g, &p); // once more: another process may have been here
	if (result == NVML_SUCCESS)
		result = place(g, p, profile, at, &made);
	if (result != NVML_SUCCESS) {
		state_drop();
		return result;
	}
	TRY(keep());
	*created = compute_handle(&made);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int profile, nvmlComputeInstance_t *created) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	return create(&call, handle, profile, NULL, created);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned int profile,
                                                                      const nvmlComputeInstancePlacement_t *at, nvmlComputeInstance_t *created) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	REQUIRE(at != NULL, NVML_ERROR_INVALID_ARGUMENT);
	return create(&call, handle, profile, at, created);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
	BEGIN();
	struct compute_instance *c;
	TRY(compute_of(&call, handle, &c));
	TRY(change());
	nvmlReturn_t result = compute_of(&call, handle, &c);
	if (result == NVML_SUCCESS && processes_in(c->gpu, c->gi, c->id))
		result = NVML_ERROR_IN_USE;
	if (result != NVML_SUCCESS) {
		state_drop();
		return result;
	}
	unsigned at = (unsigned)(c - world.state.computes);
	memmove(c, c + 1, (--world.state.compute_count - at) * sizeof(*c));
	return keep();
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int profile,
                                                       nvmlComputeInstance_t *handles, unsigned int *count) {
	BEGIN();
	REQUIRE(handles != NULL && count != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	const struct mig_profile *p;
	TRY(profile_of(&call, handle, &g, &p));
	unsigned slices = compute_slices(p, profile);
	REQUIRE(slices > 0, NVML_ERROR_NOT_SUPPORTED);
	*count = 0;
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		const struct compute_instance *c = &world.state.computes[i];
		if (c->gpu == g->gpu && c->gi == g->id && c->profile == profile && *count < p->slices / slices)
			handles[(*count)++] = compute_handle(c);
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id, nvmlComputeInstance_t *found) {
	BEGIN();
	REQUIRE(found != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	TRY(instance_of(&call, handle, &g));
	const struct compute_instance *c = compute_by_id(g->gpu, g->id, id);
	REQUIRE(c != NULL, NVML_ERROR_NOT_FOUND);
	*found = compute_handle(c);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info) {
	BEGIN();
	REQUIRE(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct compute_instance *c;
	TRY(compute_of(&call, handle, &c));
	const struct gpu_instance *g = instance_by_id(c->gpu, c->gi);
	const struct mig_profile *p = g == NULL ? NULL : profile_by_id(g->profile);
	REQUIRE(p != NULL, NVML_ERROR_UNKNOWN);
	*info = (nvmlComputeInstanceInfo_t){gpu_handle(c->gpu), instance_handle(g), c->id, c->profile, {c->start, compute_slices(p, c->profile)}};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info) {
	return nvmlComputeInstanceGetInfo_v2(handle, info);
}
