// What the files of this library share: the board that is simulated, what has
// happened to it, and how a call begins and ends.
#ifndef FAKENVML_H
#define FAKENVML_H

#include <stdbool.h>
#include <stddef.h>

#include "abi.h"

enum {
	MAX_GPUS = 16,
	MAX_PROFILES = 16,
	MAX_STARTS = 8,
	MEMORY_SLICES = 8,
	MAX_INSTANCES = MAX_GPUS * MEMORY_SLICES,
	MAX_EVENTS = 128,
	MAX_FAULTS = 64,
	MAX_PROCESSES = 64,
	FUNCTION_SIZE = 64,
};

// NONE in the place of an instance's ID is "the whole GPU", as in NVML.
#define NONE 0xFFFFFFFFu

// ---- The board: file board.conf, read by nvmlInit (board.c).

// Numbers of a board, by the names that the file has for them.
#define BOARD_NUMBERS(X)                                                            \
	X(cuda) X(brand) X(architecture) X(cc_major) X(cc_minor)                    \
	X(memory) X(reserved) X(bar1) X(pci_device_id) X(pci_subsystem_id)          \
	X(pcie_generation) X(pcie_width) X(power_limit) X(power_min) X(power_max)   \
	X(clock_graphics) X(clock_memory) X(cores) X(memory_bus) X(cpus_per_node)   \
	X(nvlinks) X(nvlink_speed) X(nvlink_version) X(nvswitch_id) X(fabric)       \
	X(ecc) X(row_remap) X(page_retirement) X(recovery_action) X(mig)

struct mig_profile {
	unsigned index, id, slices, instances, multiprocessors;
	unsigned copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
	unsigned memory_mb, size, compute_profile;
	unsigned starts[MAX_STARTS], start_count;
	char name[32];
};

struct gpu {
	char uuid[UUID_SIZE], serial[30];
	unsigned domain, bus, device, root, minor, numa, module;
};

struct board {
	char name[NAME_V2_SIZE], driver[80], nvml[80], vbios[32], part_number[32];
#define X(name) uint64_t name;
	BOARD_NUMBERS(X)
#undef X
	struct mig_profile profiles[MAX_PROFILES];
	unsigned profile_count;
	struct gpu gpus[MAX_GPUS];
	unsigned gpu_count;
};

nvmlReturn_t board_load(const char *folder, struct board *board);

// ---- What happened: file state, shared by all processes (state.c).

// Numbers of a GPU's state, by the names that the file has for them. All of
// them are 0 in a board that is new.
#define GPU_STATES(X)                                                                  \
	X(lost) X(vanished) X(mig) X(mig_pending) X(compute_mode) X(persistence)       \
	X(ecc_off) X(ecc_off_pending)                                                  \
	X(sbe_volatile) X(sbe_aggregate) X(dbe_volatile) X(dbe_aggregate)              \
	X(sram_volatile) X(sram_aggregate) X(sram_threshold)                           \
	X(remap_correctable) X(remap_uncorrectable) X(remap_pending) X(remap_failure)  \
	X(retired_sbe) X(retired_dbe) X(retired_pending)                               \
	X(recovery_action) X(links_down) X(link_errors) X(fabric_mask) X(fabric_unhealthy) \
	X(pcie_replays) X(pcie_correctable) X(pcie_nonfatal) X(pcie_fatal)             \
	X(power) X(temperature) X(memory_used) X(power_limit)

struct gpu_state {
#define X(name) uint64_t name;
	GPU_STATES(X)
#undef X
};

struct gpu_instance {
	unsigned gpu, id, profile, start;
	unsigned serial; // tells it from an earlier one with the same ID
};

struct compute_instance {
	unsigned gpu, gi, id, profile, start, mode;
	unsigned serial;
};

struct event {
	uint64_t sequence;
	unsigned gpu;
	uint64_t type, data;
	unsigned gi, ci;
};

enum fault_kind { FAULT_HANG, FAULT_FAIL };

struct fault {
	enum fault_kind kind;
	char function[FUNCTION_SIZE]; // or "*"
	unsigned gpu;                 // or NONE
	uint64_t value;               // milliseconds, or the nvmlReturn_t
};

struct process {
	unsigned gpu, gi, ci, pid;
	uint64_t memory;
};

struct state {
	uint64_t unloaded; // the kernel driver is
	uint64_t sequence; // of the last event
	uint64_t serial;   // of the last instance
	struct gpu_state gpus[MAX_GPUS];
	struct gpu_instance instances[MAX_INSTANCES];
	struct compute_instance computes[MAX_INSTANCES];
	struct event events[MAX_EVENTS];
	struct fault faults[MAX_FAULTS];
	struct process processes[MAX_PROCESSES];
	unsigned instance_count, compute_count, event_count, fault_count, process_count;
};

// state_refresh makes *state what the file says, if the file has changed.
nvmlReturn_t state_refresh(const char *folder, struct state *state);
// state_forget closes what state_refresh keeps open.
void state_forget(void);
// state_change locks the file against others and makes *state what it says; the
// change is then made to *state and kept by state_keep, or given up by state_drop.
nvmlReturn_t state_change(const char *folder, struct state *state);
nvmlReturn_t state_keep(const char *folder, struct state *state);
void state_drop(void);

// ---- Lines of both files (lines.c).

enum { MAX_WORDS = 32 };

struct line {
	char *word[MAX_WORDS];
	unsigned words;
	char *rest; // all after the first word, as it was written
};

// read_text returns the content of a file, to be freed, or NULL with errno.
char *read_text(int descriptor);
// next_line cuts the next line that is not empty or a comment out of *text: 1,
// or 0 at the end, or -1 if it has no end or too many words. The words are in
// store.
int next_line(char **text, struct line *line, char *store, size_t store_size);
bool parse_number(const char *text, uint64_t max, uint64_t *value);
bool parse_unsigned(const char *text, unsigned max, unsigned *value);
bool copy_text(char *to, size_t size, const char *from);

// ---- Calls (call.c).

// world is what there is; calls have its lock.
extern struct world {
	unsigned references; // of nvmlInit
	char folder[4096];
	struct board board;
	struct state state;
} world;

struct call {
	const char *function;
	bool locked;
};

// BEGIN opens a function of NVML: it takes the lock, looks at what has changed,
// and lets the faults for this function come true. The lock goes with the scope.
#define BEGIN()                                                             \
	struct call call __attribute__((cleanup(call_end))) = {__func__, false}; \
	TRY(call_begin(&call))

// TRY returns what is not success.
#define TRY(expression)                               \
	do {                                          \
		nvmlReturn_t tried_ = (expression);   \
		if (tried_ != NVML_SUCCESS)           \
			return tried_;                \
	} while (0)

// REQUIRE returns an error unless something holds.
#define REQUIRE(condition, error)     \
	do {                          \
		if (!(condition))     \
			return error; \
	} while (0)

nvmlReturn_t call_begin(struct call *call);
nvmlReturn_t call_begin_uninitialized(struct call *call);
void call_end(struct call *call);
// call_pause lets others go on for a while, and looks at what has changed then.
nvmlReturn_t call_pause(struct call *call, unsigned milliseconds);
// call_gpu is to be passed on the way to a GPU: it may be lost, or the call may
// be told to hang or fail there.
nvmlReturn_t call_gpu(struct call *call, unsigned gpu);
// change begins a change of the state, keep ends it.
nvmlReturn_t change(void);
nvmlReturn_t keep(void);

// ---- Handles (handle.c).

// target is what a device handle means: a GPU or, with compute, a MIG device.
struct target {
	unsigned index; // of the GPU in the board
	const struct gpu *gpu;
	struct gpu_state *state;
	struct gpu_instance *instance;
	struct compute_instance *compute;
};

nvmlDevice_t gpu_handle(unsigned gpu);
nvmlDevice_t mig_handle(const struct compute_instance *compute);
nvmlGpuInstance_t instance_handle(const struct gpu_instance *instance);
nvmlComputeInstance_t compute_handle(const struct compute_instance *compute);
nvmlEventSet_t event_set_handle(unsigned index);
bool is_device(const void *handle);
bool event_set_index(nvmlEventSet_t set, unsigned *index);

// target_of finds what a handle means; gpu_of refuses MIG devices.
nvmlReturn_t target_of(struct call *call, nvmlDevice_t device, struct target *target);
nvmlReturn_t gpu_of(struct call *call, nvmlDevice_t device, struct target *target);
nvmlReturn_t instance_of(struct call *call, nvmlGpuInstance_t handle, struct gpu_instance **instance);
nvmlReturn_t compute_of(struct call *call, nvmlComputeInstance_t handle, struct compute_instance **compute);

// DEVICE opens a function that gives a result of any device, GPU one of a GPU
// and no MIG device.
#define DEVICE(result)                                          \
	BEGIN();                                                \
	REQUIRE((result) != NULL, NVML_ERROR_INVALID_ARGUMENT); \
	struct target target;                                   \
	TRY(target_of(&call, device, &target))

#define GPU(result)                                             \
	BEGIN();                                                \
	REQUIRE((result) != NULL, NVML_ERROR_INVALID_ARGUMENT); \
	struct target target;                                   \
	TRY(gpu_of(&call, device, &target))

// give copies a text for the caller (init.c).
nvmlReturn_t give(char *to, unsigned int length, const char *text);

// ---- MIG (mig_*.c).

const struct mig_profile *profile_by_id(unsigned id);
struct gpu_instance *instance_by_id(unsigned gpu, unsigned id);
struct compute_instance *compute_by_id(unsigned gpu, unsigned gi, unsigned id);
unsigned compute_slices(const struct mig_profile *profile, unsigned compute_profile);
unsigned compute_multiprocessors(const struct mig_profile *profile, unsigned compute_profile);
bool processes_in(unsigned gpu, unsigned gi, unsigned ci);
void mig_uuid(const struct compute_instance *compute, char uuid[UUID_SIZE]);

#endif
