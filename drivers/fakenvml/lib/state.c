// What has happened to the board: file state, which all processes that have
// loaded the library share, as they would the hardware. A change is made under
// a lock on file lock and by renaming, so a reader sees the old state or the new
// one. It outlives processes, not the machine: nothing is synced.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fakenvml.h"

static const struct entry {
	const char *name;
	size_t offset;
} entries[] = {
#define X(name) {#name, offsetof(struct gpu_state, name)},
	GPU_STATES(X)
#undef X
};

enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

// seen is the file that *state was read from. It is kept open, so that no
// other file can get its number.
static struct {
	int descriptor;
	bool missing; // there was none, which is a state too
	struct stat stat;
} seen = {.descriptor = -1};

static int changing = -1; // descriptor of the lock

static bool parse_gpu(const char *text, unsigned *gpu) {
	return parse_unsigned(text, MAX_GPUS - 1, gpu);
}

static bool parse_optional(const char *text, unsigned max, unsigned *value) {
	if (strcmp(text, "-") != 0)
		return parse_unsigned(text, max, value);
	*value = NONE;
	return true;
}

// gpu INDEX NAME VALUE
static bool read_gpu_state(const struct line *line, struct state *state) {
	unsigned gpu;
	if (line->words != 4 || !parse_gpu(line->word[1], &gpu))
		return false;
	for (unsigned i = 0; i < ENTRIES; i++)
		if (strcmp(line->word[2], entries[i].name) == 0)
			return parse_number(line->word[3], UINT64_MAX, (uint64_t *)((char *)&state->gpus[gpu] + entries[i].offset));
	return false;
}

// instance GPU ID PROFILE START SERIAL
static bool read_instance(const struct line *line, struct state *state) {
	if (line->words != 6 || state->instance_count == MAX_INSTANCES)
		return false;
	struct gpu_instance *made = &state->instances[state->instance_count++];
	return parse_gpu(line->word[1], &made->gpu) && parse_unsigned(line->word[2], 14, &made->id) &&
	       parse_unsigned(line->word[3], 255, &made->profile) &&
	       parse_unsigned(line->word[4], MEMORY_SLICES - 1, &made->start) &&
	       parse_unsigned(line->word[5], NONE, &made->serial);
}

// compute GPU GPU-INSTANCE ID PROFILE START MODE SERIAL
static bool read_compute(const struct line *line, struct state *state) {
	if (line->words != 8 || state->compute_count == MAX_INSTANCES)
		return false;
	struct compute_instance *made = &state->computes[state->compute_count++];
	return parse_gpu(line->word[1], &made->gpu) && parse_unsigned(line->word[2], 14, &made->gi) &&
	       parse_unsigned(line->word[3], 7, &made->id) &&
	       parse_unsigned(line->word[4], COMPUTE_INSTANCE_PROFILES - 1, &made->profile) &&
	       parse_unsigned(line->word[5], MEMORY_SLICES - 1, &made->start) &&
	       parse_unsigned(line->word[6], 3, &made->mode) && parse_unsigned(line->word[7], NONE, &made->serial);
}

// event SEQUENCE GPU TYPE DATA GPU-INSTANCE COMPUTE-INSTANCE
static bool read_event(const struct line *line, struct state *state) {
	if (line->words != 7 || state->event_count == MAX_EVENTS)
		return false;
	struct event *made = &state->events[state->event_count++];
	return parse_number(line->word[1], UINT64_MAX, &made->sequence) && parse_gpu(line->word[2], &made->gpu) &&
	       parse_number(line->word[3], UINT64_MAX, &made->type) && parse_number(line->word[4], UINT64_MAX, &made->data) &&
	       parse_optional(line->word[5], 14, &made->gi) && parse_optional(line->word[6], 7, &made->ci);
}

// hang FUNCTION GPU MILLISECONDS, or fail FUNCTION GPU RETURN
static bool read_fault(const struct line *line, struct state *state, enum fault_kind kind) {
	if (line->words != 4 || state->fault_count == MAX_FAULTS)
		return false;
	struct fault *made = &state->faults[state->fault_count++];
	made->kind = kind;
	return copy_text(made->function, sizeof(made->function), line->word[1]) &&
	       parse_optional(line->word[2], MAX_GPUS - 1, &made->gpu) &&
	       parse_number(line->word[3], kind == FAULT_FAIL ? NVML_ERROR_UNKNOWN : UINT32_MAX, &made->value);
}

// process GPU GPU-INSTANCE COMPUTE-INSTANCE PID BYTES
static bool read_process(const struct line *line, struct state *state) {
	if (line->words != 6 || state->process_count == MAX_PROCESSES)
		return false;
	struct process *made = &state->processes[state->process_count++];
	return parse_gpu(line->word[1], &made->gpu) && parse_optional(line->word[2], 14, &made->gi) &&
	       parse_optional(line->word[3], 7, &made->ci) && parse_unsigned(line->word[4], 1u << 30, &made->pid) &&
	       parse_number(line->word[5], UINT64_MAX, &made->memory);
}

static bool read_line(const struct line *line, struct state *state) {
	const char *what = line->word[0];
	if (strcmp(what, "gpu") == 0)
		return read_gpu_state(line, state);
	if (strcmp(what, "instance") == 0)
		return read_instance(line, state);
	if (strcmp(what, "compute") == 0)
		return read_compute(line, state);
	if (strcmp(what, "event") == 0)
		return read_event(line, state);
	if (strcmp(what, "hang") == 0)
		return read_fault(line, state, FAULT_HANG);
	if (strcmp(what, "fail") == 0)
		return read_fault(line, state, FAULT_FAIL);
	if (strcmp(what, "process") == 0)
		return read_process(line, state);
	if (line->words != 2)
		return false;
	if (strcmp(what, "unloaded") == 0)
		return parse_number(line->word[1], 1, &state->unloaded);
	if (strcmp(what, "sequence") == 0)
		return parse_number(line->word[1], UINT64_MAX, &state->sequence);
	if (strcmp(what, "serial") == 0)
		return parse_number(line->word[1], UINT32_MAX, &state->serial);
	return false;
}

static bool read_state(char *text, struct state *state) {
	struct line line;
	char store[512];
	memset(state, 0, sizeof(*state));
	if (next_line(&text, &line, store, sizeof(store)) != 1 || line.words != 2 ||
	    strcmp(line.word[0], "fakenvml-state") != 0 || strcmp(line.word[1], "1") != 0)
		return false;
	int next;
	while ((next = next_line(&text, &line, store, sizeof(store))) > 0)
		if (!read_line(&line, state))
			return false;
	return next == 0;
}

static bool unchanged(const struct stat *now) {
	return seen.descriptor >= 0 && now->st_dev == seen.stat.st_dev && now->st_ino == seen.stat.st_ino &&
	       now->st_size == seen.stat.st_size && now->st_mtim.tv_sec == seen.stat.st_mtim.tv_sec &&
	       now->st_mtim.tv_nsec == seen.stat.st_mtim.tv_nsec;
}

void state_forget(void) {
	if (seen.descriptor >= 0)
		close(seen.descriptor);
	seen.descriptor = -1;
	seen.missing = false;
}

nvmlReturn_t state_refresh(const char *folder, struct state *state) {
	char path[4200];
	struct stat now;
	snprintf(path, sizeof(path), "%s/state", folder);
	if (stat(path, &now) != 0) {
		if (errno != ENOENT)
			return NVML_ERROR_OPERATING_SYSTEM;
		if (!seen.missing) {
			state_forget();
			seen.missing = true;
			memset(state, 0, sizeof(*state));
		}
		return NVML_SUCCESS;
	}
	if (unchanged(&now))
		return NVML_SUCCESS;
	state_forget();
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	if (descriptor < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	char *text = fstat(descriptor, &now) == 0 ? read_text(descriptor) : NULL;
	bool read = text != NULL && read_state(text, state);
	free(text);
	if (!read) { // and it is read again each time, until it is whole
		close(descriptor);
		return NVML_ERROR_UNKNOWN;
	}
	seen.descriptor = descriptor;
	seen.stat = now;
	return NVML_SUCCESS;
}

static void write_optional(FILE *file, unsigned value) {
	if (value == NONE)
		fputs(" -", file);
	else
		fprintf(file, " %u", value);
}

static void write_state(FILE *file, const struct state *state) {
	fputs("fakenvml-state 1\n", file);
	fprintf(file, "unloaded %" PRIu64 "\nsequence %" PRIu64 "\nserial %" PRIu64 "\n", state->unloaded, state->sequence, state->serial);
	for (unsigned gpu = 0; gpu < MAX_GPUS; gpu++)
		for (unsigned i = 0; i < ENTRIES; i++) {
			uint64_t value = *(const uint64_t *)((const char *)&state->gpus[gpu] + entries[i].offset);
			if (value != 0)
				fprintf(file, "gpu %u %s %" PRIu64 "\n", gpu, entries[i].name, value);
		}
	for (unsigned i = 0; i < state->instance_count; i++) {
		const struct gpu_instance *g = &state->instances[i];
		fprintf(file, "instance %u %u %u %u %u\n", g->gpu, g->id, g->profile, g->start, g->serial);
	}
	for (unsigned i = 0; i < state->compute_count; i++) {
		const struct compute_instance *c = &state->computes[i];
		fprintf(file, "compute %u %u %u %u %u %u %u\n", c->gpu, c->gi, c->id, c->profile, c->start, c->mode, c->serial);
	}
	for (unsigned i = 0; i < state->event_count; i++) {
		const struct event *e = &state->events[i];
		fprintf(file, "event %" PRIu64 " %u %" PRIu64 " %" PRIu64, e->sequence, e->gpu, e->type, e->data);
		write_optional(file, e->gi);
		write_optional(file, e->ci);
		fputc('\n', file);
	}
	for (unsigned i = 0; i < state->fault_count; i++) {
		const struct fault *f = &state->faults[i];
		fprintf(file, "%s %s", f->kind == FAULT_HANG ? "hang" : "fail", f->function);
		write_optional(file, f->gpu);
		fprintf(file, " %" PRIu64 "\n", f->value);
	}
	for (unsigned i = 0; i < state->process_count; i++) {
		const struct process *p = &state->processes[i];
		fprintf(file, "process %u", p->gpu);
		write_optional(file, p->gi);
		write_optional(file, p->ci);
		fprintf(file, " %u %" PRIu64 "\n", p->pid, p->memory);
	}
}

nvmlReturn_t state_change(const char *folder, struct state *state) {
	char path[4200];
	snprintf(path, sizeof(path), "%s/lock", folder);
	changing = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (changing < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	int locked;
	do
		locked = flock(changing, LOCK_EX);
	while (locked != 0 && errno == EINTR);
	nvmlReturn_t result = locked == 0 ? state_refresh(folder, state) : NVML_ERROR_OPERATING_SYSTEM;
	if (result != NVML_SUCCESS)
		state_drop();
	return result;
}

nvmlReturn_t state_keep(const char *folder, struct state *state) {
	char path[4200], temporary[4200];
	snprintf(path, sizeof(path), "%s/state", folder);
	snprintf(temporary, sizeof(temporary), "%s/state.new", folder); // the lock's holder has it alone
	nvmlReturn_t result = NVML_ERROR_OPERATING_SYSTEM;
	FILE *file = fopen(temporary, "we");
	if (file != NULL) {
		write_state(file, state);
		bool written = ferror(file) == 0;
		written = fclose(file) == 0 && written;
		if (written && rename(temporary, path) == 0)
			result = NVML_SUCCESS;
		else
			unlink(temporary);
	}
	state_forget(); // what is in *state is read again, also after an error
	state_drop();
	return result;
}

void state_drop(void) {
	if (changing >= 0)
		close(changing); // and the lock with it
	changing = -1;
}
