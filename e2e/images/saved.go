package images

// What builds have left in the cache.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// Archives is one build in the cache.
type Archives struct {
	Tag  string    `json:"tag"`
	Time time.Time `json:"time"`
	// Bytes is the size of all its archives.
	Bytes int64    `json:"bytes"`
	Files []string `json:"files"`
}

// Saved returns the builds that the cache holds, the newest first.
func Saved() ([]Archives, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return nil, err
	}
	return saved(filepath.Join(cache, "images"))
}

func saved(dir string) ([]Archives, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing archives of images, %w", err)
	}
	var found []Archives
	for _, entry := range entries {
		if !entry.IsDir() || !isOurTag(entry.Name()) {
			continue
		}
		a := Archives{Tag: entry.Name()}
		files, err := filepath.Glob(filepath.Join(dir, entry.Name(), "*.tar"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				return nil, fmt.Errorf("listing archives of images, %w", err)
			}
			a.Bytes += info.Size()
			a.Files = append(a.Files, file)
			if info.ModTime().After(a.Time) {
				a.Time = info.ModTime()
			}
		}
		found = append(found, a)
	}
	slices.SortFunc(found, func(a, b Archives) int { return b.Time.Compare(a.Time) })
	return found, nil
}
