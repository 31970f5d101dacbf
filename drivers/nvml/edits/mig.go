package edits

// This file finds the device nodes of MIG devices where NVIDIA's kernel driver
// does not say them in the kernel's own /proc, which is the only place where
// nvcdi looks.

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// minorsFile has a line for each capability: gpu0/gi5/ci0/access 67. The format
// is that of NVIDIA's MIG guide, "device nodes and capabilities".
const minorsFile = "proc/driver/nvidia-caps/mig-minors"

// migDevices are the edits of the board, and the two nodes by which the kernel
// lets a process at the GPU instance and the compute instance.
func (g *Generator) migDevices(generator nvcdi.Interface, uuid string) ([]specs.Device, error) {
	device, ret := g.library.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetHandleByUUID, %w", ret)
	}
	parent, ret := device.GetDeviceHandleFromMigDeviceHandle()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetDeviceHandleFromMigDeviceHandle, %w", ret)
	}
	board, ret := parent.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetUUID, %w", ret)
	}
	gpu, ret := parent.GetMinorNumber()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetMinorNumber, %w", ret)
	}
	gpuInstance, ret := device.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetGpuInstanceId, %w", ret)
	}
	computeInstance, ret := device.GetComputeInstanceId()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("nvmlDeviceGetComputeInstanceId, %w", ret)
	}
	devices, err := generator.GetDeviceSpecsByID(board)
	if err != nil || len(devices) == 0 {
		return nil, fmt.Errorf("finding those of its board, %w", err)
	}
	made := devices[0]
	minors, err := os.ReadFile(filepath.Join(g.roots.Proc, minorsFile))
	if err != nil {
		return nil, err
	}
	for _, capability := range []string{
		fmt.Sprintf("gpu%d/gi%d/access", gpu, gpuInstance), fmt.Sprintf("gpu%d/gi%d/ci%d/access", gpu, gpuInstance, computeInstance),
	} {
		minor, err := minorOf(string(minors), capability)
		if err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
		made.ContainerEdits.DeviceNodes = append(made.ContainerEdits.DeviceNodes, &specs.DeviceNode{Path: path, HostPath: filepath.Join(g.roots.Dev, path)})
	}
	return []specs.Device{made}, nil
}

// minorOf finds the number of a capability's device node.
func minorOf(minors, capability string) (int, error) {
	for line := range strings.Lines(minors) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != capability {
			continue
		}
		minor, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("reading capability %s, %w", capability, err)
		}
		return minor, nil
	}
	return 0, fmt.Errorf("the kernel has no capability %s", capability)
}
