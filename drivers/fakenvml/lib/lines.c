// Lines of words, in which both files of this library are written. Whatever a
// file holds, reading it ends in an error and not in a crash.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakenvml.h"

enum { MAX_TEXT = 1 << 20 };

char *read_text(int descriptor) {
	size_t size = 0, room = 1 << 14;
	char *text = malloc(room);
	while (text != NULL) {
		ssize_t got = read(descriptor, text + size, room - size - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		if (got == 0) {
			text[size] = '\0';
			if (memchr(text, '\0', size) == NULL)
				return text;
			errno = EINVAL;
			break;
		}
		size += (size_t)got;
		if (size + 1 < room)
			continue;
		if (room >= MAX_TEXT) {
			errno = EFBIG;
			break;
		}
		char *larger = realloc(text, room *= 2);
		if (larger == NULL)
			break;
		text = larger;
	}
	free(text);
	return NULL;
}

int next_line(char **text, struct line *line, char *store, size_t store_size) {
	for (;;) {
		char *start = *text;
		if (*start == '\0')
			return 0;
		char *end = strchr(start, '\n');
		if (end == NULL)
			return -1; // cut off: every line that is whole has an end
		*text = end + 1;
		*end = '\0';
		if (*start == '\0' || *start == '#')
			continue;
		if (strlen(start) >= store_size)
			return -1;
		strcpy(store, start);
		line->words = 0;
		char *kept = NULL;
		for (char *word = strtok_r(store, " ", &kept); word != NULL; word = strtok_r(NULL, " ", &kept)) {
			if (line->words == MAX_WORDS)
				return -1;
			line->word[line->words++] = word;
		}
		if (line->words == 0)
			continue;
		char *space = strchr(start, ' ');
		line->rest = space == NULL ? end : space + 1;
		return 1;
	}
}

bool parse_number(const char *text, uint64_t max, uint64_t *value) {
	uint64_t sum = 0;
	if (*text == '\0')
		return false;
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9')
			return false;
		uint64_t digit = (uint64_t)(*text - '0');
		if (sum > (UINT64_MAX - digit) / 10)
			return false;
		sum = sum * 10 + digit;
	}
	*value = sum;
	return sum <= max;
}

bool parse_unsigned(const char *text, unsigned max, unsigned *value) {
	uint64_t wide;
	if (!parse_number(text, max, &wide))
		return false;
	*value = (unsigned)wide;
	return true;
}

bool copy_text(char *to, size_t size, const char *from) {
	size_t length = strlen(from);
	if (length == 0 || length >= size)
		return false;
	memcpy(to, from, length + 1);
	return true;
}
