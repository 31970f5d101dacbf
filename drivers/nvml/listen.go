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
// the same, but a node that should hear them and can't is deaf, and says so
// until it hears.
func (i *Inventory) listen(ctx context.Context, s *session, all []found) {
	calls := caller{worker: i.events, generation: s.calls.generation, limit: i.config.CallLimit}
	set, made := i.eventSet(ctx, s, calls)
	if !made {
		return
	}
	defer func() {
		// It may hang, as any call; then the set goes with the process.
		if err := act(context.WithoutCancel(ctx), calls, "nvmlEventSetFree", set.Free); err != nil {
			klog.FromContext(ctx).V(2).Info("Freeing the event set failed", "reason", err.Error())
		}
	}()
	left := i.registerAll(ctx, s, all, set)
	tried, failed := i.config.Clock.Now(), 0
	// The first version of the call leaves the instance out.
	instances := s.library.Extensions().LookupSymbol("nvmlEventSetWait_v2") == nil
	for ctx.Err() == nil {
		data, err := get(ctx, calls.within(eventWait+i.config.CallLimit), "nvmlEventSetWait", func() (nvml.EventData, nvml.Return) {
			return set.Wait(uint32(eventWait / time.Millisecond))
		})
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			failed = 0
			i.heard(ctx, nil)
			if !instances {
				data.GpuInstanceId = noInstance
			}
			i.hear(ctx, &data)
		case errors.Is(err, nvml.ERROR_TIMEOUT):
			failed = 0
			i.heard(ctx, nil) // there was none
		default:
			if failed++; deafens(err, failed) {
				i.heard(ctx, err)
			}
			i.wakeUp() // a GPU may be lost; the others are asked too
			i.sleep(ctx, eventWait)
		}
		if len(left) > 0 && i.config.Clock.Since(tried) >= eventWait {
			left = i.registerAll(ctx, s, left, set)
			tried = i.config.Clock.Now()
		}
	}
}

// deafens says whether nothing is heard, after so many waits in a row that have
// failed. One answer that can't be explained may be chance; a GPU or a library
// that is gone is seen by other calls.
func deafens(err error, failed int) bool {
	var hangs *TimeoutError
	return errors.As(err, &hangs) || failed > 1 && !isOne(err, lost) && !isOne(err, gone)
}

// eventSet makes what events are heard with, and tries until it has. It has not
// where NVML has no events, or when ctx is done.
func (i *Inventory) eventSet(ctx context.Context, s *session, calls caller) (set nvml.EventSet, made bool) {
	for _, symbol := range eventSymbols {
		if !s.has(symbol) {
			i.heard(ctx, nil)
			klog.FromContext(ctx).Info("This version of NVML has no events; XIDs are not seen", "lacks", symbol)
			return nil, false
		}
	}
	for {
		set, err := get(ctx, calls, "nvmlEventSetCreate", s.library.EventSetCreate)
		switch {
		case err == nil:
			return set, true
		case ctx.Err() != nil:
			return nil, false
		case absent(err):
			i.heard(ctx, nil)
			klog.FromContext(ctx).Info("NVML has no events; XIDs are not seen", "reason", err.Error())
			return nil, false
		}
		i.heard(ctx, err)
		i.sleep(ctx, eventWait)
	}
}

// registerAll asks for the events of GPUs, and returns those that have refused.
func (i *Inventory) registerAll(ctx context.Context, s *session, all []found, set nvml.EventSet) (left []found) {
	for n := range all {
		if all[n].handle == nil || ctx.Err() != nil {
			continue
		}
		err := s.register(ctx, &all[n], set)
		if errors.Is(err, errNoEvents) || absent(err) {
			klog.FromContext(ctx).Info("A GPU has no events; its XIDs are not seen", "index", all[n].index, "reason", err.Error())
			err = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			left = append(left, all[n])
		}
		i.heardOf(ctx, all[n].handle, err)
	}
	return left
}

func (i *Inventory) wakeUp() {
	select {
	case i.wake <- struct{}{}:
	default: // it will be asked anyhow
	}
}

// errNoEvents: a GPU offers none that are wanted.
var errNoEvents = errors.New("it offers none")

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
		return errNoEvents
	}
	return act(ctx, f.calls, "nvmlDeviceRegisterEvents", func() nvml.Return { return f.handle.RegisterEvents(types, set) })
}

// heard takes in whether events can be heard.
func (i *Inventory) heard(ctx context.Context, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if (i.deaf == nil) != (err == nil) {
		klog.FromContext(ctx).Info("Whether events can be heard has changed", "heard", err == nil, "reason", err)
	}
	i.deaf = err
	i.changedReport()
}

// heardOf takes in whether events of one GPU can be heard.
func (i *Inventory) heardOf(ctx context.Context, handle nvml.Device, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, g := range i.gpus {
		if g.handle == nil || g.handle != handle {
			continue
		}
		if (g.deaf == nil) != (err == nil) {
			klog.FromContext(ctx).Info("Whether events of a GPU can be heard has changed", "gpu", g.Address.name(), "heard", err == nil, "reason", err)
		}
		g.deaf = err
	}
	i.changedReport()
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
