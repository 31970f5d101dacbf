package hardware

// This file says whether there is a GPU at all, from what the kernel tells.

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// IDs on the PCI bus: NVIDIA's, and the classes of display controllers.
const (
	vendorNVIDIA   = "0x10de"
	classVGA       = "0x0300"
	classThreeD    = "0x0302"
	controllerNode = "dev/nvidiactl"
)

// Present returns the PCI addresses of NVIDIA's GPUs, sorted. The error wraps
// [ErrNoGPU] where there is none, nor a device node of NVIDIA's driver.
func Present(o Options) ([]string, error) {
	devices, err := filepath.Glob(filepath.Join(o.Sysfs, "bus/pci/devices/*"))
	if err != nil {
		return nil, fmt.Errorf("looking at the PCI bus, %w", err)
	}
	var found []string
	for _, device := range devices {
		class := word(filepath.Join(device, "class"))
		if word(filepath.Join(device, "vendor")) == vendorNVIDIA && (strings.HasPrefix(class, classVGA) || strings.HasPrefix(class, classThreeD)) {
			found = append(found, filepath.Base(device))
		}
	}
	slices.Sort(found)
	if len(found) > 0 {
		return found, nil
	}
	if _, err := os.Stat(filepath.Join(o.DriverRoot, controllerNode)); err == nil {
		return nil, nil // some virtual machines hide the bus
	}
	return nil, fmt.Errorf("%w: none of the %d devices on the PCI bus is one, and there is no /%s", ErrNoGPU, len(devices), controllerNode)
}

// word is a file's content, or "".
func word(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
