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
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/durable"
)

// Folder is where the runtime looks for CDI specs. It holds the files of other
// drivers too, which are left alone.
type Folder struct {
	path, driver string

	// wrote are the files of this process, so that one need not be understood
	// anew that is as it was written.
	mu    sync.Mutex
	wrote map[types.UID]file
}

// file is what a file holds, and what its annotation says.
type file struct {
	data        []byte
	description string
}

// NewFolder returns a folder, which need not exist.
func NewFolder(path, driver string) *Folder {
	return &Folder{path: path, driver: driver, wrote: map[types.UID]file{}}
}

// Path of the file of a claim: gpu.gpuladder.dev-claim_<uid>.json.
func (f *Folder) Path(uid types.UID) string {
	return filepath.Join(f.path, cdi.GenerateTransientSpecName(f.driver, Class, string(uid))+".json")
}

// Write makes the file of a claim hold what it should. A file that does is
// left as it is.
func (f *Folder) Write(bootID string, uid types.UID, claim *checkpoint.Claim, edits Edits) error {
	spec, err := Spec(f.driver, bootID, uid, claim, edits)
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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrote[uid] = file{data, spec.Annotations[annotation]}
	return nil
}

// asWritten says whether this process has written the file as it is now, for
// what the description says.
func (f *Folder) asWritten(uid types.UID, description []byte) bool {
	f.mu.Lock()
	wrote, known := f.wrote[uid]
	f.mu.Unlock()
	if !known || wrote.description != string(description) {
		return false
	}
	present, err := os.ReadFile(f.Path(uid))
	return err == nil && bytes.Equal(present, wrote.data)
}

// Remove removes the file of a claim. It is no error if there is none.
func (f *Folder) Remove(uid types.UID) error {
	f.mu.Lock()
	delete(f.wrote, uid)
	f.mu.Unlock()
	if err := os.Remove(f.Path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing CDI spec of claim %s, %w", uid, err)
	}
	return nil
}

// Has says whether a claim has a file that was written for these devices in
// this boot of the node.
func (f *Folder) Has(bootID string, uid types.UID, claim *checkpoint.Claim) bool {
	// As it is written: quantities in memory differ by what was done with them.
	wanted, err := json.Marshal(describe(bootID, claim))
	if err != nil {
		return false
	}
	if f.asWritten(uid, wanted) {
		return true
	}
	described, err := f.read(uid)
	if err != nil {
		return false
	}
	is, err := json.Marshal(described)
	return err == nil && bytes.Equal(is, wanted)
}

// Claims returns the claims that have a file, as the files describe them; nil
// for one whose file can't be read or is of another boot of the node. What a
// crash left of files that were being written is removed.
func (f *Folder) Claims(bootID string) (map[types.UID]*checkpoint.Claim, error) {
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
		claims[types.UID(uid)] = nil
		if described, err := f.read(types.UID(uid)); err == nil && described.BootID == bootID {
			claims[types.UID(uid)] = &described.Claim
		}
	}
	return claims, nil
}

// errNotDescribed occurs for a spec that some other program has written.
var errNotDescribed = errors.New("it does not say for which claim it is")

// read returns what the file of a claim says about the claim.
func (f *Folder) read(uid types.UID) (description, error) {
	var described description
	spec, err := cdi.ReadSpec(f.Path(uid), 0)
	if err != nil {
		return described, err
	}
	if err := json.Unmarshal([]byte(spec.Annotations[annotation]), &described); err != nil {
		return described, err
	}
	if described.Name == "" {
		return described, errNotDescribed
	}
	return described, nil
}
