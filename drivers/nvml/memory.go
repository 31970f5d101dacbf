package nvml

// This file remembers the GPUs that were seen since the node has booted, over
// restarts of the driver: one that is gone by then must be missed.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"gpuladder.dev/ladder/drivers/bootid"
	"gpuladder.dev/ladder/drivers/durable"
)

// memorySchema is the version of the file. One of another version is forgotten:
// the GPUs that are there are found anyhow.
const memorySchema = 1

type memory struct {
	Schema int          `json:"schema"`
	BootID string       `json:"bootID"`
	GPUs   []remembered `json:"gpus"`
}

type remembered struct {
	identity
	published
	// Links are the NVLinks that were up.
	Links []int `json:"links,omitempty"`
}

// remember reads the file. GPUs that the policy does not include any more are
// forgotten.
func (i *Inventory) remember() error {
	if i.config.MemoryFile == "" {
		return nil
	}
	var err error
	if i.bootID, err = bootid.Read(i.config.BootIDFile); err != nil {
		return err
	}
	data, err := os.ReadFile(i.config.MemoryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the GPUs of this boot, %w", err)
	}
	var read memory
	if err := json.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("reading the GPUs of this boot, %s is damaged, %w", i.config.MemoryFile, err)
	}
	if read.Schema != memorySchema {
		return fmt.Errorf("reading the GPUs of this boot, %s has schema version %d, this driver knows %d", i.config.MemoryFile, read.Schema, memorySchema)
	}
	if read.BootID != i.bootID {
		return nil
	}
	for _, r := range read.GPUs {
		if i.config.Policy.GPUs.includes(&r.identity) {
			i.gpus[r.Address.name()] = &gpu{identity: r.identity, published: r.published, links: r.Links, uncorrectable: -1}
		}
	}
	return nil
}

// save writes the file; mu is held.
func (i *Inventory) save() error {
	if i.config.MemoryFile == "" || i.bootID == "" {
		return nil
	}
	written := memory{Schema: memorySchema, BootID: i.bootID, GPUs: []remembered{}}
	for _, g := range i.sorted() {
		written.GPUs = append(written.GPUs, remembered{g.identity, g.published, g.links})
	}
	data, err := json.Marshal(written)
	if err != nil {
		return fmt.Errorf("encoding the GPUs of this boot, %w", err)
	}
	if err := durable.WriteFile(i.config.MemoryFile, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the GPUs of this boot, %w", err)
	}
	return nil
}
