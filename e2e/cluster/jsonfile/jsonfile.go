// Package jsonfile keeps small things that one process tells the next in files.
package jsonfile

import (
	"encoding/json"
	"fmt"
	"os"

	"gpuladder.dev/ladder/drivers/durable"
)

// Write puts v into the file, which is its owner's alone and is either what it
// was or whole.
func Write(path string, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s, %w", path, err)
	}
	return durable.WriteFile(path, append(content, '\n'), 0o600)
}

// Read fills into with what the file holds. The error is fs.ErrNotExist where
// there is none.
func Read(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("decoding %s, %w", path, err)
	}
	return nil
}
