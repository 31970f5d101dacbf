package main

// This file looks at what the container was given.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Where things are in a container. The names are those of the DRA driver, the
// device plugin and KEP-5304; they are repeated here since the probe is the
// witness of what those promise.
const (
	nodeFolder     = "dev/ladder"
	metadataFolder = "var/run/kubernetes.io/dra-device-attributes"
	metadataSuffix = "-metadata.json"

	variableVisible = "LADDER_VISIBLE_DEVICES"
	variableModel   = "LADDER_MODEL"
	variableDevice  = "LADDER_DEVICE_"
	variableNVIDIA  = "NVIDIA_VISIBLE_DEVICES"
)

// container is where the probe runs.
type container struct {
	root string
	env  []string
}

// Report is what the probe prints.
type Report struct {
	OK bool `json:"ok"`
	// Devices are those that the container has nodes for, in order.
	Devices []string `json:"devices"`
	// Visible are those that LADDER_VISIBLE_DEVICES names: with several claims
	// or requests in one container, only the last one's.
	Visible []string `json:"visible"`
	// Model is LADDER_MODEL.
	Model string `json:"model,omitempty"`
	// Models has the models by device, from the variables LADDER_DEVICE_*.
	Models map[string]string `json:"models,omitempty"`
	// UUIDs are those of NVIDIA_VISIBLE_DEVICES.
	UUIDs []string `json:"uuids,omitempty"`
	// Metadata are the metadata files that were found.
	Metadata []Metadata `json:"metadata,omitempty"`
	// Problems say what does not add up.
	Problems []string `json:"problems,omitempty"`
}

// Metadata is one file of device metadata.
type Metadata struct {
	// File is its path below the folder of metadata.
	File string `json:"file"`
	// Devices are those that it tells of, as driver/pool/device.
	Devices []string `json:"devices"`
}

// giver is who gave the container its GPUs.
type giver int

const (
	fakeDriver giver = iota // the DRA driver of fake GPUs
	nvmlDriver              // the DRA driver of NVIDIA's GPUs
	devicePlugin
)

// look checks everything; it goes on after a problem, so that one line says all.
func (c container) look(from giver, expect int) Report {
	env := map[string]string{}
	for _, variable := range c.env {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	var r Report
	r.Visible = list(env[variableVisible])
	r.Model = env[variableModel]
	if from == nvmlDriver {
		r.nvidia(c.root, env)
	} else {
		r.nodes(c.root)
	}
	switch visible, set := env[variableVisible]; {
	case !set:
		r.problem("%s is not set", variableVisible)
	case visible == "":
		r.problem("%s is empty", variableVisible)
	case !slices.IsSorted(r.Visible):
		r.problem("%s is not in order: %s", variableVisible, visible)
	}
	if r.Model == "" {
		r.problem("%s is not set", variableModel)
	}
	for _, device := range r.Visible {
		if !slices.Contains(r.Devices, device) {
			r.problem("device %s of %s is not there", device, variableVisible)
		}
	}
	if from == devicePlugin {
		r.legacy(env)
	} else {
		r.each(env)
		r.metadata(c.root)
	}
	if expect >= 0 && len(r.Devices) != expect {
		r.problem("there are %d devices, not %d", len(r.Devices), expect)
	}
	r.OK = len(r.Problems) == 0
	return r
}

func (r *Report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// nodes finds the device nodes: character devices, for what stands for a GPU.
func (r *Report) nodes(root string) {
	r.Devices = []string{}
	folder := filepath.Join(root, nodeFolder)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problem("reading /%s: %v", nodeFolder, err)
	}
	for _, entry := range entries {
		r.Devices = append(r.Devices, entry.Name())
		node, err := os.OpenFile(filepath.Join(folder, entry.Name()), os.O_RDWR, 0)
		if err != nil {
			r.problem("/%s/%s does not open: %v", nodeFolder, entry.Name(), errors.Unwrap(err))
			continue
		}
		if info, err := node.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			r.problem("/%s/%s is no character device", nodeFolder, entry.Name())
		}
		_ = node.Close()
	}
}

// each compares the variables of single devices with the nodes: both add up,
// whatever requests and claims the container uses.
func (r *Report) each(env map[string]string) {
	r.Models = map[string]string{}
	variables := map[string]string{} // by the device that they mean
	for name, model := range env {
		if device, is := strings.CutPrefix(name, variableDevice); is {
			variables[device] = model
		}
	}
	for _, device := range r.Devices {
		upper := strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(device))
		model, set := variables[upper]
		if !set {
			r.problem("%s%s is not set, and /%s/%s is there", variableDevice, upper, nodeFolder, device)
			continue
		}
		r.Models[device] = model
		delete(variables, upper)
	}
	for _, upper := range slices.Sorted(maps.Keys(variables)) {
		r.problem("%s%s is set, and no device in /%s is meant", variableDevice, upper, nodeFolder)
	}
}

// legacy checks the variables of the device plugin.
func (r *Report) legacy(env map[string]string) {
	r.UUIDs = list(env[variableNVIDIA])
	if len(r.UUIDs) != len(r.Visible) {
		r.problem("%s names %d devices and %s %d", variableNVIDIA, len(r.UUIDs), variableVisible, len(r.Visible))
	}
	for _, uuid := range r.UUIDs {
		if !strings.HasPrefix(uuid, "GPU-") {
			r.problem("%s: %q is no UUID of a GPU", variableNVIDIA, uuid)
		}
	}
	if !slices.Equal(r.Devices, r.Visible) {
		r.problem("/%s has %v and %s %v", nodeFolder, r.Devices, variableVisible, r.Visible)
	}
}

// metadata reads the files of KEP-5304. A cluster may have none; what is there
// has to be readable.
func (r *Report) metadata(root string) {
	folder := filepath.Join(root, metadataFolder)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path == folder:
			return nil
		case err != nil:
			return err
		case entry.IsDir() || !strings.HasSuffix(path, metadataSuffix):
			return nil
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		devices, err := readMetadata(path)
		if err != nil {
			r.problem("metadata file %s: %v", name, err)
		}
		r.Metadata = append(r.Metadata, Metadata{File: name, Devices: devices})
		return nil
	})
	if err != nil {
		r.problem("reading metadata: %v", err)
	}
}

// readMetadata takes the first document of a file: the file has one for each
// version of the format that its writer knows, the newest first.
func readMetadata(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var document struct {
		Requests []struct {
			Devices []struct {
				Driver string `json:"driver"`
				Pool   string `json:"pool"`
				Name   string `json:"name"`
			} `json:"devices"`
		} `json:"requests"`
	}
	if err := json.NewDecoder(file).Decode(&document); err != nil {
		return nil, err
	}
	devices := []string{}
	for _, request := range document.Requests {
		for _, d := range request.Devices {
			devices = append(devices, d.Driver+"/"+d.Pool+"/"+d.Name)
		}
	}
	return devices, nil
}

// list splits at commas; nothing is an empty list.
func list(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}
