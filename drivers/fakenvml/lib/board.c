// The board that is simulated: file board.conf, which says what nvidia-smi
// would print of it. It is read once per nvmlInit.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakenvml.h"

// Texts and numbers of the file. All of them must be there, once.
static const struct text {
	const char *name;
	size_t offset, size;
} texts[] = {
#define TEXT(name) {#name, offsetof(struct board, name), sizeof(((struct board *)0)->name)}
	TEXT(name), TEXT(driver), TEXT(nvml), TEXT(vbios), TEXT(part_number),
#undef TEXT
};

static const struct number {
	const char *name;
	size_t offset;
} numbers[] = {
#define X(name) {#name, offsetof(struct board, name)},
	BOARD_NUMBERS(X)
#undef X
};

enum {
	TEXTS = sizeof(texts) / sizeof(texts[0]),
	NUMBERS = sizeof(numbers) / sizeof(numbers[0]),
};

// profile NAME index id slices instances SMs CE DEC ENC JPEG OFA MiB size compute-profile start...
static bool read_profile(const struct line *line, struct board *board) {
	enum { FIXED = 15 };
	unsigned starts = line->words - FIXED;
	if (line->words <= FIXED || starts > MAX_STARTS || board->profile_count == MAX_PROFILES)
		return false;
	struct mig_profile *p = &board->profiles[board->profile_count++];
	if (!copy_text(p->name, sizeof(p->name), line->word[1]))
		return false;
	unsigned *fields[] = {
		&p->index, &p->id, &p->slices, &p->instances, &p->multiprocessors, &p->copy_engines, &p->decoders,
		&p->encoders, &p->jpeg_engines, &p->ofa_engines, &p->memory_mb, &p->size, &p->compute_profile,
	};
	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!parse_unsigned(line->word[2 + i], 1 << 20, fields[i]))
			return false;
	if (p->index >= GPU_INSTANCE_PROFILES || p->compute_profile >= COMPUTE_INSTANCE_PROFILES)
		return false;
	if (p->size < 1 || p->size > MEMORY_SLICES || p->slices < 1 || p->slices > MEMORY_SLICES)
		return false;
	p->start_count = starts;
	for (unsigned i = 0; i < starts; i++)
		if (!parse_unsigned(line->word[FIXED + i], MEMORY_SLICES - p->size, &p->starts[i]))
			return false;
	return true;
}

// gpu UUID serial domain bus device root-bus minor NUMA-node module
static bool read_gpu(const struct line *line, struct board *board) {
	if (line->words != 10 || board->gpu_count == MAX_GPUS)
		return false;
	struct gpu *gpu = &board->gpus[board->gpu_count++];
	return copy_text(gpu->uuid, sizeof(gpu->uuid), line->word[1]) &&
	       strlen(gpu->uuid) == UUID_SIZE - 1 &&
	       copy_text(gpu->serial, sizeof(gpu->serial), line->word[2]) &&
	       parse_unsigned(line->word[3], 0xFFFFFF, &gpu->domain) &&
	       parse_unsigned(line->word[4], 0xFF, &gpu->bus) &&
	       parse_unsigned(line->word[5], 0x1F, &gpu->device) &&
	       parse_unsigned(line->word[6], 0xFF, &gpu->root) &&
	       parse_unsigned(line->word[7], 255, &gpu->minor) &&
	       parse_unsigned(line->word[8], 63, &gpu->numa) &&
	       parse_unsigned(line->word[9], 255, &gpu->module);
}

static bool read_line(const struct line *line, struct board *board, bool *seen) {
	if (strcmp(line->word[0], "gpu") == 0)
		return read_gpu(line, board);
	if (strcmp(line->word[0], "profile") == 0)
		return read_profile(line, board);
	for (unsigned i = 0; i < TEXTS; i++) {
		if (strcmp(line->word[0], texts[i].name) != 0)
			continue;
		if (seen[i])
			return false;
		seen[i] = true;
		return copy_text((char *)board + texts[i].offset, texts[i].size, line->rest);
	}
	for (unsigned i = 0; i < NUMBERS; i++) {
		if (strcmp(line->word[0], numbers[i].name) != 0)
			continue;
		if (seen[TEXTS + i] || line->words != 2)
			return false;
		seen[TEXTS + i] = true;
		return parse_number(line->word[1], UINT64_MAX, (uint64_t *)((char *)board + numbers[i].offset));
	}
	return false;
}

static bool read_board(char *text, struct board *board) {
	struct line line;
	char store[1024];
	bool seen[TEXTS + NUMBERS] = {false};
	if (next_line(&text, &line, store, sizeof(store)) != 1 || line.words != 2 ||
	    strcmp(line.word[0], "fakenvml-board") != 0 || strcmp(line.word[1], "1") != 0)
		return false;
	for (;;) {
		int next = next_line(&text, &line, store, sizeof(store));
		if (next < 0 || (next > 0 && !read_line(&line, board, seen)))
			return false;
		if (next == 0)
			break;
	}
	for (unsigned i = 0; i < TEXTS + NUMBERS; i++)
		if (!seen[i])
			return false;
	// A link is a bit of a mask of 64, and a mask of CPUs is one of words.
	return board->nvlinks <= 36 && board->cpus_per_node <= 1024 && board->reserved <= board->memory;
}

nvmlReturn_t board_load(const char *folder, struct board *board) {
	char path[4200];
	snprintf(path, sizeof(path), "%s/board.conf", folder);
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	if (descriptor < 0)
		return errno == ENOENT || errno == ENOTDIR ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_OPERATING_SYSTEM;
	char *text = read_text(descriptor);
	close(descriptor);
	if (text == NULL)
		return errno == EINVAL || errno == EFBIG ? NVML_ERROR_UNKNOWN : NVML_ERROR_OPERATING_SYSTEM;
	memset(board, 0, sizeof(*board));
	bool read = read_board(text, board);
	free(text);
	return read ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
