// Beginning and end, versions, and what errors are called.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakenvml.h"

// find_folder is FAKENVML_DIR, or where this library lies.
static bool find_folder(void) {
	const char *named = getenv("FAKENVML_DIR");
	if (named != NULL && *named != '\0')
		return copy_text(world.folder, sizeof(world.folder), named);
	Dl_info info;
	if (dladdr((void *)&world, &info) == 0 || !copy_text(world.folder, sizeof(world.folder), info.dli_fname))
		return false;
	char *slash = strrchr(world.folder, '/');
	if (slash == NULL)
		return copy_text(world.folder, sizeof(world.folder), ".");
	*slash = '\0';
	return true;
}

static nvmlReturn_t start(void) {
	REQUIRE(find_folder(), NVML_ERROR_OPERATING_SYSTEM);
	TRY(board_load(world.folder, &world.board));
	state_forget();
	return NVML_SUCCESS;
}

static nvmlReturn_t init(struct call *call) {
	TRY(call_begin_uninitialized(call));
	if (world.references == 0)
		TRY(start());
	world.references++;
	call_end(call);
	nvmlReturn_t result = call_begin(call); // where faults for nvmlInit are
	if (result != NVML_SUCCESS && world.references > 0)
		world.references--;
	return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	return init(&call);
}

EXPORT nvmlReturn_t nvmlInit(void) {
	return nvmlInit_v2();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
	(void)flags; // GPUs are never attached in a way that could fail
	return nvmlInit_v2();
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
	struct call call __attribute__((cleanup(call_end))) = {__func__, false};
	TRY(call_begin_uninitialized(&call));
	REQUIRE(world.references > 0, NVML_ERROR_UNINITIALIZED);
	if (--world.references == 0)
		state_forget();
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
	case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_OPERATING_SYSTEM: return "GPU access blocked by the operating system";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_IN_USE: return "In use by another client";
	case NVML_ERROR_MEMORY: return "Insufficient Memory";
	case NVML_ERROR_NO_DATA: return "No data";
	case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU ECC Not Supported";
	case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Frequency Not Supported";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
	case NVML_ERROR_DEPRECATED: return "Deprecated";
	case NVML_ERROR_NOT_READY: return "Not Ready";
	case NVML_ERROR_GPU_NOT_FOUND: return "GPU Not Found";
	case NVML_ERROR_INVALID_STATE: return "Invalid State";
	case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: return "Reset Type Not Supported";
	case NVML_ERROR_UNKNOWN: break;
	}
	return "Unknown Error";
}

nvmlReturn_t give(char *to, unsigned int length, const char *text) {
	REQUIRE(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
	return copy_text(to, length, text) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	BEGIN();
	return give(version, length, world.board.driver);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
	BEGIN();
	return give(version, length, world.board.nvml);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
	BEGIN();
	REQUIRE(version != NULL, NVML_ERROR_INVALID_ARGUMENT);
	*version = (int)world.board.cuda;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
	BEGIN();
	char path[64], text[4096] = "";
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	REQUIRE(file != NULL, NVML_ERROR_NOT_FOUND);
	size_t got = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[got] = '\0';
	return give(name, length, *text == '\0' ? "-" : text);
}
