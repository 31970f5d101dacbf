package main

// This file looks at what a container was given of NVIDIA's GPUs.

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Device nodes of NVIDIA's kernel driver: one for each GPU, and one for all.
const (
	nvidiaFolder  = "dev"
	nvidiaControl = "nvidiactl"
)

var nvidiaNode = regexp.MustCompile(`^nvidia[0-9]+$`)

// partitionMark is in the names of MIG devices, several of which can share a
// GPU's node.
const partitionMark = "-mig-"

// nvidia takes the names of devices from the variables, since NVIDIA's nodes are
// numbered, and compares how many there are.
func (r *Report) nvidia(root string, env map[string]string) {
	r.Devices = []string{}
	partitions := false
	for name := range env {
		if upper, is := strings.CutPrefix(name, variableDevice); is {
			device := strings.ReplaceAll(strings.ToLower(upper), "_", "-")
			partitions = partitions || strings.Contains(device, partitionMark)
			r.Devices = append(r.Devices, device)
		}
	}
	slices.Sort(r.Devices)
	entries, err := os.ReadDir(filepath.Join(root, nvidiaFolder))
	if err != nil {
		r.problem("reading /%s: %v", nvidiaFolder, err)
		return
	}
	var gpus []string
	control := false
	for _, entry := range entries {
		name := entry.Name()
		control = control || name == nvidiaControl
		if !nvidiaNode.MatchString(name) {
			continue
		}
		gpus = append(gpus, name)
		if info, err := os.Stat(filepath.Join(root, nvidiaFolder, name)); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			r.problem("/%s/%s is no character device", nvidiaFolder, name)
		}
	}
	if !control {
		r.problem("/%s/%s is not there", nvidiaFolder, nvidiaControl)
	}
	if len(gpus) == 0 || len(gpus) > len(r.Devices) || !partitions && len(gpus) != len(r.Devices) {
		r.problem("/%s has %v for the devices %v", nvidiaFolder, gpus, r.Devices)
	}
}
