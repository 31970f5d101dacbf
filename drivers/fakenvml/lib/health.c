// What is wrong with a GPU's memory: ECC errors, remapped rows, retired pages.
#include <string.h>

#include "fakenvml.h"

enum { CORRECTED = 0, UNCORRECTED = 1, VOLATILE = 0, AGGREGATE = 1 };
enum { LOCATION_L2 = 1, LOCATION_DRAM = 2, LOCATION_SRAM = 7, LOCATIONS = 8 };

static nvmlReturn_t ecc_on(const struct target *target) {
	return world.board.ecc && !target->state->ecc_off ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
	GPU(current);
	REQUIRE(pending != NULL, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(world.board.ecc, NVML_ERROR_NOT_SUPPORTED);
	*current = !target.state->ecc_off;
	*pending = !target.state->ecc_off_pending;
	return NVML_SUCCESS;
}

// ECC changes with the next reset.
EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode) {
	BEGIN();
	struct target target;
	TRY(gpu_of(&call, device, &target));
	REQUIRE(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(world.board.ecc, NVML_ERROR_NOT_SUPPORTED);
	TRY(change());
	target.state->ecc_off_pending = !mode;
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned int *mode) {
	GPU(mode);
	REQUIRE(world.board.ecc, NVML_ERROR_NOT_SUPPORTED);
	*mode = 1;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned long long *count) {
	GPU(count);
	REQUIRE(type <= UNCORRECTED && counter <= AGGREGATE, NVML_ERROR_INVALID_ARGUMENT);
	TRY(ecc_on(&target));
	const struct gpu_state *s = target.state;
	if (type == CORRECTED)
		*count = counter == VOLATILE ? s->sbe_volatile : s->sbe_aggregate;
	else
		*count = counter == VOLATILE ? s->dbe_volatile + s->sram_volatile : s->dbe_aggregate + s->sram_aggregate;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                    unsigned int location, unsigned long long *count) {
	GPU(count);
	REQUIRE(type <= UNCORRECTED && counter <= AGGREGATE && location < LOCATIONS, NVML_ERROR_INVALID_ARGUMENT);
	TRY(ecc_on(&target));
	const struct gpu_state *s = target.state;
	*count = 0;
	if (location == LOCATION_DRAM && type == CORRECTED)
		*count = counter == VOLATILE ? s->sbe_volatile : s->sbe_aggregate;
	else if (location == LOCATION_DRAM)
		*count = counter == VOLATILE ? s->dbe_volatile : s->dbe_aggregate;
	else if ((location == LOCATION_L2 || location == LOCATION_SRAM) && type == UNCORRECTED)
		*count = counter == VOLATILE ? s->sram_volatile : s->sram_aggregate;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned int counter) {
	BEGIN();
	struct target target;
	TRY(gpu_of(&call, device, &target));
	REQUIRE(counter <= AGGREGATE, NVML_ERROR_INVALID_ARGUMENT);
	TRY(ecc_on(&target));
	TRY(change());
	struct gpu_state *s = target.state;
	if (counter == VOLATILE)
		s->sbe_volatile = s->dbe_volatile = s->sram_volatile = 0;
	else
		s->sbe_aggregate = s->dbe_aggregate = s->sram_aggregate = s->sram_threshold = 0;
	return keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status) {
	GPU(status);
	REQUIRE(status->version == STRUCT_VERSION(nvmlEccSramErrorStatus_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	REQUIRE(world.board.row_remap, NVML_ERROR_NOT_SUPPORTED); // Ampere and later
	TRY(ecc_on(&target));
	const struct gpu_state *s = target.state;
	*status = (nvmlEccSramErrorStatus_v1_t){
		.version = status->version, .aggregateUncSecDed = s->sram_aggregate, .volatileUncSecDed = s->sram_volatile,
		.bucketL2 = s->sram_aggregate, .thresholdExceeded = s->sram_threshold != 0,
	};
	return NVML_SUCCESS;
}

// ---- Remapped rows: Ampere and later, and not in MIG mode.

static nvmlReturn_t remaps(const struct target *target) {
	return world.board.row_remap && !target->state->mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                              unsigned int *pending, unsigned int *failure) {
	GPU(correctable);
	REQUIRE(uncorrectable != NULL && pending != NULL && failure != NULL, NVML_ERROR_INVALID_ARGUMENT);
	TRY(remaps(&target));
	const struct gpu_state *s = target.state;
	*correctable = (unsigned)s->remap_correctable;
	*uncorrectable = (unsigned)s->remap_uncorrectable;
	*pending = s->remap_pending != 0;
	*failure = s->remap_failure != 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info) {
	GPU(info);
	TRY(remaps(&target));
	const struct gpu_state *s = target.state;
	*info = (nvmlRemappedRowsInfo_v2_t){
		.corrActive = (unsigned)s->remap_correctable, .uncActive = (unsigned)s->remap_uncorrectable,
		.pending = s->remap_pending != 0, .failure = s->remap_failure != 0,
	};
	return NVML_SUCCESS;
}

// Each row that is remapped takes from a bank that had all its spare rows.
EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) {
	enum { BANKS = 640 };
	GPU(values);
	TRY(remaps(&target));
	uint64_t used = target.state->remap_correctable + target.state->remap_uncorrectable;
	unsigned high = used > BANKS - 1 ? BANKS - 1 : (unsigned)used;
	unsigned none = target.state->remap_failure ? 1 : 0;
	*values = (nvmlRowRemapperHistogramValues_t){.max = BANKS - high - none, .high = high, .none = none};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_v1_t *status) {
	GPU(status);
	REQUIRE(status->version == STRUCT_VERSION(nvmlRepairStatus_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	REQUIRE(world.board.row_remap, NVML_ERROR_NOT_SUPPORTED);
	status->channelRepairPending = status->tpcRepairPending = 0;
	return NVML_SUCCESS;
}

// ---- Retired pages: before Ampere.

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *addresses) {
	enum { SINGLE_BIT = 0, DOUBLE_BIT = 1, PAGE = 1 << 16 };
	GPU(count);
	REQUIRE(cause <= DOUBLE_BIT, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(world.board.page_retirement, NVML_ERROR_NOT_SUPPORTED);
	unsigned room = *count;
	uint64_t retired = cause == SINGLE_BIT ? target.state->retired_sbe : target.state->retired_dbe;
	*count = (unsigned)retired;
	REQUIRE(room >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
	REQUIRE(*count == 0 || addresses != NULL, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; i < *count; i++)
		addresses[i] = (unsigned long long)(2 * i + cause) * PAGE;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending) {
	GPU(pending);
	REQUIRE(world.board.page_retirement, NVML_ERROR_NOT_SUPPORTED);
	*pending = target.state->retired_pending != 0;
	return NVML_SUCCESS;
}
