// How a call of NVML begins and ends, and the faults that are told to calls.
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "fakenvml.h"

struct world world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { STEP = 10 }; // milliseconds between two looks at what has changed

static void sleep_for(unsigned milliseconds) {
	struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
	nanosleep(&time, NULL);
}

static uint64_t now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

// same_function takes a name also without its version: nvmlInit is nvmlInit_v2.
static bool same_function(const char *wanted, const char *function) {
	if (strcmp(wanted, "*") == 0 || strcmp(wanted, function) == 0)
		return true;
	const char *version = strrchr(function, '_');
	return version != NULL && version[1] == 'v' && strlen(wanted) == (size_t)(version - function) &&
	       strncmp(wanted, function, strlen(wanted)) == 0;
}

static const struct fault *fault_for(const char *function, unsigned gpu, enum fault_kind kind) {
	for (unsigned i = 0; i < world.state.fault_count; i++) {
		const struct fault *fault = &world.state.faults[i];
		if (fault->kind == kind && fault->gpu == gpu && same_function(fault->function, function))
			return fault;
	}
	return NULL;
}

static void unlock(struct call *call) {
	call->locked = false;
	pthread_mutex_unlock(&lock);
}

// look brings the state up to date.
static nvmlReturn_t look(void) {
	TRY(state_refresh(world.folder, &world.state));
	return world.state.unloaded ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

// suffer hangs and fails as the faults for this call have it. A hang is over
// when its time is, or when the fault is taken back.
static nvmlReturn_t suffer(struct call *call, unsigned gpu) {
	uint64_t begun = now();
	const struct fault *hang;
	while ((hang = fault_for(call->function, gpu, FAULT_HANG)) != NULL && now() - begun < hang->value)
		TRY(call_pause(call, STEP));
	const struct fault *fail = fault_for(call->function, gpu, FAULT_FAIL);
	return fail == NULL ? NVML_SUCCESS : (nvmlReturn_t)fail->value;
}

nvmlReturn_t call_pause(struct call *call, unsigned milliseconds) {
	unlock(call);
	sleep_for(milliseconds);
	pthread_mutex_lock(&lock);
	call->locked = true;
	return look();
}

nvmlReturn_t call_begin_uninitialized(struct call *call) {
	pthread_mutex_lock(&lock);
	call->locked = true;
	return NVML_SUCCESS;
}

nvmlReturn_t call_begin(struct call *call) {
	TRY(call_begin_uninitialized(call));
	REQUIRE(world.references > 0, NVML_ERROR_UNINITIALIZED);
	TRY(look());
	TRY(suffer(call, NONE));
	REQUIRE(world.references > 0, NVML_ERROR_UNINITIALIZED); // it may have hung
	return NVML_SUCCESS;
}

void call_end(struct call *call) {
	if (call->locked)
		unlock(call);
}

nvmlReturn_t call_gpu(struct call *call, unsigned gpu) {
	TRY(suffer(call, gpu));
	REQUIRE(world.references > 0 && gpu < world.board.gpu_count, NVML_ERROR_UNINITIALIZED);
	const struct gpu_state *state = &world.state.gpus[gpu];
	return state->lost || state->vanished ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t change(void) {
	return state_change(world.folder, &world.state);
}

nvmlReturn_t keep(void) {
	nvmlReturn_t result = state_keep(world.folder, &world.state);
	nvmlReturn_t again = state_refresh(world.folder, &world.state);
	return result != NVML_SUCCESS ? result : again;
}
