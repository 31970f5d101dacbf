package fakenvml

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// listen registers GPUs for events; the function waits for one, in words.
func (m *machine) listen(types uint64, gpus ...int) (nvml.EventSet, func() string) {
	m.t.Helper()
	set := value[nvml.EventSet](m)(m.EventSetCreate())
	for _, gpu := range gpus {
		m.ok(m.gpu(gpu).RegisterEvents(types, set))
	}
	return set, func() string {
		data, ret := set.Wait(20)
		if ret != nvml.SUCCESS {
			return ret.Error()
		}
		uuid, ret := data.Device.GetUUID()
		for i, place := range (Machine{Name: "node-1", GPUs: 2}).Places() {
			if uuid == place.UUID {
				uuid = fmt.Sprint("GPU ", i)
			}
		}
		if ret != nvml.SUCCESS {
			uuid = ret.Error()
		}
		return fmt.Sprintf("%s: %#x %d in %d %d", uuid, data.EventType, data.EventData, int32(data.GpuInstanceId), int32(data.ComputeInstanceId))
	}
}

// TestEvents: who has registered a GPU gets what comes after, once, in order.
func TestEvents(t *testing.T) {
	m := newMachine(t, "h100", 2)
	m.must(m.XID(0, 13)) // before anybody listens
	set, wait := m.listen(nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError, 0, 1)
	_, other := m.listen(nvml.EventTypeSingleBitEccError, 0)
	equal(t, "nothing", wait(), "Timeout")
	gi, ci := 3, 0
	m.must(m.XID(1, 79))
	m.must(m.ECC(0, Errors{SingleBit: 1, DoubleBit: 2}))
	m.must(m.Event(Event{GPU: 0, Type: EventXID, Data: 94, GPUInstance: &gi, ComputeInstance: &ci}))
	for _, want := range []string{
		"GPU 1: 0x8 79 in -1 -1", "GPU 0: 0x2 0 in -1 -1", "GPU 0: 0x8 94 in 3 0", "Timeout",
	} {
		equal(t, "event", wait(), want)
	}
	equal(t, "other set", other(), "GPU 0: 0x1 0 in -1 -1")
	equal(t, "other set", other(), "Timeout")

	time.AfterFunc(30*time.Millisecond, func() { _ = m.XID(0, 48) })
	begun := time.Now()
	data, ret := set.Wait(10000)
	m.ok(ret)
	if data.EventData != 48 || time.Since(begun) > 5*time.Second {
		t.Errorf("got XID %d after %v", data.EventData, time.Since(begun))
	}
	m.ok(set.Free())
	_, ret = set.Wait(0)
	m.is(ret, nvml.ERROR_INVALID_ARGUMENT)
	m.is(set.Free(), nvml.ERROR_INVALID_ARGUMENT)
}

// TestEventsOfALostGPU: what was to be told is told, and then no wait ends
// otherwise, whichever of the GPUs it is.
func TestEventsOfALostGPU(t *testing.T) {
	m := newMachine(t, "h100", 2)
	_, wait := m.listen(nvml.EventTypeXidCriticalError, 0, 1)
	m.must(m.XID(1, 79))
	m.must(m.Lost(1))
	for _, want := range []string{"GPU is lost: 0x8 79 in -1 -1", "GPU is lost", "GPU is lost"} {
		equal(t, "event", wait(), want)
	}
	m.must(m.Restored(1))
	equal(t, "restored", wait(), "Timeout")
}

// TestEventTypes: a board takes those that it can have.
func TestEventTypes(t *testing.T) {
	m := newMachine(t, "h100-mig", 1)
	types := value[uint64](m)(m.gpu(0).GetSupportedEventTypes())
	equal(t, "types", fmt.Sprintf("%#x", types), "0xfe1f")
	set := value[nvml.EventSet](m)(m.EventSetCreate())
	m.is(m.gpu(0).RegisterEvents(1<<40, set), nvml.ERROR_NOT_SUPPORTED)
	m.whole(value[nvml.GpuInstance](m)(m.split(m.gpu(0), 0, 0)))
	mig := value[nvml.Device](m)(m.gpu(0).GetMigDeviceHandleByIndex(0))
	m.is(mig.RegisterEvents(nvml.EventTypeXidCriticalError, set), nvml.ERROR_NOT_SUPPORTED)
}

// TestManyEvents: the oldest go where nobody fetches them, and the file stays one
// that can be read.
func TestManyEvents(t *testing.T) {
	m := newMachine(t, "h100", 2)
	_, wait := m.listen(nvml.EventTypeXidCriticalError, 0)
	for i := range maxEvents + 10 {
		m.must(m.XID(0, uint64(i)))
	}
	equal(t, "first", wait(), "GPU 0: 0x8 10 in -1 -1")
	for range maxEvents - 2 {
		wait()
	}
	equal(t, "last", wait(), fmt.Sprintf("GPU 0: 0x8 %d in -1 -1", maxEvents+9))
	equal(t, "after", wait(), "Timeout")
}
