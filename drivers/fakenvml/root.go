package fakenvml

// This file lays out the folder in which NVIDIA's driver and the machine's own
// files are, for programs that look for more than the library.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// LibraryFolder is where a driver root has its libraries, on this architecture.
func LibraryFolder() string {
	if runtime.GOARCH == "arm64" {
		return "usr/lib/aarch64-linux-gnu"
	}
	return "usr/lib/x86_64-linux-gnu"
}

// FolderIn is the folder of the libraries in a driver root that [InstallRoot] has
// made, whatever the architecture of the machine that made it. The error wraps
// [fs.ErrNotExist] where there are no boards.
func FolderIn(root string) (string, error) {
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/*", confName))
	if err != nil {
		return "", fmt.Errorf("looking for boards in %s, %w", root, err)
	}
	own := filepath.Join(root, LibraryFolder())
	switch {
	case slices.Contains(found, filepath.Join(own, confName)):
		return own, nil
	case len(found) > 0:
		return filepath.Dir(found[0]), nil
	}
	return "", fmt.Errorf("looking for boards in %s, %w", root, fs.ErrNotExist)
}

// standIns are libraries that every program with CUDA looks for. What stands in
// for them is an ELF header without anything.
var standIns = []string{"libcuda", "libnvidia-ptxjitcompiler", "libnvidia-nvvm"}

// InstallRoot makes a driver root, as NVIDIA's installers do: libraries by the
// driver's version, the given one among them; device nodes; what the kernel says
// in /proc and /sys of the GPUs. The board is in the folder of the libraries, and
// what has happened to it stays if it is the same as before.
//
// Where it may not make device nodes it makes files in their places, and says so
// by nodes being false.
func InstallRoot(root, library string, board Board, machine Machine) (nodes bool, err error) {
	folder := filepath.Join(root, LibraryFolder())
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // a driver's files are for all
		return false, fmt.Errorf("installing driver root, %w", err)
	}
	if !IsInstalled(folder, board, machine) {
		if err := Install(folder, board, machine); err != nil {
			return false, err
		}
	}
	if err := installLibraries(folder, library, board.DriverVersion); err != nil {
		return false, fmt.Errorf("installing driver root, %w", err)
	}
	if err := installKernelFiles(root, board, machine); err != nil {
		return false, fmt.Errorf("installing driver root, %w", err)
	}
	nodes, err = installNodes(root, len(board.MIG) > 0, machine)
	if err != nil {
		return false, fmt.Errorf("installing driver root, %w", err)
	}
	return nodes, nil
}

func installLibraries(folder, library, version string) error {
	data, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	files := map[string][]byte{"libnvidia-ml.so." + version: data}
	for _, name := range standIns {
		files[name+".so."+version] = emptyELF()
	}
	// What another version left there would be found too.
	for name := range files {
		stem, _, _ := strings.Cut(name, ".so.")
		old, err := filepath.Glob(filepath.Join(folder, stem+".so.*.*"))
		if err != nil {
			return err
		}
		for _, path := range old {
			if filepath.Base(path) != name {
				if err := os.Remove(path); err != nil {
					return err
				}
			}
		}
	}
	for name, data := range files {
		if err := replace(filepath.Join(folder, name), data, 0o755); err != nil {
			return err
		}
		stem, _, _ := strings.Cut(name, ".so.")
		if err := link(name, filepath.Join(folder, stem+".so.1")); err != nil {
			return err
		}
	}
	return nil
}

// emptyELF is the header of a shared object of this machine.
func emptyELF() []byte {
	const size, dyn, x86, arm = 64, 3, 62, 183
	header := make([]byte, size)
	copy(header, "\x7fELF\x02\x01\x01") // 64 bits, little endian, version 1
	machine := uint16(x86)
	if runtime.GOARCH == "arm64" {
		machine = arm
	}
	binary.LittleEndian.PutUint16(header[16:], dyn)
	binary.LittleEndian.PutUint16(header[18:], machine)
	binary.LittleEndian.PutUint32(header[20:], 1)
	binary.LittleEndian.PutUint16(header[52:], size)
	return header
}

// replace puts a file in a place at once, so that who has the old one mapped
// keeps it.
func replace(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path+".new", data, mode); err != nil { //nolint:gosec // as above
		return err
	}
	if err := os.Chmod(path+".new", mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func link(to, path string) error {
	if now, err := os.Readlink(path); err == nil && now == to {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(to, path)
}

// Instances as the kernel numbers their capabilities, whether they exist or not.
const (
	instancesPerGPU     = 15
	computesPerInstance = 8
	firstCapability     = 3 // after config and monitor
	capabilitiesPerGPU  = instancesPerGPU * (1 + computesPerInstance)
)

// migMinors is /proc/driver/nvidia-caps/mig-minors.
func migMinors(gpus int) string {
	var out strings.Builder
	out.WriteString("config 1\nmonitor 2\n")
	minor := firstCapability
	for gpu := range gpus {
		for instance := range instancesPerGPU {
			fmt.Fprintf(&out, "gpu%d/gi%d/access %d\n", gpu, instance, minor)
			minor++
			for compute := range computesPerInstance {
				fmt.Fprintf(&out, "gpu%d/gi%d/ci%d/access %d\n", gpu, instance, compute, minor)
				minor++
			}
		}
	}
	return out.String()
}

// installKernelFiles makes what /proc and /sys have of the GPUs.
func installKernelFiles(root string, board Board, machine Machine) error {
	files := map[string]string{
		"proc/driver/nvidia/version": fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module  %s  Release Build\n", board.DriverVersion),
	}
	if len(board.MIG) > 0 {
		files["proc/driver/nvidia-caps/mig-minors"] = migMinors(machine.GPUs)
	}
	for _, g := range machine.Places() {
		device := fmt.Sprintf("sys/devices/pci%04x:%02x/%04x:%02x:01.0/%s", g.Domain, g.Root, g.Domain, g.Root, g.BusID())
		files[device+"/numa_node"] = strconv.Itoa(g.NUMANode) + "\n"
		files[device+"/vendor"] = fmt.Sprintf("0x%04x\n", board.PCI.Device&0xffff)
		files[device+"/device"] = fmt.Sprintf("0x%04x\n", board.PCI.Device>>16)
		files[device+"/class"] = "0x030200\n"
		files[fmt.Sprintf("proc/driver/nvidia/gpus/%s/information", g.BusID())] = fmt.Sprintf(
			"Model: \t\t %s\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %d\n", board.Name, g.UUID, g.BusID(), g.Minor)
		links := filepath.Join(root, "sys/bus/pci/devices")
		if err := os.MkdirAll(links, 0o755); err != nil { //nolint:gosec // as above
			return err
		}
		if err := link("../../../"+strings.TrimPrefix(device, "sys/"), filepath.Join(links, g.BusID())); err != nil {
			return err
		}
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as above
			return err
		}
		if err := replace(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// installNodes makes device nodes. They are those of /dev/null: a container may
// open them, and they are the way to no hardware.
func installNodes(root string, mig bool, machine Machine) (bool, error) {
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
	for _, g := range machine.Places() {
		names = append(names, fmt.Sprintf("nvidia%d", g.Minor))
	}
	if mig {
		for minor := 1; minor < firstCapability+machine.GPUs*capabilitiesPerGPU; minor++ {
			names = append(names, fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor))
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev/nvidia-caps"), 0o755); err != nil { //nolint:gosec // as above
		return false, err
	}
	all := true
	for _, name := range names {
		path := filepath.Join(root, "dev", name)
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeCharDevice != 0 {
			continue
		}
		const null, mode = 1<<8 | 3, syscall.S_IFCHR | 0o666
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		err := syscall.Mknod(path, mode, null)
		if err == nil {
			err = os.Chmod(path, 0o666) //nolint:gosec // as NVIDIA's are
		} else if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
			all = false
			err = os.WriteFile(path, nil, 0o666) //nolint:gosec // as above
		}
		if err != nil {
			return false, err
		}
	}
	return all, nil
}
