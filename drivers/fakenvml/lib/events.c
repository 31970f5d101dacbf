// Event sets. Events are in the state, numbered; a set has the number of the
// last one that it has told, so that each process gets each event once. What
// came before a GPU was registered is not told.
#include <time.h>

#include "fakenvml.h"

enum {
	MAX_SETS = 64,
	POLL = 20, // milliseconds
};

static struct event_set {
	bool used;
	uint64_t types[MAX_GPUS], since[MAX_GPUS];
	uint64_t told;
} sets[MAX_SETS];

static const uint64_t always = EVENT_XID | EVENT_PSTATE | EVENT_CLOCK;
static const uint64_t with_ecc = EVENT_SBE | EVENT_DBE | EVENT_SBE_STORM | EVENT_DRAM_RETIREMENT |
	EVENT_DRAM_RETIREMENT_FAILURE | EVENT_POISON | EVENT_FATAL_POISON;
static const uint64_t with_recovery_action = EVENT_UNAVAILABLE | EVENT_RECOVERY_ACTION;

static uint64_t supported(void) {
	return always | (world.board.ecc ? with_ecc : 0) | (world.board.recovery_action ? with_recovery_action : 0);
}

static struct event_set *set_of(nvmlEventSet_t handle) {
	unsigned index;
	return event_set_index(handle, &index) && index < MAX_SETS && sets[index].used ? &sets[index] : NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
	BEGIN();
	REQUIRE(set != NULL, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; i < MAX_SETS; i++) {
		if (sets[i].used)
			continue;
		sets[i] = (struct event_set){.used = true};
		*set = event_set_handle(i);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
	BEGIN();
	struct event_set *found = set_of(set);
	REQUIRE(found != NULL, NVML_ERROR_INVALID_ARGUMENT);
	found->used = false;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
	BEGIN();
	struct target target;
	REQUIRE(types != NULL, NVML_ERROR_INVALID_ARGUMENT);
	TRY(gpu_of(&call, device, &target));
	*types = supported();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
	BEGIN();
	struct target target;
	TRY(target_of(&call, device, &target));
	struct event_set *found = set_of(set);
	REQUIRE(found != NULL, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(target.compute == NULL && (types & ~supported()) == 0, NVML_ERROR_NOT_SUPPORTED);
	if (found->types[target.index] == 0)
		found->since[target.index] = world.state.sequence;
	found->types[target.index] |= types;
	return NVML_SUCCESS;
}

static const struct event *next_event(struct event_set *set) {
	for (unsigned i = 0; i < world.state.event_count; i++) {
		const struct event *e = &world.state.events[i];
		if (e->sequence > set->told && e->sequence > set->since[e->gpu] && (set->types[e->gpu] & e->type) != 0) {
			set->told = e->sequence;
			return e;
		}
	}
	return NULL;
}

static bool lost(const struct event_set *set) {
	for (unsigned gpu = 0; gpu < world.board.gpu_count; gpu++)
		if (set->types[gpu] != 0 && (world.state.gpus[gpu].lost || world.state.gpus[gpu].vanished))
			return true;
	return false;
}

static uint64_t now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static nvmlReturn_t wait_for(struct call *call, nvmlEventSet_t handle, nvmlEventData_t *data, unsigned timeout) {
	TRY(call_begin(call));
	REQUIRE(data != NULL, NVML_ERROR_INVALID_ARGUMENT);
	uint64_t begun = now();
	for (;;) {
		struct event_set *set = set_of(handle); // it may have been freed meanwhile
		REQUIRE(set != NULL, NVML_ERROR_INVALID_ARGUMENT);
		const struct event *e = next_event(set);
		if (e != NULL) {
			*data = (nvmlEventData_t){gpu_handle(e->gpu), e->type, e->data, e->gi, e->ci};
			return NVML_SUCCESS;
		}
		REQUIRE(!lost(set), NVML_ERROR_GPU_IS_LOST);
		uint64_t passed = now() - begun;
		REQUIRE(passed < timeout, NVML_ERROR_TIMEOUT);
		uint64_t left = timeout - passed;
		TRY(call_pause(call, left < POLL ? (unsigned)left : POLL));
		REQUIRE(world.references > 0, NVML_ERROR_UNINITIALIZED);
	}
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	return wait_for(&call, set, data, timeout);
}

// The first version has no instances in its data, and room for none.
EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	nvmlEventData_t whole;
	REQUIRE(data != NULL, NVML_ERROR_INVALID_ARGUMENT);
	TRY(wait_for(&call, set, &whole, timeout));
	data->device = whole.device;
	data->eventType = whole.eventType;
	data->eventData = whole.eventData;
	return NVML_SUCCESS;
}
