package checkpoint

// This file damages the checkpoint, for the fault of that name.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Tear cuts the current file in the middle, as a machine that crashes during a
// write on a bad disk would. It is no error if there is no file.
func (s *Store) Tear(ctx context.Context) error {
	unlock, err := s.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	info, err := os.Stat(s.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Truncate(s.Path(), info.Size()/2)
	}
	if err != nil {
		return fmt.Errorf("cutting checkpoint, %w", err)
	}
	return nil
}
