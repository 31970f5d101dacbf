// Package durable writes files that are either whole or not there, also after
// a crash or a power cut.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// suffix of temporary files. Their names begin with a dot and the name of the
// file that is to be replaced, as those of the kubelet plugin library do.
const suffix = ".tmp"

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
	tmp, err := os.CreateTemp(folder, "."+filepath.Base(path)+".*"+suffix)
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
		if err = keep(path, previous, strings.TrimSuffix(tmp.Name(), suffix)+".previous"+suffix); err != nil {
			return err
		}
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("replacing %s, %w", path, err)
	}
	return SyncFolder(folder)
}

// keep makes previous a second name of the file at path, if there is one. The
// third name, link, is of this writer alone, since others may write too.
func keep(path, previous, link string) error {
	err := os.Link(path, link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keeping %s, %w", path, err)
	}
	err = os.Rename(link, previous)
	// Renaming does nothing where both are names of one file already, as after a
	// crash just before path was replaced.
	if left := os.Remove(link); err == nil && left != nil && !errors.Is(left, fs.ErrNotExist) {
		err = left
	}
	if err != nil {
		return fmt.Errorf("keeping %s, %w", path, err)
	}
	return nil
}

// Sweep removes the temporary files in a folder that writers who were killed
// have left, of files whose names begin with prefix. It must not be called
// while anyone may be writing such a file. It returns the names of what it has
// removed; a folder that is not there has none.
func Sweep(folder, prefix string) (removed []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for leftovers, %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !entry.Type().IsRegular() || !strings.HasPrefix(name, "."+prefix) || !strings.HasSuffix(name, suffix) {
			continue
		}
		if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("removing leftover, %w", err)
		}
		removed = append(removed, name)
	}
	return removed, nil
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
