package fakenvml

// This file has things happen to boards.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Control has things happen to the boards of one folder. GPUs are numbered as
// they were installed, whatever has vanished since. Its methods may be called
// by several processes at once; what they do is seen by the next call of NVML,
// and ends a wait for events.
type Control struct {
	// Dir is the folder.
	Dir string
}

// Types of events, as in NVML.
const (
	EventSingleBitECC   uint64 = 0x1
	EventDoubleBitECC   uint64 = 0x2
	EventXID            uint64 = 0x8
	EventRecoveryAction uint64 = 0x8000
)

// Event is what nvmlEventSetWait tells.
type Event struct {
	GPU  int
	Type uint64
	// Data is the number of an XID, and 0 for most others.
	Data uint64
	// GPUInstance and ComputeInstance are IDs of the instance that it is about;
	// nil is the whole GPU.
	GPUInstance, ComputeInstance *int
}

// Errors are numbers of ECC errors: single and double bits of the memory, and
// uncorrectable ones of SRAM.
type Errors struct {
	SingleBit, DoubleBit, SRAM uint64
}

// Remap is what became of bad rows of memory. Rows that are pending are remapped
// by the next reset.
type Remap struct {
	Correctable, Uncorrectable uint64
	Pending, Failure           bool
}

// Installed are the GPUs that were installed, in their order.
func (c Control) Installed() ([]GPU, error) {
	data, err := os.ReadFile(filepath.Join(c.Dir, confName))
	if err != nil {
		return nil, fmt.Errorf("reading board, %w", err)
	}
	var gpus []GPU
	for line := range strings.Lines(string(data)) {
		var g GPU
		var serial string
		n, err := fmt.Sscanf(line, "gpu %s %s %d %d %d %d %d %d", &g.UUID, &serial, &g.Domain, &g.Bus, &g.Device, &g.Root, &g.Minor, &g.NUMANode)
		if n == 0 {
			continue // another line
		}
		if err != nil {
			return nil, fmt.Errorf("reading board, line %q, %w", strings.TrimSpace(line), err)
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// Find is the number of a GPU by what people call it: the number itself, its
// UUID, its PCI address, or the address as device names have it: gpu-11-00.
func (c Control) Find(name string) (int, error) {
	gpus, err := c.Installed()
	if err != nil {
		return 0, err
	}
	var names []string
	for i, g := range gpus {
		if name == strconv.Itoa(i) || strings.EqualFold(name, g.UUID) || strings.EqualFold(name, g.BusID()) || name == g.Name() {
			return i, nil
		}
		names = append(names, g.Name())
	}
	return 0, &UnknownGPUError{Name: name, Known: names}
}

// UnknownGPUError occurs where a GPU is named that is not there.
type UnknownGPUError struct {
	Name string
	// Known are the names by address of those that are.
	Known []string
}

func (e *UnknownGPUError) Error() string {
	return fmt.Sprintf("there is no GPU %q; there are %s", e.Name, strings.Join(e.Known, ", "))
}

// gpus is how many GPUs were installed.
func (c Control) gpus() (int, error) {
	gpus, err := c.Installed()
	return len(gpus), err
}

// on changes the state of one GPU.
func (c Control) on(gpu int, make func(s *state)) error {
	count, err := c.gpus()
	if err != nil {
		return err
	}
	if gpu < 0 || gpu >= count {
		return fmt.Errorf("there is no GPU %d of %d", gpu, count)
	}
	return c.change(func(s *state) error { make(s); return nil })
}

// Event tells an event to all who wait for such on the GPU.
func (c Control) Event(e Event) error {
	return c.on(e.GPU, func(s *state) { s.event(e) })
}

// XID tells an XID of the whole GPU. It is the event alone: what else a real
// board would show, such as being lost, is to be asked for.
func (c Control) XID(gpu int, code uint64) error {
	return c.Event(Event{GPU: gpu, Type: EventXID, Data: code})
}

// Lost has the GPU fall off the bus: every call about it is NVML_ERROR_GPU_IS_LOST.
func (c Control) Lost(gpu int) error { return c.Set(gpu, "lost", 1) }

// Restored undoes Lost.
func (c Control) Restored(gpu int) error { return c.Set(gpu, "lost", 0) }

// Vanish has the GPU be there no more, as after a restart of the driver that
// did not find it: NVML counts one less. Handles to it are of a lost GPU.
func (c Control) Vanish(gpu int) error { return c.Set(gpu, "vanished", 1) }

// Reappear undoes Vanish.
func (c Control) Reappear(gpu int) error { return c.Set(gpu, "vanished", 0) }

// ECC adds errors to the counts since the last reset and since ever, and tells
// the events of those in memory.
func (c Control) ECC(gpu int, errors Errors) error {
	return c.on(gpu, func(s *state) {
		for _, count := range []struct {
			name string
			more uint64
		}{{"sbe", errors.SingleBit}, {"dbe", errors.DoubleBit}, {"sram", errors.SRAM}} {
			s.addGPU(gpu, count.name+"_volatile", count.more)
			s.addGPU(gpu, count.name+"_aggregate", count.more)
		}
		if errors.SingleBit > 0 {
			s.event(Event{GPU: gpu, Type: EventSingleBitECC})
		}
		if errors.DoubleBit > 0 {
			s.event(Event{GPU: gpu, Type: EventDoubleBitECC})
		}
	})
}

// Remap makes what the row remapper reports.
func (c Control) Remap(gpu int, remap Remap) error {
	return c.on(gpu, func(s *state) {
		s.setGPU(gpu, "remap_correctable", remap.Correctable)
		s.setGPU(gpu, "remap_uncorrectable", remap.Uncorrectable)
		s.setGPU(gpu, "remap_pending", uint64(one(remap.Pending)))
		s.setGPU(gpu, "remap_failure", uint64(one(remap.Failure)))
	})
}

// maxRecoveryAction is the last of NVML's actions.
const maxRecoveryAction = 4

// RecoveryAction makes what NVML says would help: 0 nothing, 1 reset of the GPU,
// 2 reboot, 3 drain of peers, 4 drain and reset. A change is told as an event.
func (c Control) RecoveryAction(gpu int, action uint64) error {
	if action > maxRecoveryAction {
		return &UnknownNameError{What: "recovery action", Name: strconv.FormatUint(action, 10), Known: []string{"0", "1", "2", "3", "4"}}
	}
	return c.on(gpu, func(s *state) {
		if s.gpu(gpu, "recovery_action") != action {
			s.setGPU(gpu, "recovery_action", action)
			s.event(Event{GPU: gpu, Type: EventRecoveryAction, Data: action})
		}
	})
}

// NVLink takes a link down or up.
func (c Control) NVLink(gpu, link int, up bool) error {
	if link < 0 || link >= maxLinks {
		return &UnknownNameError{What: "link", Name: strconv.Itoa(link)}
	}
	return c.on(gpu, func(s *state) {
		down := s.gpu(gpu, "links_down") &^ (1 << link)
		if !up {
			down |= 1 << link
		}
		s.setGPU(gpu, "links_down", down)
	})
}

// Set makes one number of a GPU's state, by the name that it has in the file:
// temperature, power, pcie_replays, fabric_unhealthy. The names are GPU_STATES
// of lib/fakenvml.h; another is an [UnknownNameError].
func (c Control) Set(gpu int, name string, value uint64) error {
	if err := checkState(name); err != nil {
		return err
	}
	return c.on(gpu, func(s *state) { s.setGPU(gpu, name, value) })
}

// AllGPUs in the place of a GPU is the call itself, whatever it is about.
const AllGPUs = -1

// Hang has calls of a function of NVML take so much longer, or until the fault
// is cleared: those about a GPU, or all with [AllGPUs]. The function may be
// named without its version, and "*" is all of them.
func (c Control) Hang(function string, gpu int, duration time.Duration) error {
	return c.fault("hang", function, gpu, uint64(duration.Milliseconds())) //nolint:gosec // never negative in a test
}

// Fail has calls of a function end with an error of NVML; functions and GPUs
// are as for Hang.
func (c Control) Fail(function string, gpu int, code uint64) error {
	return c.fault("fail", function, gpu, code)
}

// maxFaults is how many the library reads.
const maxFaults = 64

func (c Control) fault(kind, function string, gpu int, value uint64) error {
	if err := checkFunction(function); err != nil {
		return err
	}
	where := "-"
	if gpu != AllGPUs {
		where = strconv.Itoa(gpu)
		if count, err := c.gpus(); err != nil || gpu < 0 || gpu >= count {
			return errors.Join(err, fmt.Errorf("there is no GPU %d of %d", gpu, count))
		}
	}
	return c.change(func(s *state) error {
		s.remove(func(words []string) bool {
			return len(words) == 4 && words[0] == kind && words[1] == function && words[2] == where
		})
		count := 0
		for _, words := range s.lines {
			if words[0] == "hang" || words[0] == "fail" {
				count++
			}
		}
		if count == maxFaults {
			return fmt.Errorf("there are %d faults already", maxFaults)
		}
		s.add(kind, function, where, strconv.FormatUint(value, 10))
		return nil
	})
}

// ClearFaults takes back all of Hang and Fail. Calls that hang go on.
func (c Control) ClearFaults() error {
	return c.change(func(s *state) error {
		s.remove(func(words []string) bool { return words[0] == "hang" || words[0] == "fail" })
		return nil
	})
}

// UnloadDriver takes the kernel driver away: every call, nvmlInit too, is
// NVML_ERROR_DRIVER_NOT_LOADED.
func (c Control) UnloadDriver() error {
	return c.change(func(s *state) error { s.set(1, "unloaded"); return nil })
}

// LoadDriver undoes UnloadDriver.
func (c Control) LoadDriver() error {
	return c.change(func(s *state) error { s.set(0, "unloaded"); return nil })
}

// Process is one that uses a GPU, or an instance of it.
type Process struct {
	GPU, PID                     int
	Memory                       uint64
	GPUInstance, ComputeInstance *int
}

// StartProcess has a process use a GPU. Instances that are used can't be
// destroyed, and MIG mode changes only with a reset.
func (c Control) StartProcess(p Process) error {
	return c.on(p.GPU, func(s *state) {
		s.add("process", strconv.Itoa(p.GPU), optional(p.GPUInstance), optional(p.ComputeInstance),
			strconv.Itoa(p.PID), strconv.FormatUint(p.Memory, 10))
	})
}

// EndProcess ends all use by a process.
func (c Control) EndProcess(pid int) error {
	return c.change(func(s *state) error {
		s.remove(func(words []string) bool {
			return words[0] == "process" && len(words) == 6 && words[4] == strconv.Itoa(pid)
		})
		return nil
	})
}

// overReset are the numbers that a reset of the GPU leaves as they are.
var overReset = []string{
	"vanished", "compute_mode", "persistence", "sbe_aggregate", "dbe_aggregate", "sram_aggregate", "sram_threshold",
	"remap_correctable", "remap_uncorrectable", "remap_failure", "retired_sbe", "retired_dbe", "power_limit",
}

// Reset is what nvidia-smi --gpu-reset does: modes that are pending come true,
// rows are remapped, what was lost or down is there again, and MIG instances,
// processes and the counts since the last reset are gone.
func (c Control) Reset(gpu int) error {
	return c.on(gpu, func(s *state) { s.reset(gpu) })
}

func (s *state) reset(gpu int) {
	own := strconv.Itoa(gpu)
	kept := map[string]uint64{
		"mig": s.gpu(gpu, "mig_pending"), "mig_pending": s.gpu(gpu, "mig_pending"),
		"ecc_off": s.gpu(gpu, "ecc_off_pending"), "ecc_off_pending": s.gpu(gpu, "ecc_off_pending"),
	}
	for _, name := range overReset {
		kept[name] = s.gpu(gpu, name)
	}
	s.remove(func(words []string) bool {
		switch words[0] {
		case "gpu", "instance", "compute", "process":
			return len(words) > 1 && words[1] == own
		}
		return false
	})
	for name, value := range kept {
		s.setGPU(gpu, name, value)
	}
}

// Reboot restarts the machine: all GPUs are reset, those that had vanished are
// there again, the driver is loaded, and modes are what they are by default.
func (c Control) Reboot() error {
	count, err := c.gpus()
	if err != nil {
		return err
	}
	return c.change(func(s *state) error {
		for gpu := range count {
			s.reset(gpu)
			for _, name := range []string{"vanished", "compute_mode", "persistence", "power_limit"} {
				s.setGPU(gpu, name, 0)
			}
		}
		s.set(0, "unloaded")
		s.remove(func(words []string) bool { return words[0] == "event" })
		return nil
	})
}
