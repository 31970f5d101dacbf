// How GPUs are connected: NVLink, NVSwitch and its fabric, PCIe, CPUs.
#include <stdio.h>
#include <string.h>

#include "fakenvml.h"

static nvmlReturn_t has_link(unsigned link) {
	REQUIRE(world.board.nvlinks > 0, NVML_ERROR_NOT_SUPPORTED);
	return link < world.board.nvlinks ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static bool is_up(const struct gpu_state *state, unsigned link) {
	return (state->links_down >> link & 1) == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
	GPU(active);
	TRY(has_link(link));
	*active = is_up(target.state, link);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
	GPU(version);
	TRY(has_link(link));
	*version = (unsigned)world.board.nvlink_version;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability, unsigned int *has) {
	enum { SLI_BRIDGE = 4, CAPABILITIES = 6 };
	GPU(has);
	TRY(has_link(link));
	REQUIRE(capability < CAPABILITIES, NVML_ERROR_INVALID_ARGUMENT);
	*has = capability != SLI_BRIDGE;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter, unsigned long long *value) {
	enum { COUNTERS = 5 };
	GPU(value);
	TRY(has_link(link));
	REQUIRE(counter < COUNTERS, NVML_ERROR_INVALID_ARGUMENT);
	*value = counter == 0 && link == 0 ? target.state->link_errors : 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type) {
	enum { SWITCH = 2, GPU_TYPE = 0 };
	GPU(type);
	TRY(has_link(link));
	*type = world.board.nvswitch_id ? SWITCH : GPU_TYPE;
	return NVML_SUCCESS;
}

// The switches of the fabric have four buses of their own, in turn.
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
	enum { SWITCHES = 4, FIRST_BUS = 5 };
	GPU(pci);
	TRY(has_link(link));
	REQUIRE(world.board.nvswitch_id && is_up(target.state, link), NVML_ERROR_NOT_SUPPORTED);
	memset(pci, 0, sizeof(*pci));
	pci->bus = FIRST_BUS + link % SWITCHES;
	pci->pciDeviceId = (unsigned)world.board.nvswitch_id;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", 0u, pci->bus & 0xFF, 0u);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", 0u, pci->bus & 0xFF, 0u);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

// ---- The fabric of NVSwitches. A single machine's has no cluster.

static nvmlReturn_t has_fabric(void) {
	return world.board.fabric ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
	GPU(info);
	TRY(has_fabric());
	*info = (nvmlGpuFabricInfo_t){.state = (unsigned char)world.board.fabric};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *info) {
	enum { HEALTHY = 1, UNHEALTHY = 2 };
	GPU(info);
	TRY(has_fabric());
	unsigned version = *(unsigned *)info, mask = (unsigned)target.state->fabric_mask;
	unsigned char state = (unsigned char)world.board.fabric;
	if (version == STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2)) {
		*(nvmlGpuFabricInfo_v2_t *)info = (nvmlGpuFabricInfo_v2_t){.version = version, .state = state, .healthMask = mask};
		return NVML_SUCCESS;
	}
	REQUIRE(version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	*(nvmlGpuFabricInfo_v3_t *)info = (nvmlGpuFabricInfo_v3_t){
		.version = version, .state = state, .healthMask = mask,
		.healthSummary = target.state->fabric_unhealthy ? UNHEALTHY : HEALTHY,
	};
	return NVML_SUCCESS;
}

// ---- PCIe and CPUs.

enum { SAME_GPU = 0, SAME_SWITCH = 10, SAME_CPU = 40, SAME_MACHINE = 50 };

static unsigned between(const struct gpu *a, const struct gpu *b) {
	if (a == b)
		return SAME_GPU;
	if (a->domain == b->domain && a->root == b->root)
		return SAME_SWITCH;
	return a->numa == b->numa ? SAME_CPU : SAME_MACHINE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned int *level) {
	GPU(level);
	struct target second;
	TRY(gpu_of(&call, other, &second));
	*level = between(target.gpu, second.gpu);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count, nvmlDevice_t *devices) {
	GPU(count);
	unsigned room = *count;
	REQUIRE(room == 0 || devices != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	for (unsigned i = 0; i < world.board.gpu_count; i++) {
		if (i == target.index || world.state.gpus[i].vanished || between(target.gpu, &world.board.gpus[i]) != level)
			continue;
		if (*count < room)
			devices[*count] = gpu_handle(i);
		++*count;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned int capability, unsigned int *status) {
	enum { OK = 0, NOT_SUPPORTED = 5, NVLINK = 2, CAPABILITIES = 5 };
	GPU(status);
	struct target second;
	TRY(gpu_of(&call, other, &second));
	REQUIRE(capability < CAPABILITIES, NVML_ERROR_INVALID_ARGUMENT);
	bool linked = world.board.nvlinks > 0 && !target.state->mig && !second.state->mig;
	*status = capability != NVLINK || linked ? OK : NOT_SUPPORTED;
	return NVML_SUCCESS;
}

// set_bits writes bits first to last into a set of words.
static void set_bits(unsigned long *set, unsigned words, unsigned first, unsigned last) {
	enum { BITS = 8 * sizeof(unsigned long) };
	memset(set, 0, words * sizeof(*set));
	for (unsigned bit = first; bit <= last && bit / BITS < words; bit++)
		set[bit / BITS] |= 1ul << bit % BITS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope) {
	DEVICE(set);
	REQUIRE(scope <= 1 && words > 0, NVML_ERROR_INVALID_ARGUMENT);
	set_bits(set, words, target.gpu->numa, target.gpu->numa);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope) {
	DEVICE(set);
	REQUIRE(scope <= 1 && words > 0, NVML_ERROR_INVALID_ARGUMENT);
	unsigned cpus = (unsigned)world.board.cpus_per_node;
	REQUIRE(cpus > 0, NVML_ERROR_NOT_SUPPORTED);
	set_bits(set, words, target.gpu->numa * cpus, (target.gpu->numa + 1) * cpus - 1);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
	return nvmlDeviceGetCpuAffinityWithinScope(device, words, set, 0);
}
