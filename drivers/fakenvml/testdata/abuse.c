// A program that is linked with the library's own sources, so that a sanitizer
// watches both: calls with wrong handles and without room for results, the life
// of a MIG device, and files that are cut off or changed at any place.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/abi.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char *, unsigned);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t, unsigned, unsigned long *);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned, unsigned *);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t, unsigned, nvmlGpuInstanceProfileInfo_t *);
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t, unsigned, nvmlGpuInstance_t *);
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t);
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t, unsigned, nvmlComputeInstance_t *);
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t, unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t, nvmlDeviceAttributes_t *);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t *, unsigned);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t);

#define MUST(expression)                                                                       \
	do {                                                                                   \
		nvmlReturn_t got_ = (expression);                                              \
		if (got_ != NVML_SUCCESS) {                                                    \
			fprintf(stderr, "line %d: %s: %d\n", __LINE__, #expression, (int)got_); \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

static void wrong_handles(void) {
	uintptr_t values[] = {0, 1, 0x4E56, (uintptr_t)0x4E56 << 48, ~(uintptr_t)0, (uintptr_t)0x4E561FFFFFFFFFFF,
		(uintptr_t)0x4E562FFFFFFFFFFF, (uintptr_t)0x4E565000000000FF, (uintptr_t)&values};
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		void *handle = (void *)values[i];
		char text[8];
		nvmlFieldValue_t field = {.fieldId = 1};
		nvmlEventData_t data;
		nvmlDeviceAttributes_t attributes;
		nvmlDeviceGetName(handle, text, sizeof(text));
		nvmlDeviceGetFieldValues(handle, 1, &field);
		nvmlDeviceGetAttributes_v2(handle, &attributes);
		nvmlGpuInstanceDestroy(handle);
		nvmlComputeInstanceDestroy(handle);
		nvmlEventSetWait_v2(handle, &data, 0);
		nvmlEventSetFree(handle);
	}
}

static void little_room(nvmlDevice_t device) {
	for (unsigned size = 0; size < 64; size++) {
		char *text = malloc(size ? size : 1);
		nvmlDeviceGetName(device, text, size);
		nvmlDeviceGetUUID(device, text, size);
		free(text);
	}
	unsigned long set[1];
	nvmlDeviceGetCpuAffinity(device, 1, set);
	unsigned up;
	for (unsigned link = 0; link < 100; link++)
		nvmlDeviceGetNvLinkState(device, link, &up);
	nvmlFieldValue_t fields[400];
	for (int i = 0; i < 400; i++)
		fields[i] = (nvmlFieldValue_t){.fieldId = (unsigned)i, .scopeId = (unsigned)i * 7};
	MUST(nvmlDeviceGetFieldValues(device, 400, fields));
	nvmlDeviceGetHandleByPciBusId_v2("99999999999999999:9999999:99999.", &device);
	nvmlDeviceGetName(NULL, NULL, 0);
	nvmlDeviceGetPciInfo_v3(device, NULL);
	nvmlDeviceGetFieldValues(device, -1, fields);
}

static void life(nvmlDevice_t device) {
	nvmlGpuInstance_t gi;
	nvmlComputeInstance_t ci;
	nvmlDevice_t mig;
	char text[96];
	nvmlDeviceAttributes_t attributes;
	for (unsigned i = 0; i < 3; i++) {
		MUST(nvmlDeviceCreateGpuInstance(device, 9, &gi));
		MUST(nvmlGpuInstanceCreateComputeInstance(gi, 2, &ci));
		MUST(nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mig));
		MUST(nvmlDeviceGetName(mig, text, sizeof(text)));
		MUST(nvmlDeviceGetUUID(mig, text, sizeof(text)));
		MUST(nvmlDeviceGetHandleByUUID(text, &mig));
		MUST(nvmlDeviceGetAttributes_v2(mig, &attributes));
		MUST(nvmlComputeInstanceDestroy(ci));
		MUST(nvmlGpuInstanceDestroy(gi));
	}
}

static void *busy(void *device) {
	for (int i = 0; i < 20; i++)
		life(device);
	return NULL;
}

static void *watching(void *device) {
	nvmlEventSet_t set;
	nvmlEventData_t data;
	MUST(nvmlEventSetCreate(&set));
	MUST(nvmlDeviceRegisterEvents(device, EVENT_XID, set));
	for (int i = 0; i < 20; i++)
		nvmlEventSetWait_v2(set, &data, 5);
	MUST(nvmlEventSetFree(set));
	return NULL;
}

static void threads(nvmlDevice_t first, nvmlDevice_t second) {
	pthread_t all[4];
	pthread_create(&all[0], NULL, busy, first);
	pthread_create(&all[1], NULL, busy, second);
	pthread_create(&all[2], NULL, watching, first);
	pthread_create(&all[3], NULL, watching, second);
	for (int i = 0; i < 4; i++)
		pthread_join(all[i], NULL);
}

static char *slurp(const char *path, size_t *size) {
	FILE *file = fopen(path, "r");
	char *text = malloc(1 << 16);
	if (file == NULL || text == NULL)
		exit(1);
	*size = fread(text, 1, 1 << 16, file);
	fclose(file);
	return text;
}

static void spill(const char *path, const char *text, size_t size) {
	FILE *file = fopen(path, "w");
	if (file == NULL || fwrite(text, 1, size, file) != size)
		exit(1);
	fclose(file);
}

// use goes where the numbers of the files are used.
static void use(void) {
	unsigned count = 0;
	nvmlDevice_t device, mig;
	nvmlGpuInstance_t gi;
	nvmlComputeInstance_t ci;
	nvmlFieldValue_t field = {.fieldId = 165, .scopeId = 17};
	nvmlPciInfo_t pci;
	unsigned long set[2];
	char text[96];
	if (nvmlInit_v2() != NVML_SUCCESS)
		return;
	nvmlDeviceGetCount_v2(&count);
	for (unsigned i = 0; i < count; i++) {
		if (nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS)
			continue;
		nvmlDeviceGetName(device, text, sizeof(text));
		nvmlDeviceGetFieldValues(device, 1, &field);
		nvmlDeviceGetPciInfo_v3(device, &pci);
		nvmlDeviceGetCpuAffinity(device, 2, set);
		for (unsigned m = 0; nvmlDeviceGetMigDeviceHandleByIndex(device, m, &mig) == NVML_SUCCESS; m++) {
			nvmlDeviceAttributes_t attributes;
			nvmlDeviceGetUUID(mig, text, sizeof(text));
			nvmlDeviceGetAttributes_v2(mig, &attributes);
		}
		if (nvmlDeviceCreateGpuInstance(device, 19, &gi) == NVML_SUCCESS) {
			nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci);
			nvmlGpuInstanceDestroy(gi);
		}
	}
	nvmlShutdown();
}

static void spoil(const char *path) {
	size_t size;
	char *text = slurp(path, &size), *spoiled = malloc(size + 1);
	srand(1);
	for (int i = 0; i < 600; i++) {
		memcpy(spoiled, text, size);
		size_t left = size;
		if (i % 3 == 0)
			left = (size_t)rand() % size;
		for (int n = rand() % 3 + (i % 3 != 0); n > 0; n--)
			spoiled[(size_t)rand() % size] = "0123456789 -\nzgi\xff"[rand() % 17];
		spill(path, spoiled, left);
		use();
	}
	spill(path, text, size);
	free(spoiled);
	free(text);
}

int main(int argc, char **argv) {
	nvmlDevice_t first, second;
	if (argc != 3)
		return 2;
	wrong_handles();
	MUST(nvmlInit_v2());
	MUST(nvmlDeviceGetHandleByIndex_v2(0, &first));
	MUST(nvmlDeviceGetHandleByIndex_v2(1, &second));
	wrong_handles();
	little_room(first);
	life(first);
	threads(first, second);
	MUST(nvmlShutdown());
	use();
	spoil(argv[1]);
	spoil(argv[2]);
	use();
	puts("done");
	return 0;
}
