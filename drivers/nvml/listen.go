package nvml

// This file hears the events of the GPUs: errors that no later reading shows.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/xid"
)

// eventSignals are the events, other than XIDs, that are a signal.
var eventSignals = map[uint64]xid.Signal{
	nvml.EventTypeDramRetirementEvent:    xid.RetirementRecorded,
	nvml.EventTypeDramRetirementFailure:  xid.RetirementFailure,
	nvml.EventTypeNonFatalPoisonError:    xid.PoisonContained,
	nvml.EventTypeFatalPoisonError:       xid.PoisonFatal,
	nvml.EventTypeGpuUnavailableError:    xid.GPUUnavailable,
	nvml.EventTypeSingleBitEccErrorStorm: xid.SingleBitStorm,
}

// wanted are the events that are listened to, where the GPU offers them. A
// double bit error and a change of the recovery action are read at once.
const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeGpuRecoveryAction |
	nvml.EventTypeDramRetirementEvent | nvml.EventTypeDramRetirementFailure | nvml.EventTypeNonFatalPoisonError |
	nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeSingleBitEccErrorStorm

// basic are those that every GPU with events has.
const basic = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// eventWait is how long a call waits for an event. A session ends no sooner.
const eventWait = time.Second

// noInstance is the ID of a GPU instance in events that are of none.
const noInstance = 0xffffffff

// eventSymbols are what a library must have for events.
var eventSymbols = []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait", "nvmlEventSetFree"}

// listen hears events until ctx is done. Without events the GPUs are asked all
// the same.
func (i *Inventory) listen(ctx context.Context, s *session, all []found) {
	logger := klog.FromContext(ctx)
	for _, symbol := range eventSymbols {
		if !s.has(symbol) {
			logger.Info("This version of NVML has no events; XIDs are not seen", "lacks", symbol)
			return
		}
	}
	calls := caller{worker: i.events, generation: s.calls.generation, limit: i.config.CallLimit}
	set, err := get(ctx, calls, "nvmlEventSetCreate", s.library.EventSetCreate)
	if err != nil {
		if ctx.Err() == nil {
			logger.Error(err, "Events can't be heard; XIDs are not seen")
		}
		return
	}
	defer func() {
		// It may hang, as any call; then the set goes with the process.
		if err := act(context.WithoutCancel(ctx), calls, "nvmlEventSetFree", set.Free); err != nil {
			logger.V(2).Info("Freeing the event set failed", "reason", err.Error())
		}
	}()
	for n := range all {
		if all[n].handle == nil {
			continue
		}
		if err := s.register(ctx, &all[n], set); err != nil {
			logger.Info("Events of a GPU can't be heard", "index", all[n].index, "reason", err.Error())
		}
	}
	// The first version of the call leaves the instance out.
	instances := s.library.Extensions().LookupSymbol("nvmlEventSetWait_v2") == nil
	for ctx.Err() == nil {
		data, err := get(ctx, calls.within(eventWait+i.config.CallLimit), "nvmlEventSetWait", func() (nvml.EventData, nvml.Return) {
			return set.Wait(uint32(eventWait / time.Millisecond))
		})
		if ctx.Err() != nil {
			return
		}
		i.heard(ctx, err)
		switch {
		case err == nil:
			if !instances {
				data.GpuInstanceId = noInstance
			}
			i.hear(ctx, &data)
		case errors.Is(err, nvml.ERROR_TIMEOUT):
			// There was none.
		default:
			i.wakeUp() // a GPU may be lost; the others are asked too
			i.sleep(ctx, eventWait)
		}
	}
}

func (i *Inventory) wakeUp() {
	select {
	case i.wake <- struct{}{}:
	default: // it will be asked anyhow
	}
}

// register asks for the events that a GPU offers.
func (s *session) register(ctx context.Context, f *found, set nvml.EventSet) error {
	types := uint64(basic)
	if s.has("nvmlDeviceGetSupportedEventTypes") {
		offered, err := get(ctx, f.calls, "nvmlDeviceGetSupportedEventTypes", f.handle.GetSupportedEventTypes)
		if err == nil {
			types = wanted & offered
		} else if !absent(err) {
			return err
		}
	}
	if types == 0 {
		return errors.New("it offers none")
	}
	return act(ctx, f.calls, "nvmlDeviceRegisterEvents", func() nvml.Return { return f.handle.RegisterEvents(types, set) })
}

// heard takes in whether events can be heard.
func (i *Inventory) heard(ctx context.Context, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.deaf
	i.deaf = nil
	var hangs *TimeoutError
	if errors.As(err, &hangs) {
		i.deaf = hangs
	}
	if (was == nil) != (i.deaf == nil) {
		klog.FromContext(ctx).Info("Whether events can be heard has changed", "heard", i.deaf == nil)
		i.changedReport()
	}
}

// hear takes in an event.
func (i *Inventory) hear(ctx context.Context, data *nvml.EventData) {
	i.wakeUp() // more may be to be read now
	i.mu.Lock()
	defer i.mu.Unlock()
	var hit *gpu
	for _, g := range i.gpus {
		if g.handle != nil && g.handle == data.Device {
			hit = g
		}
	}
	logger := klog.FromContext(ctx).WithValues("event", data.EventType, "data", data.EventData)
	if hit == nil {
		logger.Info("Heard an event of a GPU that is none of the driver's")
		return
	}
	logger = logger.WithValues("gpu", hit.Address.name())
	var devices []string
	if data.GpuInstanceId != noInstance && len(hit.instances) > 0 {
		devices = hit.devicesOf(data.GpuInstanceId)
		logger = logger.WithValues("gpuInstance", data.GpuInstanceId, "computeInstance", data.ComputeInstanceId)
	}
	made := event{devices: devices}
	if data.EventType == nvml.EventTypeXidCriticalError {
		code := int(min(data.EventData, maxXID+1)) //nolint:gosec // bounded
		made.source, made.reason, made.message = xid.Source, xid.Reason(code), xid.Describe(code)
		made.severity = i.config.Policy.Health.severityOfXID(code)
		i.metrics.xid(data.EventData, made.severity)
		if xid.ActionOf(code) == xid.AskGPU && hit.tellsAction && i.config.Policy.Health.XIDs[fmt.Sprint(code)] == "" {
			made.severity = inventory.Healthy // what it points to is read at once
		}
	} else if signal, is := eventSignals[data.EventType]; is {
		row := i.config.Policy.Health.row(signal)
		made.source, made.reason, made.message, made.severity = row.Source, row.Reason, row.Words, row.Severity
	}
	logger.Info("Heard an event", "reason", made.reason, "severity", made.severity.String(), "message", made.message)
	if made.severity == inventory.Healthy {
		return
	}
	hit.hit(made, i.config.Clock.Now())
	i.changedReport()
}
