package fakenvml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestECC(t *testing.T) {
	m := newMachine(t, "h100", 2)
	m.must(m.ECC(1, Errors{SingleBit: 3, DoubleBit: 2, SRAM: 1}))
	m.must(m.ECC(1, Errors{SingleBit: 4}))
	d := m.gpu(1)
	counts := func(of nvml.EccCounterType) string {
		return fmt.Sprint(
			value[uint64](m)(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, of)),
			value[uint64](m)(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, of)),
			value[uint64](m)(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, of, nvml.MEMORY_LOCATION_DRAM)),
			value[uint64](m)(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, of, nvml.MEMORY_LOCATION_SRAM)))
	}
	equal(t, "volatile", counts(nvml.VOLATILE_ECC), "7 3 2 1")
	var fields []string
	for id := uint32(nvml.FI_DEV_ECC_CURRENT); id <= nvml.FI_DEV_ECC_DBE_AGG_TOTAL; id++ {
		fields = append(fields, m.field(d, id))
	}
	equal(t, "fields", fields, "[1 1 7 3 7 3]")
	equal(t, "other GPU", m.field(m.gpu(0), nvml.FI_DEV_ECC_DBE_VOL_TOTAL), "0")
	status := value[nvml.EccSramErrorStatus](m)(d.GetSramEccErrorStatus())
	equal(t, "SRAM", fmt.Sprint(status.VolatileUncSecDed, status.AggregateUncSecDed), "1 1")
	m.must(m.Reset(1))
	equal(t, "volatile after a reset", counts(nvml.VOLATILE_ECC), "0 0 0 0")
	equal(t, "aggregate after a reset", counts(nvml.AGGREGATE_ECC), "7 3 2 1")
	m.ok(d.ClearEccErrorCounts(nvml.AGGREGATE_ECC))
	equal(t, "aggregate, cleared", counts(nvml.AGGREGATE_ECC), "0 0 0 0")
	m.ok(d.SetEccMode(nvml.FEATURE_DISABLED))
	equal(t, "pending", m.field(d, nvml.FI_DEV_ECC_CURRENT)+m.field(d, nvml.FI_DEV_ECC_PENDING), "10")
	m.must(m.Reset(1))
	equal(t, "off", m.field(d, nvml.FI_DEV_ECC_CURRENT), "0")
	m.is(second(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)), nvml.ERROR_NOT_SUPPORTED)
}

func TestRemappedRows(t *testing.T) {
	m := newMachine(t, "a100-40", 1)
	rows := func() string {
		correctable, uncorrectable, pending, failure, ret := m.gpu(0).GetRemappedRows()
		if ret != nvml.SUCCESS {
			return ret.Error()
		}
		return fmt.Sprint(correctable, uncorrectable, pending, failure)
	}
	equal(t, "at first", rows(), "0 0 false false")
	m.must(m.Remap(0, Remap{Correctable: 1, Uncorrectable: 2, Pending: true}))
	equal(t, "pending", rows(), "1 2 true false")
	var fields []string
	for id := uint32(nvml.FI_DEV_REMAPPED_COR); id <= nvml.FI_DEV_REMAPPED_FAILURE; id++ {
		fields = append(fields, m.field(m.gpu(0), id))
	}
	equal(t, "fields", fields, "[1 2 1 0]")
	m.must(m.Reset(0))
	equal(t, "after a reset", rows(), "1 2 false false")
	m.must(m.Remap(0, Remap{Uncorrectable: 3, Failure: true}))
	m.must(m.Reset(0))
	equal(t, "a failure stays", rows(), "0 3 false true")
	histogram := value[nvml.RowRemapperHistogramValues](m)(m.gpu(0).GetRowRemapperHistogram())
	equal(t, "histogram", histogram, "{Max:636 High:3 Partial:0 Low:0 None:1}")
	m.ok(second(m.gpu(0).SetMigMode(1)))
	equal(t, "in MIG mode", rows()+", "+m.field(m.gpu(0), nvml.FI_DEV_REMAPPED_PENDING), "Not Supported, Not Supported")
}

// TestRetiredPages: a board of before Ampere has these in the place of rows.
func TestRetiredPages(t *testing.T) {
	m := newMachine(t, "t4", 1)
	_, _, _, _, ret := m.gpu(0).GetRemappedRows()
	m.is(ret, nvml.ERROR_NOT_SUPPORTED)
	m.must(m.Set(0, "retired_dbe", 2))
	m.must(m.Set(0, "retired_pending", 1))
	equal(t, "pages", len(value[[]uint64](m)(m.gpu(0).GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR))), 2)
	equal(t, "pending", value[nvml.EnableState](m)(m.gpu(0).GetRetiredPagesPendingStatus()), nvml.FEATURE_ENABLED)
	equal(t, "fields", m.field(m.gpu(0), nvml.FI_DEV_RETIRED_DBE)+m.field(m.gpu(0), nvml.FI_DEV_RETIRED_PENDING), "21")
}

func TestRecoveryAction(t *testing.T) {
	m := newMachine(t, "l4", 1)
	_, wait := m.listen(nvml.EventTypeGpuRecoveryAction, 0)
	action := func() string { return m.field(m.gpu(0), nvml.FI_DEV_GET_GPU_RECOVERY_ACTION) }
	equal(t, "at first", action(), "0")
	m.must(m.RecoveryAction(0, 4))
	equal(t, "asked for", action(), "4")
	equal(t, "event", strings.Fields(wait())[2:4], "[0x8000 4]")
	m.must(m.RecoveryAction(0, 4))
	equal(t, "no change", wait(), "Timeout")
	m.must(m.Reset(0))
	equal(t, "after a reset", action(), "0")
}

func TestNVLink(t *testing.T) {
	m := newMachine(t, "h100", 1)
	d := m.gpu(0)
	m.must(m.NVLink(0, 17, false))
	m.must(m.NVLink(0, 3, false))
	m.must(m.NVLink(0, 3, true))
	for link := range 18 {
		want := fmt.Sprint(map[bool]int{true: 0, false: 1}[link == 17])
		equal(t, fmt.Sprint("link ", link), fmt.Sprint(value[nvml.EnableState](m)(d.GetNvLinkState(link))), want)
		equal(t, fmt.Sprint("state of link ", link), m.field(d, nvml.FI_DEV_NVLINK_GET_STATE, uint32(link)), want)
	}
	m.is(second(d.GetNvLinkState(18)), nvml.ERROR_INVALID_ARGUMENT)
	equal(t, "speed", m.field(d, nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON), "26562")
	remote := value[nvml.PciInfo](m)(d.GetNvLinkRemotePciInfo(0))
	equal(t, "switch", fmt.Sprintf("%#x at %s", remote.PciDeviceId, words(remote.BusId[:])), "0x22a310de at 00000000:05:00.0")
	fabric, ret := d.GetGpuFabricInfoV().V3()
	m.ok(ret)
	equal(t, "fabric", fmt.Sprint(fabric.State, fabric.HealthSummary), "3 1")
	m.must(m.Set(0, "fabric_unhealthy", 1))
	fabric, _ = d.GetGpuFabricInfoV().V3()
	equal(t, "fabric", fabric.HealthSummary, nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY)
}

func TestNoNVLink(t *testing.T) {
	m := newMachine(t, "l4", 1)
	l4 := m.gpu(0)
	m.is(second(l4.GetNvLinkState(0)), nvml.ERROR_NOT_SUPPORTED)
	m.is(second(l4.GetGpuFabricInfo()), nvml.ERROR_NOT_SUPPORTED)
}

func TestModes(t *testing.T) {
	m := newMachine(t, "a10", 1)
	d := m.gpu(0)
	m.ok(d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	m.ok(d.SetPersistenceMode(nvml.FEATURE_ENABLED))
	m.ok(d.SetPowerManagementLimit(120000))
	m.is(d.SetPowerManagementLimit(1), nvml.ERROR_INVALID_ARGUMENT)
	modes := func() string {
		return fmt.Sprint(value[nvml.ComputeMode](m)(d.GetComputeMode()), value[nvml.EnableState](m)(d.GetPersistenceMode()), value[uint32](m)(d.GetEnforcedPowerLimit()))
	}
	equal(t, "set", modes(), "3 1 120000")
	m.must(m.Reset(0))
	equal(t, "after a reset", modes(), "3 1 120000")
	m.must(m.Reboot())
	equal(t, "after a reboot", modes(), "0 0 150000")
}
