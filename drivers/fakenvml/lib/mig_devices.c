// MIG devices: compute instances as devices of their own.
#include <stdio.h>
#include <string.h>

#include "fakenvml.h"

// mig_uuid is made of the GPU's UUID and the instances' IDs, so that an
// instance that is made anew in the same place has the same one.
void mig_uuid(const struct compute_instance *c, char uuid[UUID_SIZE]) {
	char name[UUID_SIZE + 16];
	snprintf(name, sizeof(name), "%s/%u/%u", world.board.gpus[c->gpu].uuid, c->gi, c->id);
	uint64_t half[2];
	for (unsigned i = 0; i < 2; i++) { // FNV-1a, each half from a start of its own
		uint64_t hash = 0xCBF29CE484222325u + i;
		for (const char *byte = name; *byte != '\0'; byte++)
			hash = (hash ^ (unsigned char)*byte) * 0x100000001B3u;
		half[i] = hash ^ hash >> 29;
	}
	snprintf(uuid, UUID_SIZE, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(half[0] >> 32), (unsigned)(half[0] >> 16 & 0xFFFF),
	         (unsigned)(half[0] & 0xFFF), (unsigned)(half[1] >> 48 & 0x3FFF) | 0x8000u, (unsigned long long)(half[1] & 0xFFFFFFFFFFFFu));
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) {
	DEVICE(is);
	*is = target.compute != NULL;
	return NVML_SUCCESS;
}

static bool before(const struct compute_instance *a, const struct compute_instance *b) {
	return a->gi < b->gi || (a->gi == b->gi && a->id < b->id);
}

// MIG devices are counted in the order of the instances' IDs.
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
	GPU(mig);
	REQUIRE(world.board.mig, NVML_ERROR_NOT_SUPPORTED);
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		const struct compute_instance *c = &world.state.computes[i];
		if (c->gpu != target.index)
			continue;
		unsigned rank = 0;
		for (unsigned j = 0; j < world.state.compute_count; j++)
			rank += world.state.computes[j].gpu == target.index && before(&world.state.computes[j], c);
		if (rank == index) {
			*mig = mig_handle(c);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent) {
	DEVICE(parent);
	REQUIRE(target.compute != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*parent = gpu_handle(target.index);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
	DEVICE(id);
	REQUIRE(target.compute != NULL, NVML_ERROR_NOT_SUPPORTED);
	*id = target.compute->gi;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
	DEVICE(id);
	REQUIRE(target.compute != NULL, NVML_ERROR_NOT_SUPPORTED);
	*id = target.compute->id;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
	DEVICE(attributes);
	REQUIRE(target.compute != NULL, NVML_ERROR_NOT_SUPPORTED);
	const struct mig_profile *p = profile_by_id(target.instance->profile);
	REQUIRE(p != NULL, NVML_ERROR_UNKNOWN);
	*attributes = (nvmlDeviceAttributes_t){
		.multiprocessorCount = compute_multiprocessors(p, target.compute->profile),
		.copyEngineCount = p->copy_engines, .decoderCount = p->decoders, .encoderCount = p->encoders,
		.jpegCount = p->jpeg_engines, .ofaCount = p->ofa_engines, .gpuInstanceSliceCount = p->slices,
		.computeInstanceSliceCount = compute_slices(p, target.compute->profile), .memorySizeMB = p->memory_mb,
	};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
	return nvmlDeviceGetAttributes_v2(device, attributes);
}
