// The part of NVML's binary interface that this library speaks: names, values
// and layouts as programs that were built against NVIDIA's nvml.h expect them
// (API 13). Handles are opaque to those programs; here they are numbers that
// are never followed, so that a wrong one is an error and not a crash.
#ifndef FAKENVML_ABI_H
#define FAKENVML_ABI_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_ALREADY_INITIALIZED = 5,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_INSUFFICIENT_POWER = 8,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_IRQ_ISSUE = 11,
	NVML_ERROR_LIBRARY_NOT_FOUND = 12,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_CORRUPTED_INFOROM = 14,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_IN_USE = 19,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_NO_DATA = 21,
	NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_FREQ_NOT_SUPPORTED = 24,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_DEPRECATED = 26,
	NVML_ERROR_NOT_READY = 27,
	NVML_ERROR_GPU_NOT_FOUND = 28,
	NVML_ERROR_INVALID_STATE = 29,
	NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

// Versioned structures begin with their size and, in the highest byte, version.
#define STRUCT_VERSION(type, version) ((unsigned int)sizeof(type) | (unsigned int)(version) << 24)

enum { UUID_SIZE = 41, NAME_V2_SIZE = 96, FABRIC_UUID_SIZE = 16 };

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlBAR1Memory_t;

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device;
	unsigned int pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned int version;
	unsigned int domain, bus, device;
	unsigned int pciDeviceId, pciSubSystemId;
	unsigned int baseClass, subClass;
	char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
	unsigned int version, type;
	union {
		char str[UUID_SIZE];
		unsigned char bytes[16];
	} value;
} nvmlUUID_v1_t;

typedef struct {
	unsigned int version, value;
} nvmlDeviceAddressingMode_v1_t;

typedef struct {
	unsigned int version, channelRepairPending, tpcRepairPending;
} nvmlRepairStatus_v1_t;

typedef struct {
	unsigned int version, sensorType;
	int temperature;
} nvmlTemperature_v1_t;

typedef struct {
	unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
	unsigned int max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
	unsigned int corrActive, corrInactive, uncActive, uncInactive, pending, failure;
} nvmlRemappedRowsInfo_v2_t;

typedef struct {
	unsigned int version;
	unsigned long long aggregateUncParity, aggregateUncSecDed, aggregateCor;
	unsigned long long volatileUncParity, volatileUncSecDed, volatileCor;
	unsigned long long bucketL2, bucketSm, bucketPcie, bucketMcu, bucketOther;
	unsigned int thresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef struct {
	unsigned char clusterUuid[FABRIC_UUID_SIZE];
	unsigned int status, cliqueId;
	unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
	unsigned int version;
	unsigned char clusterUuid[FABRIC_UUID_SIZE];
	unsigned int status, cliqueId;
	unsigned char state;
	unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
	unsigned int version;
	unsigned char clusterUuid[FABRIC_UUID_SIZE];
	unsigned int status, cliqueId;
	unsigned char state;
	unsigned int healthMask;
	unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

// The event types that this library tells of.
enum {
	EVENT_SBE = 0x1,
	EVENT_DBE = 0x2,
	EVENT_PSTATE = 0x4,
	EVENT_XID = 0x8,
	EVENT_CLOCK = 0x10,
	EVENT_SBE_STORM = 0x200,
	EVENT_DRAM_RETIREMENT = 0x400,
	EVENT_DRAM_RETIREMENT_FAILURE = 0x800,
	EVENT_POISON = 0x1000,
	EVENT_FATAL_POISON = 0x2000,
	EVENT_UNAVAILABLE = 0x4000,
	EVENT_RECOVERY_ACTION = 0x8000,
};

typedef enum {
	VALUE_DOUBLE = 0,
	VALUE_UNSIGNED_INT = 1,
	VALUE_UNSIGNED_LONG = 2,
	VALUE_UNSIGNED_LONG_LONG = 3,
} nvmlValueType_t;

typedef struct {
	unsigned int fieldId, scopeId;
	long long timestamp, latencyUsec;
	nvmlValueType_t valueType;
	nvmlReturn_t nvmlReturn;
	union {
		double d;
		unsigned int u;
		unsigned long long ull;
	} value;
} nvmlFieldValue_t;

typedef struct {
	unsigned int start, size;
} nvmlGpuInstancePlacement_t, nvmlComputeInstancePlacement_t;

typedef struct {
	unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
	unsigned int version;
	unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[NAME_V2_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
	unsigned int version;
	unsigned int id, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[NAME_V2_SIZE];
	unsigned int capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	unsigned int id, profileId;
	nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	unsigned int id, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
	unsigned int version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[NAME_V2_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
	unsigned int version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[NAME_V2_SIZE];
	unsigned int capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpuInstance;
	unsigned int id, profileId;
	nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	unsigned int multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

enum { GPU_INSTANCE_PROFILES = 0x12, COMPUTE_INSTANCE_PROFILES = 0x9, ENGINE_PROFILES = 1 };

// The sizes are those of NVIDIA's header on 64-bit Linux.
#define SIZE_IS(type, size) _Static_assert(sizeof(type) == (size), #type)
SIZE_IS(nvmlMemory_t, 24);
SIZE_IS(nvmlMemory_v2_t, 40);
SIZE_IS(nvmlBAR1Memory_t, 24);
SIZE_IS(nvmlPciInfo_t, 68);
SIZE_IS(nvmlPciInfoExt_v1_t, 64);
SIZE_IS(nvmlUUID_v1_t, 52);
SIZE_IS(nvmlDeviceAddressingMode_v1_t, 8);
SIZE_IS(nvmlRepairStatus_v1_t, 12);
SIZE_IS(nvmlTemperature_v1_t, 12);
SIZE_IS(nvmlProcessInfo_v1_t, 16);
SIZE_IS(nvmlProcessInfo_v2_t, 24);
SIZE_IS(nvmlRowRemapperHistogramValues_t, 20);
SIZE_IS(nvmlRemappedRowsInfo_v2_t, 24);
SIZE_IS(nvmlEccSramErrorStatus_v1_t, 104);
SIZE_IS(nvmlGpuFabricInfo_t, 28);
SIZE_IS(nvmlGpuFabricInfo_v2_t, 36);
SIZE_IS(nvmlGpuFabricInfo_v3_t, 40);
SIZE_IS(nvmlEventData_t, 32);
SIZE_IS(nvmlFieldValue_t, 40);
SIZE_IS(nvmlGpuInstanceProfileInfo_t, 48);
SIZE_IS(nvmlGpuInstanceProfileInfo_v2_t, 152);
SIZE_IS(nvmlGpuInstanceProfileInfo_v3_t, 152);
SIZE_IS(nvmlGpuInstanceInfo_t, 24);
SIZE_IS(nvmlComputeInstanceProfileInfo_t, 36);
SIZE_IS(nvmlComputeInstanceProfileInfo_v2_t, 136);
SIZE_IS(nvmlComputeInstanceProfileInfo_v3_t, 140);
SIZE_IS(nvmlComputeInstanceInfo_t, 32);
SIZE_IS(nvmlDeviceAttributes_t, 40);

#endif
