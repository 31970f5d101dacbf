// GPU instances: made where no other is, in a place that the profile allows,
// as long as the GPU has the engines for it.
#include <string.h>

#include "fakenvml.h"

struct gpu_instance *instance_by_id(unsigned gpu, unsigned id) {
	for (unsigned i = 0; i < world.state.instance_count; i++)
		if (world.state.instances[i].gpu == gpu && world.state.instances[i].id == id)
			return &world.state.instances[i];
	return NULL;
}

bool processes_in(unsigned gpu, unsigned gi, unsigned ci) {
	for (unsigned i = 0; i < world.state.process_count; i++) {
		const struct process *p = &world.state.processes[i];
		if (p->gpu == gpu && (gi == NONE || p->gi == gi) && (ci == NONE || p->ci == ci))
			return true;
	}
	return false;
}

// usage is what the instances of a GPU have taken of it.
struct usage {
	bool slices[MEMORY_SLICES];
	unsigned of_profile, compute_slices, multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
};

static void add(struct usage *sum, const struct mig_profile *p) {
	sum->compute_slices += p->slices;
	sum->multiprocessors += p->multiprocessors;
	sum->copy_engines += p->copy_engines;
	sum->decoders += p->decoders;
	sum->encoders += p->encoders;
	sum->jpeg_engines += p->jpeg_engines;
	sum->ofa_engines += p->ofa_engines;
}

static struct usage usage_of(unsigned gpu, unsigned profile) {
	struct usage sum = {0};
	for (unsigned i = 0; i < world.state.instance_count; i++) {
		const struct gpu_instance *g = &world.state.instances[i];
		const struct mig_profile *p = profile_by_id(g->profile);
		if (g->gpu != gpu || p == NULL)
			continue;
		add(&sum, p);
		sum.of_profile += g->profile == profile;
		for (unsigned s = 0; s < p->size && g->start + s < MEMORY_SLICES; s++)
			sum.slices[g->start + s] = true;
	}
	return sum;
}

// has_engines says whether a GPU has what one more instance takes. A GPU has of
// each the most that one profile has.
static bool has_engines(struct usage used, const struct mig_profile *p) {
	struct usage whole = {0};
#define MOST(field, of) whole.field = whole.field > (of) ? whole.field : (of)
	for (unsigned i = 0; i < world.board.profile_count; i++) {
		const struct mig_profile *other = &world.board.profiles[i];
		MOST(compute_slices, other->slices);
		MOST(multiprocessors, other->multiprocessors);
		MOST(copy_engines, other->copy_engines);
		MOST(decoders, other->decoders);
		MOST(encoders, other->encoders);
		MOST(jpeg_engines, other->jpeg_engines);
		MOST(ofa_engines, other->ofa_engines);
	}
#undef MOST
	add(&used, p);
	return used.of_profile < p->instances && used.compute_slices <= whole.compute_slices &&
	       used.multiprocessors <= whole.multiprocessors && used.copy_engines <= whole.copy_engines &&
	       used.decoders <= whole.decoders && used.encoders <= whole.encoders &&
	       used.jpeg_engines <= whole.jpeg_engines && used.ofa_engines <= whole.ofa_engines;
}

static bool is_free(const struct usage *used, unsigned start, unsigned size) {
	for (unsigned s = start; s < start + size; s++)
		if (s >= MEMORY_SLICES || used->slices[s])
			return false;
	return true;
}

// choose finds a place for who names none. As NVIDIA's MIG guide shows it,
// small instances go to the end of the memory and large ones to its beginning.
static bool choose(const struct usage *used, const struct mig_profile *p, unsigned *start) {
	bool from_end = p->size <= 2;
	for (unsigned i = 0; i < p->start_count; i++) {
		unsigned candidate = p->starts[from_end ? p->start_count - 1 - i : i];
		if (is_free(used, candidate, p->size)) {
			*start = candidate;
			return true;
		}
	}
	return false;
}

// id_for gives an ID that no other instance has: 0 to the whole GPU, 1 and 2 to
// halves, 3 to 6 to quarters, 7 to 14 to eighths, as the MIG guide shows them.
static unsigned id_for(unsigned gpu, const struct mig_profile *p, unsigned start) {
	unsigned first = MEMORY_SLICES / p->size - 1;
	unsigned count = first + 1;
	unsigned wanted = start / p->size;
	for (unsigned i = 0; i < count; i++) {
		unsigned id = first + (wanted + i) % count;
		if (instance_by_id(gpu, id) == NULL)
			return id;
	}
	return NONE;
}

static nvmlReturn_t place(unsigned gpu, const struct mig_profile *p, const nvmlGpuInstancePlacement_t *at, struct gpu_instance *made) {
	struct usage used = usage_of(gpu, p->id);
	unsigned start = at == NULL ? 0 : at->start;
	REQUIRE(has_engines(used, p), NVML_ERROR_INSUFFICIENT_RESOURCES);
	if (at == NULL)
		REQUIRE(choose(&used, p, &start), NVML_ERROR_INSUFFICIENT_RESOURCES);
	REQUIRE(is_free(&used, start, p->size), NVML_ERROR_INSUFFICIENT_RESOURCES);
	unsigned id = id_for(gpu, p, start);
	REQUIRE(id != NONE && world.state.instance_count < MAX_INSTANCES, NVML_ERROR_INSUFFICIENT_RESOURCES);
	*made = (struct gpu_instance){gpu, id, p->id, start, (unsigned)++world.state.serial};
	world.state.instances[world.state.instance_count++] = *made;
	return NVML_SUCCESS;
}

static nvmlReturn_t create(struct call *call, nvmlDevice_t device, unsigned id,
                           const nvmlGpuInstancePlacement_t *at, nvmlGpuInstance_t *handle) {
	TRY(call_begin(call));
	REQUIRE(handle != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct target target;
	TRY(gpu_of(call, device, &target));
	REQUIRE(world.board.mig && target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	const struct mig_profile *p = profile_by_id(id);
	REQUIRE(p != NULL, NVML_ERROR_INVALID_ARGUMENT);
	bool allowed = at == NULL;
	for (unsigned i = 0; at != NULL && i < p->start_count; i++)
		allowed = allowed || (at->start == p->starts[i] && at->size == p->size);
	REQUIRE(allowed, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance made;
	TRY(change());
	nvmlReturn_t result = place(target.index, p, at, &made);
	if (result != NVML_SUCCESS) {
		state_drop();
		return result;
	}
	TRY(keep());
	*handle = instance_handle(&made);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *handle) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	return create(&call, device, id, NULL, handle);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                             const nvmlGpuInstancePlacement_t *at, nvmlGpuInstance_t *handle) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	REQUIRE(at != NULL, NVML_ERROR_INVALID_ARGUMENT);
	return create(&call, device, id, at, handle);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
	BEGIN();
	struct gpu_instance *instance;
	TRY(instance_of(&call, handle, &instance));
	TRY(change());
	nvmlReturn_t result = instance_of(&call, handle, &instance); // once more: another process may have been here
	for (unsigned i = 0; result == NVML_SUCCESS && i < world.state.compute_count; i++)
		if (world.state.computes[i].gpu == instance->gpu && world.state.computes[i].gi == instance->id)
			result = NVML_ERROR_IN_USE;
	if (result == NVML_SUCCESS && processes_in(instance->gpu, instance->id, NONE))
		result = NVML_ERROR_IN_USE;
	if (result != NVML_SUCCESS) {
		state_drop();
		return result;
	}
	unsigned at = (unsigned)(instance - world.state.instances);
	memmove(instance, instance + 1, (--world.state.instance_count - at) * sizeof(*instance));
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *handles, unsigned int *count) {
	GPU(count);
	REQUIRE(world.board.mig && target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(handles != NULL, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(profile_by_id(id) != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	for (unsigned i = 0; i < world.state.instance_count; i++) {
		const struct gpu_instance *g = &world.state.instances[i];
		if (g->gpu == target.index && g->profile == id && *count < profile_by_id(id)->instances)
			handles[(*count)++] = instance_handle(g);
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *handle) {
	GPU(handle);
	REQUIRE(world.board.mig && target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	const struct gpu_instance *g = instance_by_id(target.index, id);
	REQUIRE(g != NULL, NVML_ERROR_NOT_FOUND);
	*handle = instance_handle(g);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count) {
	GPU(count);
	REQUIRE(world.board.mig && target.state->mig, NVML_ERROR_NOT_SUPPORTED);
	const struct mig_profile *p = profile_by_id(id);
	REQUIRE(p != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct usage used = usage_of(target.index, id);
	unsigned start;
	for (*count = 0; has_engines(used, p) && choose(&used, p, &start); ++*count) {
		add(&used, p);
		used.of_profile++;
		for (unsigned s = start; s < start + p->size; s++)
			used.slices[s] = true;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
	BEGIN();
	REQUIRE(info != NULL, NVML_ERROR_INVALID_ARGUMENT);
	struct gpu_instance *g;
	TRY(instance_of(&call, handle, &g));
	const struct mig_profile *p = profile_by_id(g->profile);
	*info = (nvmlGpuInstanceInfo_t){gpu_handle(g->gpu), g->id, g->profile, {g->start, p == NULL ? 0 : p->size}};
	return NVML_SUCCESS;
}
