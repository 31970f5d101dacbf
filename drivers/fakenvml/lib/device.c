// Which GPUs there are, and what they are: count, handles, names, numbers.
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "fakenvml.h"

static bool present(unsigned gpu) {
	return !world.state.gpus[gpu].vanished;
}

// nth is the GPU at an index of NVML, which counts only those that are there.
static unsigned nth(unsigned index) {
	for (unsigned gpu = 0; gpu < world.board.gpu_count; gpu++)
		if (present(gpu) && index-- == 0)
			return gpu;
	return NONE;
}

static unsigned index_of(unsigned wanted) {
	unsigned index = 0;
	for (unsigned gpu = 0; gpu < wanted; gpu++)
		index += present(gpu);
	return index;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
	BEGIN();
	REQUIRE(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*count = index_of(world.board.gpu_count);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
	return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
	BEGIN();
	REQUIRE(device != NULL, NVML_ERROR_INVALID_ARGUMENT);
	unsigned gpu = nth(index);
	REQUIRE(gpu != NONE, NVML_ERROR_INVALID_ARGUMENT);
	TRY(call_gpu(&call, gpu));
	*device = gpu_handle(gpu);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find_mig(struct call *call, const char *uuid, nvmlDevice_t *device) {
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		char own[UUID_SIZE];
		struct compute_instance compute = world.state.computes[i];
		if (compute.gpu >= world.board.gpu_count)
			continue;
		mig_uuid(&compute, own);
		if (strcasecmp(own, uuid) != 0 || !present(compute.gpu))
			continue;
		TRY(call_gpu(call, compute.gpu));
		*device = mig_handle(&compute);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
	BEGIN();
	REQUIRE(uuid != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
	if (strncmp(uuid, "MIG-", 4) == 0)
		return find_mig(&call, uuid, device);
	REQUIRE(strncmp(uuid, "GPU-", 4) == 0, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned gpu = 0; gpu < world.board.gpu_count; gpu++) {
		if (!present(gpu) || strcasecmp(world.board.gpus[gpu].uuid, uuid) != 0)
			continue;
		TRY(call_gpu(&call, gpu));
		*device = gpu_handle(gpu);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device) {
	enum { ASCII = 1 };
	REQUIRE(uuid != NULL, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(uuid->version == STRUCT_VERSION(nvmlUUID_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	REQUIRE(uuid->type == ASCII, NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(memchr(uuid->value.str, '\0', sizeof(uuid->value.str)) != NULL, NVML_ERROR_INVALID_ARGUMENT);
	return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
	BEGIN();
	REQUIRE(id != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
	unsigned domain = 0, bus, slot;
	if (sscanf(id, "%x:%x:%x.", &domain, &bus, &slot) != 3) {
		domain = 0;
		REQUIRE(sscanf(id, "%x:%x.", &bus, &slot) == 2, NVML_ERROR_INVALID_ARGUMENT);
	}
	for (unsigned gpu = 0; gpu < world.board.gpu_count; gpu++) {
		const struct gpu *g = &world.board.gpus[gpu];
		if (!present(gpu) || g->domain != domain || g->bus != bus || g->device != slot)
			continue;
		TRY(call_gpu(&call, gpu));
		*device = gpu_handle(gpu);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
	BEGIN();
	REQUIRE(serial != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned gpu = 0; gpu < world.board.gpu_count; gpu++) {
		if (!present(gpu) || strcmp(world.board.gpus[gpu].serial, serial) != 0)
			continue;
		TRY(call_gpu(&call, gpu));
		*device = gpu_handle(gpu);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
	DEVICE(name);
	if (target.compute == NULL)
		return give(name, length, world.board.name);
	const struct mig_profile *p = profile_by_id(target.instance->profile);
	char text[NAME_V2_SIZE + 64];
	snprintf(text, sizeof(text), "%s MIG %s", world.board.name, p == NULL ? "?" : p->name);
	return give(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
	DEVICE(uuid);
	if (target.compute == NULL)
		return give(uuid, length, target.gpu->uuid);
	char text[UUID_SIZE];
	mig_uuid(target.compute, text);
	return give(uuid, length, text);
}

// Among MIG devices of one GPU the index counts those before it, as in
// nvmlDeviceGetMigDeviceHandleByIndex.
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
	DEVICE(index);
	if (target.compute == NULL) {
		*index = index_of(target.index);
		return NVML_SUCCESS;
	}
	*index = 0;
	for (unsigned i = 0; i < world.state.compute_count; i++) {
		const struct compute_instance *c = &world.state.computes[i];
		if (c->gpu == target.index &&
		    (c->gi < target.compute->gi || (c->gi == target.compute->gi && c->id < target.compute->id)))
			++*index;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand) {
	DEVICE(brand);
	*brand = (unsigned)world.board.brand;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
	DEVICE(architecture);
	*architecture = (unsigned)world.board.architecture;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
	DEVICE(major);
	REQUIRE(minor != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*major = (int)world.board.cc_major;
	*minor = (int)world.board.cc_minor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
	DEVICE(serial);
	return give(serial, length, target.gpu->serial);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
	GPU(minor);
	*minor = target.gpu->minor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *module) {
	GPU(module);
	*module = target.gpu->module;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
	GPU(version);
	return give(version, length, world.board.vbios);
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length) {
	GPU(number);
	return give(number, length, world.board.part_number);
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *id) {
	GPU(id);
	*id = target.gpu->bus << 8;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *is) {
	GPU(is);
	*is = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
	GPU(cores);
	*cores = (unsigned)world.board.cores;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits) {
	GPU(bits);
	*bits = (unsigned)world.board.memory_bus;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned int *type) {
	enum { PCIE = 2 };
	GPU(type);
	*type = PCIE;
	return NVML_SUCCESS;
}

// MIG devices have the address of their GPU.
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
	DEVICE(pci);
	const struct gpu *g = target.gpu;
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", g->domain & 0xFFFF, g->bus & 0xFF, g->device & 0x1F);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
	pci->domain = g->domain;
	pci->bus = g->bus;
	pci->device = g->device;
	pci->pciDeviceId = (unsigned)world.board.pci_device_id;
	pci->pciSubSystemId = (unsigned)world.board.pci_subsystem_id;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci) {
	enum { DISPLAY_CONTROLLER = 3, CONTROLLER_3D = 2 };
	DEVICE(pci);
	REQUIRE(pci->version == STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	const struct gpu *g = target.gpu;
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
	pci->domain = g->domain;
	pci->bus = g->bus;
	pci->device = g->device;
	pci->pciDeviceId = (unsigned)world.board.pci_device_id;
	pci->pciSubSystemId = (unsigned)world.board.pci_subsystem_id;
	pci->baseClass = DISPLAY_CONTROLLER;
	pci->subClass = CONTROLLER_3D;
	return NVML_SUCCESS;
}

#define PCIE(function, field)                                                  \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) { \
		GPU(value);                                                    \
		*value = (unsigned)world.board.field;                          \
		return NVML_SUCCESS;                                           \
	}
PCIE(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation)
PCIE(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_generation)
PCIE(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation)
PCIE(nvmlDeviceGetMaxPcieLinkWidth, pcie_width)
PCIE(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value) {
	GPU(value);
	*value = (unsigned)target.state->pcie_replays;
	return NVML_SUCCESS;
}
