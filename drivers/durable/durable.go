// Package durable writes files that are either whole or not there, also after
// a crash or a power cut.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile puts data into path: to a temporary file beside it, synced, then
// renamed, then the folder synced. When it returns nil the new content is on
// the disk; after an error or a crash path holds the old content or the new
// one, never a part.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return write(path, "", data, mode)
}

// ReplaceFile is WriteFile that keeps the content which it replaces in
// previous. There is no moment at which path is missing once it was there.
func ReplaceFile(path, previous string, data []byte, mode os.FileMode) error {
	return write(path, previous, data, mode)
}

func write(path, previous string, data []byte, mode os.FileMode) (err error) {
	folder := filepath.Dir(path)
	tmp, err := os.CreateTemp(folder, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("making temporary file, %w", err)
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()           // closed already, or the first error is the one to tell
			_ = os.Remove(tmp.Name()) // as above
		}
	}()
	if _, err = tmp.Write(data); err != nil {
		return fmt.Errorf("writing %s, %w", tmp.Name(), err)
	}
	if err = tmp.Chmod(mode); err != nil {
		return fmt.Errorf("setting mode of %s, %w", tmp.Name(), err)
	}
	if err = tmp.Sync(); err != nil {
		return fmt.Errorf("syncing %s, %w", tmp.Name(), err)
	}
	if err = tmp.Close(); err != nil {
		return fmt.Errorf("closing %s, %w", tmp.Name(), err)
	}
	if previous != "" {
		if err = keep(path, previous); err != nil {
			return err
		}
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("replacing %s, %w", path, err)
	}
	return SyncFolder(folder)
}

// keep makes previous a second name of the file at path, if there is one.
func keep(path, previous string) error {
	link := previous + ".tmp"
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing leftover %s, %w", link, err)
	}
	err := os.Link(path, link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keeping %s, %w", path, err)
	}
	if err := os.Rename(link, previous); err != nil {
		return fmt.Errorf("keeping %s, %w", path, err)
	}
	return nil
}

// SyncFolder makes what was renamed or removed in a folder last over a crash.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening folder %s, %w", path, err)
	}
	err = folder.Sync()
	return errors.Join(err, folder.Close())
}
