package cdi

// This file keeps the spec files.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/durable"
)

// Folder is where the runtime looks for CDI specs. It holds the files of other
// drivers too, which are left alone.
type Folder struct {
	path, driver string
}

// NewFolder returns a folder, which need not exist.
func NewFolder(path, driver string) *Folder { return &Folder{path: path, driver: driver} }

// Path of the file of a claim: gpu.gpuladder.dev-claim_<uid>.json.
func (f *Folder) Path(uid types.UID) string {
	return filepath.Join(f.path, cdi.GenerateTransientSpecName(f.driver, Class, string(uid))+".json")
}

// Write makes the file of a claim hold what it should. A file that does is
// left as it is.
func (f *Folder) Write(uid types.UID, claim *checkpoint.Claim, edits Edits) error {
	spec, err := Spec(f.driver, uid, claim, edits)
	if err != nil {
		return fmt.Errorf("making CDI spec of claim %s, %w", uid, err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encoding CDI spec of claim %s, %w", uid, err)
	}
	path := f.Path(uid)
	if present, err := os.ReadFile(path); err == nil && bytes.Equal(present, data) {
		return nil
	}
	if err := os.MkdirAll(f.path, 0o755); err != nil {
		return fmt.Errorf("making CDI folder, %w", err)
	}
	if err := durable.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("writing CDI spec of claim %s, %w", uid, err)
	}
	return nil
}

// Remove removes the file of a claim. It is no error if there is none.
func (f *Folder) Remove(uid types.UID) error {
	if err := os.Remove(f.Path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing CDI spec of claim %s, %w", uid, err)
	}
	return nil
}

// Claims returns the claims that have a file, as the files describe them; nil
// for one whose file can't be read. What a crash left of files that were being
// written is removed.
func (f *Folder) Claims() (map[types.UID]*checkpoint.Claim, error) {
	entries, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CDI folder, %w", err)
	}
	prefix := filepath.Base(f.Path(""))
	prefix = strings.TrimSuffix(prefix, ".json")
	claims := map[types.UID]*checkpoint.Claim{}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, "."+prefix) && strings.HasSuffix(name, ".tmp") {
			if err := os.Remove(filepath.Join(f.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("removing leftover, %w", err)
			}
			continue
		}
		uid, ours := strings.CutPrefix(name, prefix)
		uid, file := strings.CutSuffix(uid, ".json")
		if !ours || !file || uid == "" {
			continue
		}
		claims[types.UID(uid)] = f.describe(types.UID(uid))
	}
	return claims, nil
}

// describe returns nil for a file that says nothing of use.
func (f *Folder) describe(uid types.UID) *checkpoint.Claim {
	spec, err := cdi.ReadSpec(f.Path(uid), 0)
	if err != nil {
		return nil
	}
	claim := &checkpoint.Claim{}
	if json.Unmarshal([]byte(spec.Annotations[annotation]), claim) != nil || claim.Name == "" {
		return nil
	}
	return claim
}
