package nvml

// This file opens NVML, finds the GPUs, and closes it again.

import (
	"context"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
)

// UnavailableError occurs while NVIDIA's driver can't be reached: it is not
// loaded or not there, its library does not fit, or it hangs.
type UnavailableError struct {
	Err error
}

// Error says why.
func (e *UnavailableError) Error() string {
	return "NVIDIA's driver can't be reached, " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *UnavailableError) Unwrap() error { return e.Err }

// session is NVML from one opening to its closing.
type session struct {
	library nvml.Interface
	names   device.Interface
	calls   caller // those of the library as a whole

	driverVersion string
	cudaVersion   int

	mu      sync.Mutex
	symbols map[string]bool
}

// versions are names under which a function may be in the library, where it
// has been revised: one of them is enough.
var versions = map[string][]string{
	"nvmlInit":                                   {"nvmlInit_v2", "nvmlInit"},
	"nvmlDeviceGetCount":                         {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	"nvmlDeviceGetHandleByIndex":                 {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	"nvmlDeviceGetPciInfo":                       {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
	"nvmlEventSetWait":                           {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
	"nvmlComputeInstanceGetInfo":                 {"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceGetInfo"},
	"nvmlDeviceGetGpuInstancePossiblePlacements": {"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstancePossiblePlacements"},
}

// required are functions without which there is nothing to be published.
var required = []string{
	"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
}

// has says whether the library has a function. To call one that it does not
// have would end the process, so whatever a library may lack is asked for.
func (s *session) has(function string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, known := s.symbols[function]
	if known {
		return is
	}
	names := versions[function]
	if names == nil {
		names = []string{function}
	}
	for _, name := range names {
		is = is || s.library.Extensions().LookupSymbol(name) == nil
	}
	s.symbols[function] = is
	return is
}

// found is one GPU that NVML lists.
type found struct {
	index  int
	calls  caller
	handle nvml.Device
	// facts are nil if not even the PCI address is known.
	facts *facts
	// err is why facts are missing or incomplete.
	err error
}

// open opens NVML and asks each GPU what it is, all at the same time.
func (i *Inventory) open(ctx context.Context) (*session, []found, error) {
	s := &session{
		library: i.config.NVML, names: device.New(i.config.NVML), symbols: map[string]bool{},
		calls: caller{worker: i.library, generation: i.gate.next(), limit: i.config.CallLimit},
	}
	if err := act(ctx, s.calls, "nvmlInit", s.library.Init); err != nil {
		return nil, nil, &UnavailableError{err}
	}
	all, err := s.find(ctx, i)
	if err != nil {
		i.close(ctx, s)
		return nil, nil, &UnavailableError{err}
	}
	return s, all, nil
}

func (s *session) find(ctx context.Context, i *Inventory) ([]found, error) {
	for _, function := range required {
		if !s.has(function) {
			return nil, &CallError{Call: function, Return: nvml.ERROR_FUNCTION_NOT_FOUND}
		}
	}
	var err error
	if s.has("nvmlSystemGetDriverVersion") {
		version, failed := get(ctx, s.calls, "nvmlSystemGetDriverVersion", s.library.SystemGetDriverVersion)
		if s.driverVersion, err = optional(ctx, "driver version", version, failed); err != nil {
			return nil, err
		}
	}
	if s.has("nvmlSystemGetCudaDriverVersion") {
		version, failed := get(ctx, s.calls, "nvmlSystemGetCudaDriverVersion", s.library.SystemGetCudaDriverVersion)
		if s.cudaVersion, err = optional(ctx, "CUDA version", version, failed); err != nil {
			return nil, err
		}
	}
	count, err := get(ctx, s.calls, "nvmlDeviceGetCount", s.library.DeviceGetCount)
	if err != nil {
		return nil, err
	}
	all := make([]found, count)
	var parts sync.WaitGroup
	for index := range all {
		all[index].index = index
		all[index].calls = caller{worker: i.workerOf(index), generation: s.calls.generation, limit: s.calls.limit}
		parts.Go(func() { s.look(ctx, &all[index]) })
	}
	parts.Wait()
	return all, ctx.Err()
}

func (s *session) look(ctx context.Context, f *found) {
	f.handle, f.err = get(ctx, f.calls, "nvmlDeviceGetHandleByIndex", func() (nvml.Device, nvml.Return) { return s.library.DeviceGetHandleByIndex(f.index) })
	if f.err != nil {
		return
	}
	if f.facts, f.err = s.readFacts(ctx, f.calls, f.index, f.handle); f.err != nil {
		f.err = fmt.Errorf("reading GPU %d, %w", f.index, f.err)
	}
}

// workerOf is the worker of what NVML lists at an index. It stays the same over
// sessions: one that hangs does so still.
func (i *Inventory) workerOf(index int) *worker {
	for len(i.workers) <= index {
		i.workers = append(i.workers, &worker{clock: i.config.Clock, gate: &i.gate})
	}
	return i.workers[index]
}

// close closes NVML. If a call hangs it stays open: the next session is one
// more opening of the same library.
func (i *Inventory) close(ctx context.Context, s *session) {
	idle := i.gate.shut()
	timer := i.config.Clock.NewTimer(i.config.CallLimit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C():
		klog.FromContext(ctx).Info("Leaving NVML open, since a call has not returned")
		return
	}
	// Nothing else runs, and this worker was idle a moment ago.
	done := make(chan nvml.Return, 1)
	go func() { done <- s.library.Shutdown() }()
	select {
	case ret := <-done:
		if ret != nvml.SUCCESS {
			klog.FromContext(ctx).V(2).Info("Closing NVML failed", "reason", textOf(ret))
		}
	case <-timer.C():
		klog.FromContext(ctx).Info("Closing NVML has not returned")
	}
}
