// Package bootid reads which boot of the node this is.
package bootid

import (
	"fmt"
	"os"
	"strings"
)

// Read returns the ID in a file such as /proc/sys/kernel/random/boot_id. An
// empty file, as of one that is just being written, is an error: it would make
// all boots one.
func Read(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading boot ID, %w", err)
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("reading boot ID, %s is empty", path)
	}
	return id, nil
}
