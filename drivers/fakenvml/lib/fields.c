// Field values: the same numbers as those of other functions, many at a time.
// A field that a board does not have says so itself, and the call succeeds.
#include <time.h>

#include "fakenvml.h"

// Numbers of NVML_FI_DEV_*.
enum {
	ECC_CURRENT = 1, ECC_PENDING, SBE_VOLATILE, DBE_VOLATILE, SBE_AGGREGATE, DBE_AGGREGATE,
	SBE_VOLATILE_L1 = 7, DBE_VOLATILE_L2 = 10, SBE_VOLATILE_DEVICE = 11, DBE_VOLATILE_DEVICE = 12,
	DBE_AGGREGATE_L2 = 21, SBE_AGGREGATE_DEVICE = 22, DBE_AGGREGATE_DEVICE = 23, DBE_AGGREGATE_CBU = 28,
	RETIRED_SBE = 29, RETIRED_DBE = 30, RETIRED_PENDING = 31,
	NVLINK_CRC_FLIT_TOTAL = 38, NVLINK_CRC_DATA_TOTAL = 45, NVLINK_REPLAY_TOTAL = 52, NVLINK_RECOVERY_TOTAL = 59,
	MEMORY_TEMPERATURE = 82,
	NVLINK_SPEED_COMMON = 90, NVLINK_COUNT = 91, RETIRED_PENDING_SBE = 92, RETIRED_PENDING_DBE = 93,
	PCIE_REPLAYS = 94, PCIE_REPLAY_ROLLOVER = 95,
	REMAPPED_CORRECTABLE = 142, REMAPPED_UNCORRECTABLE, REMAPPED_PENDING, REMAPPED_FAILURE,
	NVSWITCH_LINK_COUNT = 147, NVLINK_ECC_TOTAL = 160,
	NVLINK_DL_REPLAY = 161, NVLINK_DL_RECOVERY, NVLINK_DL_CRC, NVLINK_SPEED, NVLINK_STATE, NVLINK_VERSION,
	C2C_LINK_COUNT = 170,
	PCIE_CORRECTABLE = 173, PCIE_NON_FATAL = 179, PCIE_FATAL = 180, PCIE_LAST = 183,
	RESETLESS_MIG = 184, POWER_INSTANT = 186, POWER_MIN, POWER_MAX, POWER_DEFAULT, POWER_CURRENT,
	MIG_QUERY_WITHOUT_MODE = 199,
	RESET_STATUS = 226, DRAIN_AND_RESET_STATUS = 227, RECOVERY_ACTION = 230,
	REMAPPED_CORRECTABLE_INACTIVE = 301, REMAPPED_UNCORRECTABLE_INACTIVE = 302,
};

enum { ACTION_RESET = 1, ACTION_DRAIN_AND_RESET = 4 };
enum { HOPPER = 9 };

// found is an answer: its kind of number, its number, or why there is none.
struct found {
	nvmlReturn_t result;
	nvmlValueType_t type;
	uint64_t value;
};

static const struct found unsupported = {NVML_ERROR_NOT_SUPPORTED, VALUE_UNSIGNED_INT, 0};

static struct found word(bool supported, uint64_t value) {
	return supported ? (struct found){NVML_SUCCESS, VALUE_UNSIGNED_INT, value} : unsupported;
}

static struct found count(bool supported, uint64_t value) {
	return supported ? (struct found){NVML_SUCCESS, VALUE_UNSIGNED_LONG_LONG, value} : unsupported;
}

static struct found ecc_field(const struct gpu_state *s, unsigned field) {
	bool on = world.board.ecc && !s->ecc_off;
	switch (field) {
	case ECC_CURRENT: return word(world.board.ecc, !s->ecc_off);
	case ECC_PENDING: return word(world.board.ecc, !s->ecc_off_pending);
	case SBE_VOLATILE:
	case SBE_VOLATILE_DEVICE: return count(on, s->sbe_volatile);
	case SBE_AGGREGATE:
	case SBE_AGGREGATE_DEVICE: return count(on, s->sbe_aggregate);
	case DBE_VOLATILE: return count(on, s->dbe_volatile + s->sram_volatile);
	case DBE_AGGREGATE: return count(on, s->dbe_aggregate + s->sram_aggregate);
	case DBE_VOLATILE_DEVICE: return count(on, s->dbe_volatile);
	case DBE_AGGREGATE_DEVICE: return count(on, s->dbe_aggregate);
	case DBE_VOLATILE_L2: return count(on, s->sram_volatile);
	case DBE_AGGREGATE_L2: return count(on, s->sram_aggregate);
	}
	return count(on, 0); // the other places
}

// link_field is about the link of the scope.
static struct found link_field(const struct gpu_state *s, unsigned field, unsigned link) {
	if (world.board.nvlinks == 0)
		return unsupported;
	if (link >= world.board.nvlinks)
		return (struct found){NVML_ERROR_INVALID_ARGUMENT, VALUE_UNSIGNED_INT, 0};
	bool up = (s->links_down >> link & 1) == 0;
	switch (field) {
	case NVLINK_DL_REPLAY: return count(true, link == 0 ? s->link_errors : 0);
	case NVLINK_SPEED: return word(true, up ? world.board.nvlink_speed : 0);
	case NVLINK_STATE: return word(true, up);
	case NVLINK_VERSION: return word(true, world.board.nvlink_version);
	}
	return count(true, 0);
}

static struct found power_field(const struct gpu_state *s, unsigned field) {
	switch (field) {
	case POWER_INSTANT: return word(true, s->power ? s->power : world.board.power_limit / 10);
	case POWER_MIN: return word(true, world.board.power_min);
	case POWER_MAX: return word(true, world.board.power_max);
	case POWER_DEFAULT: return word(true, world.board.power_limit);
	}
	return word(true, s->power_limit ? s->power_limit : world.board.power_limit);
}

static struct found field_of(const struct gpu_state *s, unsigned field, unsigned scope) {
	bool remaps = world.board.row_remap && !s->mig, retires = world.board.page_retirement, links = world.board.nvlinks > 0;
	bool actions = world.board.recovery_action;
	if (field >= ECC_CURRENT && field <= DBE_AGGREGATE_CBU)
		return ecc_field(s, field);
	if (field >= NVLINK_DL_REPLAY && field <= NVLINK_VERSION)
		return link_field(s, field, scope);
	if (field >= POWER_INSTANT && field <= POWER_CURRENT)
		return power_field(s, field);
	switch (field) {
	case RETIRED_SBE: return count(retires, s->retired_sbe);
	case RETIRED_DBE: return count(retires, s->retired_dbe);
	case RETIRED_PENDING:
	case RETIRED_PENDING_DBE: return word(retires, s->retired_pending != 0);
	case RETIRED_PENDING_SBE: return word(retires, 0);
	case NVLINK_REPLAY_TOTAL: return count(links, s->link_errors);
	case NVLINK_CRC_FLIT_TOTAL:
	case NVLINK_CRC_DATA_TOTAL:
	case NVLINK_RECOVERY_TOTAL:
	case NVLINK_ECC_TOTAL: return count(links, 0);
	case NVLINK_SPEED_COMMON: return word(links, world.board.nvlink_speed);
	case NVLINK_COUNT: return word(links, world.board.nvlinks);
	case NVSWITCH_LINK_COUNT: return word(links, world.board.nvswitch_id ? world.board.nvlinks : 0);
	case C2C_LINK_COUNT: return word(false, 0);
	case MEMORY_TEMPERATURE: return word(world.board.row_remap, s->temperature ? s->temperature : 30);
	case PCIE_REPLAYS: return count(true, s->pcie_replays);
	case PCIE_REPLAY_ROLLOVER: return count(true, 0);
	case REMAPPED_CORRECTABLE: return word(remaps, s->remap_correctable);
	case REMAPPED_UNCORRECTABLE: return word(remaps, s->remap_uncorrectable);
	case REMAPPED_PENDING: return word(remaps, s->remap_pending != 0);
	case REMAPPED_FAILURE: return word(remaps, s->remap_failure != 0);
	case REMAPPED_CORRECTABLE_INACTIVE:
	case REMAPPED_UNCORRECTABLE_INACTIVE: return word(remaps, 0);
	case PCIE_CORRECTABLE: return count(true, s->pcie_correctable);
	case PCIE_NON_FATAL: return count(true, s->pcie_nonfatal);
	case PCIE_FATAL: return count(true, s->pcie_fatal);
	case RESETLESS_MIG: return word(world.board.mig, world.board.architecture >= HOPPER);
	case MIG_QUERY_WITHOUT_MODE: return word(world.board.mig, 1);
	case RESET_STATUS: return word(actions, s->recovery_action == ACTION_RESET);
	case DRAIN_AND_RESET_STATUS: return word(actions, s->recovery_action == ACTION_DRAIN_AND_RESET);
	case RECOVERY_ACTION: return word(actions, s->recovery_action);
	}
	if (field > PCIE_CORRECTABLE && field <= PCIE_LAST)
		return count(true, 0);
	return unsupported;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int number, nvmlFieldValue_t *values) {
	GPU(values);
	REQUIRE(number > 0, NVML_ERROR_INVALID_ARGUMENT);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < number; i++) {
		struct found found = field_of(target.state, values[i].fieldId, values[i].scopeId);
		values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].valueType = found.type;
		values[i].nvmlReturn = found.result;
		values[i].value.ull = found.value;
	}
	return NVML_SUCCESS;
}
