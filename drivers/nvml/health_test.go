package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourcev1 "k8s.io/api/resource/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/xid"
)

// judge is the part of the driver that makes taints of troubles.
type judge struct {
	*health.Monitor
	clock *clocktesting.FakePassiveClock
}

const recoveryTime = 30 * time.Second

// patience is how long a call may take in tests of calls that hang.
const patience = 400 * time.Millisecond

func newJudge(t *testing.T) *judge {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	monitor, err := health.New(t.TempDir(), "boot-1", clock, recoveryTime)
	if err != nil {
		t.Fatal(err)
	}
	return &judge{monitor, clock}
}

// look has the judge see what the inventory says, some time after the last look.
func (j *judge) look(t *testing.T, r *rig, later time.Duration) {
	t.Helper()
	report, err := r.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j.clock.SetTime(j.clock.Now().Add(later))
	if _, err := j.Observe(report); err != nil {
		t.Fatal(err)
	}
}

// taints are the keys and effects that a severity means.
func taints(severity inventory.Severity) []string {
	all := []string{}
	if severity >= inventory.Suspect {
		all = append(all, "gpu.gpuladder.dev/unhealthy:NoSchedule")
	}
	if severity >= inventory.Failed {
		all = append(all, "gpu.gpuladder.dev/failed:NoExecute")
	}
	return all
}

func said(taints []resourcev1.DeviceTaint) []string {
	all := []string{}
	for _, taint := range taints {
		all = append(all, fmt.Sprintf("%s:%s", taint.Key, taint.Effect))
	}
	return all
}

// clear has the driver ask for a reset, and then for nothing: the reset is done.
func (r *rig) clear(t *testing.T, g *testGPU) {
	t.Helper()
	device := addressOf(&g.pci).name()
	r.change(func() { g.fields[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION] = 1 })
	eventually(t, "the recovery action is seen", func() bool { return r.troubles(t, device)["recovery-action"].Reason != "" })
	r.change(func() { g.fields[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION] = 0 })
}

// TestEveryXID has each code of the catalog, and some that it does not have,
// told by NVML: the right severity and taints, for all of which nothing is left
// once the GPU was reset.
func TestEveryXID(t *testing.T) {
	codes := []int{173, 200, 999, 100000}
	for _, row := range xid.Catalog() {
		for code := row.First; code <= row.Last; code++ {
			codes = append(codes, code)
		}
	}
	if len(codes) < 150 {
		t.Fatalf("the catalog has %d codes", len(codes))
	}
	const gpus = 16
	n := newNode(gpus + 1)
	marker := n.gpus[gpus] // what was told before of others is taken in when this is
	r := run(t, n, "", func(c *Config) { c.Settle = time.Hour })
	r.pool(t)
	for batch := range slices.Chunk(codes, gpus-1) {
		judge := newJudge(t)
		for i, code := range batch {
			n.gpus[i].xid(uint64(code), noInstance)
		}
		marker.xid(62, noInstance)
		eventually(t, "the last XID is heard", func() bool { return r.troubles(t, addressOf(&marker.pci).name())["xid"].Reason == "Xid62" })
		judge.look(t, r, 0)
		for i, code := range batch {
			device := addressOf(&n.gpus[i].pci).name()
			want := xid.SeverityOf(code)
			if code == 154 { // it only points to the recovery action, which is none
				want = inventory.Healthy
			}
			trouble := r.troubles(t, device)["xid"]
			if trouble.Severity != want {
				t.Errorf("XID %d is %v, want %v", code, trouble.Severity, want)
			}
			if got := said(judge.Taints(device)); !slices.Equal(got, taints(want)) {
				t.Errorf("XID %d sets %v, want %v", code, got, taints(want))
			}
			if want > inventory.Healthy && (!trouble.Latched || trouble.Message != xid.Describe(min(code, maxXID+1))) {
				t.Errorf("XID %d: %+v", code, trouble)
			}
		}
		for _, g := range append(slices.Clone(n.gpus[:len(batch)]), marker) {
			r.clear(t, g)
		}
		for i, code := range batch {
			device := addressOf(&n.gpus[i].pci).name()
			eventually(t, fmt.Sprintf("XID %d is over", code), func() bool { return len(r.troubles(t, device)) == 0 })
		}
		eventually(t, "the marker is over", func() bool { return len(r.troubles(t, addressOf(&marker.pci).name())) == 0 })
		judge.look(t, r, 0)
		judge.look(t, r, recoveryTime)
		for i, code := range batch {
			if got := judge.Taints(addressOf(&n.gpus[i].pci).name()); len(got) > 0 {
				t.Errorf("XID %d leaves %v", code, said(got))
			}
		}
	}
}

// TestEverySignal breaks what each signal of the table is seen with, and mends
// it again.
func TestEverySignal(t *testing.T) {
	type change func(n *node, g *testGPU)
	field := func(number uint32, value uint64) change {
		return func(n *node, g *testGPU) { n.change(func() { g.fields[number] = value }) }
	}
	fails := func(call string, ret nvml.Return) change {
		return func(n *node, g *testGPU) { n.change(func() { g.failing[call] = ret }) }
	}
	event := func(kind uint64) change {
		return func(n *node, g *testGPU) {
			n.events <- nvml.EventData{Device: g, EventType: kind, GpuInstanceId: noInstance}
		}
	}
	reset := func(n *node, g *testGPU) {
		n.change(func() { g.failing["*"] = nvml.ERROR_RESET_REQUIRED })
		eventually(t, "the reset is seen", func() bool { return g.asked("fields", 2) })
		n.change(func() { delete(g.failing, "*") })
	}
	hang := make(chan struct{})
	const action = nvml.FI_DEV_GET_GPU_RECOVERY_ACTION
	cases := map[xid.Signal]struct {
		prepare, do, undo change
		// all GPUs have it, not only the first.
		all bool
	}{
		xid.GPULost:        {do: fails("*", nvml.ERROR_GPU_IS_LOST), undo: fails("*", nvml.SUCCESS)},
		xid.GPUUnavailable: {do: event(nvml.EventTypeGpuUnavailableError), undo: reset},
		xid.ResetRequired:  {do: fails("*", nvml.ERROR_RESET_REQUIRED), undo: fails("*", nvml.SUCCESS)},
		xid.NVMLTimeout: {
			do:   func(n *node, g *testGPU) { n.change(func() { g.hanging["fields"] = hang }) },
			undo: func(n *node, g *testGPU) { n.change(func() { delete(g.hanging, "fields") }); close(hang) },
		},
		xid.NVMLError: {do: fails("fields", nvml.ERROR_UNKNOWN), undo: fails("fields", nvml.SUCCESS)},
		xid.NVMLUnavailable: {
			do: func(n *node, _ *testGPU) {
				n.change(func() { n.failing["count"], n.initErr = nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_DRIVER_NOT_LOADED })
			},
			undo: func(n *node, _ *testGPU) {
				n.change(func() { n.failing["count"], n.initErr = nvml.SUCCESS, nvml.SUCCESS })
			},
			all: true,
		},
		xid.ActionGPUReset:      {do: field(action, 1), undo: field(action, 0)},
		xid.ActionNodeReboot:    {do: field(action, 2), undo: field(action, 0)},
		xid.ActionDrainP2P:      {do: field(action, 3), undo: field(action, 0)},
		xid.ActionDrainAndReset: {do: field(action, 4), undo: field(action, 0)},
		xid.ActionRecoverIMEX:   {do: field(action, 5), undo: field(action, 0)},
		xid.ActionBusReset:      {do: field(action, 6), undo: field(action, 0)},
		xid.ActionSystemReboot:  {do: field(action, 7), undo: field(action, 0)},
		xid.ActionUnknown:       {do: field(action, 99), undo: field(action, 0)},
		xid.ECCUncorrectable: {
			prepare: func(n *node, g *testGPU) {
				n.change(func() { delete(g.fields, nvml.FI_DEV_REMAPPED_PENDING); delete(g.fields, nvml.FI_DEV_REMAPPED_FAILURE) })
			},
			do: field(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, 2), undo: field(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, 0),
		},
		xid.ECCUncorrectableRemap: {do: field(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, 2), undo: field(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, 0)},
		xid.RowRemapPending:       {do: field(nvml.FI_DEV_REMAPPED_PENDING, 1), undo: field(nvml.FI_DEV_REMAPPED_PENDING, 0)},
		xid.RowRemapFailure:       {do: field(nvml.FI_DEV_REMAPPED_FAILURE, 1), undo: field(nvml.FI_DEV_REMAPPED_FAILURE, 0)},
		xid.PageRetirementPending: {do: field(nvml.FI_DEV_RETIRED_PENDING, 1), undo: field(nvml.FI_DEV_RETIRED_PENDING, 0)},
		xid.RetirementRecorded:    {do: event(nvml.EventTypeDramRetirementEvent), undo: reset},
		xid.RetirementFailure:     {do: event(nvml.EventTypeDramRetirementFailure), undo: reset},
		xid.PoisonContained:       {do: event(nvml.EventTypeNonFatalPoisonError), undo: reset},
		xid.PoisonFatal:           {do: event(nvml.EventTypeFatalPoisonError), undo: reset},
		xid.SingleBitStorm:        {do: event(nvml.EventTypeSingleBitEccErrorStorm), undo: reset},
		xid.NVLinkDown: {
			do: func(n *node, g *testGPU) {
				n.change(func() { g.links[3], g.links[17] = nvml.FEATURE_DISABLED, nvml.FEATURE_DISABLED })
			},
			undo: func(n *node, g *testGPU) {
				n.change(func() { g.links[3], g.links[17] = nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED })
			},
		},
	}
	for _, row := range xid.Signals() {
		if row.Signal == xid.EventsTimeout {
			continue // TestEventsThatHang: it takes its time
		}
		test, is := cases[row.Signal]
		if !is {
			t.Errorf("%s is not tested", row.Signal)
			continue
		}
		t.Run(string(row.Signal), func(t *testing.T) {
			n := newNode(2)
			g := n.gpus[0]
			if test.prepare != nil {
				test.prepare(n, g)
			}
			r := run(t, n, "", func(c *Config) {
				c.Settle = time.Hour
				if row.Signal == xid.NVMLTimeout {
					c.CallLimit = patience
				}
			})
			if len(r.pool(t).Devices) != 2 {
				t.Fatal("there are not two devices")
			}
			judge := newJudge(t)
			test.do(n, g)
			if row.Severity == inventory.Healthy {
				n.gpus[1].xid(62, noInstance) // what was told before is taken in when this is
				eventually(t, "the marker is heard", func() bool { return r.troubles(t, "gpu-28-00")["xid"].Reason != "" })
				eventually(t, "it is read twice more", func() bool { return g.asked("fields", 2) })
			} else {
				eventually(t, "the trouble is there", func() bool { return r.troubles(t, "gpu-18-00")[row.Source].Reason == row.Reason })
			}
			judge.look(t, r, 0)
			got := r.troubles(t, "gpu-18-00")[row.Source]
			if got.Severity != row.Severity || row.Severity > inventory.Healthy && (got.Latched != row.Latched || !strings.HasPrefix(got.Message, row.Words)) {
				t.Errorf("got %+v", got)
			}
			if got := said(judge.Taints("gpu-18-00")); !slices.Equal(got, taints(row.Severity)) {
				t.Errorf("sets %v, want %v", got, taints(row.Severity))
			}
			if other := r.troubles(t, "gpu-28-00"); row.Severity > inventory.Healthy && (len(other) > 0) != test.all {
				t.Errorf("the other GPU has %v", other)
			}
			if got := r.names(t); len(got) != 2 {
				t.Errorf("devices are %v now", got)
			}
			test.undo(n, g)
			eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
			judge.look(t, r, 0)
			if got := said(judge.Taints("gpu-18-00")); !slices.Equal(got, taints(row.Severity)) {
				t.Errorf("at once the taints are %v", got)
			}
			judge.look(t, r, recoveryTime)
			if got := judge.Taints("gpu-18-00"); len(got) > 0 {
				t.Errorf("leaves %v", said(got))
			}
		})
	}
}

// asked waits for so many more calls.
func (g *testGPU) asked(call string, times int) bool {
	count := func() (made int) {
		g.node.mu.Lock()
		defer g.node.mu.Unlock()
		for _, c := range g.calls {
			if c == call {
				made++
			}
		}
		return made
	}
	from := count()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if count() >= from+times {
			return true
		}
	}
	return false
}

// TestEventsThatHang: a node whose errors can't be heard does not look healthy.
func TestEventsThatHang(t *testing.T) {
	n := newNode(1)
	hang := make(chan struct{})
	set, _ := n.EventSetCreate()
	waits := false
	n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return hangingSet{set, n, hang, &waits}, nvml.SUCCESS }
	r := run(t, n, "", func(c *Config) { c.CallLimit = patience })
	r.pool(t)
	n.change(func() { waits = true })
	eventually(t, "it is told", func() bool { return r.troubles(t, "gpu-18-00")["events"].Reason == "EventsTimeout" })
	if got := r.troubles(t, "gpu-18-00")["events"]; got.Severity != inventory.Suspect || !strings.Contains(got.Message, "nvmlEventSetWait") {
		t.Errorf("got %+v", got)
	}
	n.change(func() { waits = false })
	close(hang)
	eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
}

// TestEventsThatFail: no more does one where they are refused; and what refuses
// them is asked again.
func TestEventsThatFail(t *testing.T) {
	for call, fail := range map[string]func(*node, nvml.Return){
		"nvmlEventSetCreate":               func(n *node, ret nvml.Return) { n.failing["eventset"] = ret },
		"nvmlDeviceRegisterEvents":         func(n *node, ret nvml.Return) { n.gpus[0].failing["register"] = ret },
		"nvmlDeviceGetSupportedEventTypes": func(n *node, ret nvml.Return) { n.gpus[0].failing["supported"] = ret },
		"nvmlEventSetWait":                 func(n *node, ret nvml.Return) { n.failing["wait"] = ret },
	} {
		t.Run(call, func(t *testing.T) {
			n := newNode(2)
			create := n.EventSetCreateFunc
			n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
				if ret := n.ret("eventset"); ret != nvml.SUCCESS {
					return nil, ret
				}
				return create()
			}
			fail(n, nvml.ERROR_INSUFFICIENT_RESOURCES)
			r := run(t, n, "", nil)
			r.pool(t)
			eventually(t, "it is told", func() bool { return r.troubles(t, "gpu-18-00")["events"].Reason == "EventsTimeout" })
			if got := r.troubles(t, "gpu-18-00")["events"]; got.Severity != inventory.Suspect || !strings.Contains(got.Message, call+": insufficient resources") {
				t.Errorf("got %+v", got)
			}
			one := strings.HasPrefix(call, "nvmlDevice")
			if other := r.troubles(t, "gpu-28-00"); (len(other) == 0) != one {
				t.Errorf("the other GPU has %v", other)
			}
			n.change(func() { fail(n, nvml.SUCCESS) })
			eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
			eventually(t, "XIDs are heard", func() bool {
				select {
				case n.events <- nvml.EventData{Device: n.gpus[0], EventType: nvml.EventTypeXidCriticalError, EventData: 62, GpuInstanceId: noInstance}:
				default: // there are some to be heard
				}
				return r.troubles(t, "gpu-18-00")["xid"].Reason == "Xid62"
			})
		})
	}
}

// TestNoEventsAtAll: what has none is not deaf.
func TestNoEventsAtAll(t *testing.T) {
	for name, change := range map[string]func(*node){
		"the library": func(n *node) {
			n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		},
		"the GPU":   func(n *node) { n.gpus[0].failing["register"] = nvml.ERROR_NOT_SUPPORTED },
		"of a kind": func(n *node) { n.gpus[0].events = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(1)
			change(n)
			r := run(t, n, "", nil)
			r.pool(t)
			n.gpus[0].asked("fields", 20)
			if got := r.troubles(t, "gpu-18-00"); len(got) > 0 {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestDeafOverASession: NVML that is opened anew is deaf until something is heard.
func TestDeafOverASession(t *testing.T) {
	n := newNode(1)
	hang := make(chan struct{})
	set, _ := n.EventSetCreate()
	waits := true
	n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return hangingSet{set, n, hang, &waits}, nvml.SUCCESS }
	r := run(t, n, "", func(c *Config) { c.CallLimit = patience })
	r.pool(t)
	deaf := func(device string) bool { return r.troubles(t, device)["events"].Reason == "EventsTimeout" }
	eventually(t, "it is told", func() bool { return deaf("gpu-18-00") })
	n.change(func() { n.gpus = append(n.gpus, n.newGPU(1)) })
	eventually(t, "another GPU is found", func() bool {
		if !deaf("gpu-18-00") {
			t.Fatal("it is not told any more, although nothing is heard")
		}
		return len(r.names(t)) == 2
	})
	for range 100 {
		if !deaf("gpu-18-00") || !deaf("gpu-28-00") {
			t.Fatal("it is not told any more, although nothing is heard")
		}
		time.Sleep(3 * time.Millisecond)
	}
	n.change(func() { waits = false })
	close(hang)
	eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 && len(r.troubles(t, "gpu-28-00")) == 0 })
}

type hangingSet struct {
	nvml.EventSet
	node  *node
	until chan struct{}
	waits *bool
}

func (s hangingSet) Wait(timeout uint32) (nvml.EventData, nvml.Return) {
	s.node.mu.Lock()
	waits := *s.waits
	s.node.mu.Unlock()
	if waits {
		<-s.until
	}
	return s.EventSet.Wait(timeout)
}

// TestWorstOfSeveralWins: a lesser error after a worse one takes nothing away.
func TestWorstOfSeveralWins(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", func(c *Config) { c.Settle = time.Hour })
	r.pool(t)
	for _, code := range []uint64{13, 79, 48, 94, 31} {
		n.gpus[0].xid(code, noInstance)
	}
	n.change(func() { n.gpus[0].fields[nvml.FI_DEV_REMAPPED_PENDING] = 1 })
	eventually(t, "both are seen", func() bool { return len(r.troubles(t, "gpu-18-00")) == 2 })
	eventually(t, "the worse counts", func() bool {
		return r.troubles(t, "gpu-18-00")["xid"].Reason == "Xid79" && r.troubles(t, "gpu-18-00")["row-remap"].Severity == inventory.Suspect
	})
}

// TestXIDOfAnInstance hits the partition, and what would be on the same memory;
// one of the board hits all.
func TestXIDOfAnInstance(t *testing.T) {
	n := newNode(1)
	n.gpus[0].split()
	r := run(t, n, "", func(c *Config) { c.Settle = time.Hour })
	r.pool(t)
	hit, other := "gpu-18-00-mig-3g40gb-9-4", "gpu-18-00-mig-3g40gb-9-0"
	for _, device := range []string{hit, other} {
		if _, err := r.Edits(t.Context(), device); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the instances are read", func() bool {
		r.Inventory.mu.Lock()
		defer r.Inventory.mu.Unlock()
		return len(r.Inventory.gpus["gpu-18-00"].instances) == 2
	})
	n.gpus[0].xid(109, 1) // the first that was made
	eventually(t, "it is heard", func() bool { return r.troubles(t, hit)["xid"].Reason == "Xid109" })
	for device, want := range map[string]bool{
		other: false, "gpu-18-00-mig-1g10gb-19-3": false, "gpu-18-00-mig-1g10gb-19-4": true, "gpu-18-00-mig-7g80gb-0-0": true, "gpu-18-00": true,
	} {
		if got := r.troubles(t, device)["xid"].Reason != ""; got != want {
			t.Errorf("%s is hit: %v, want %v", device, got, want)
		}
	}
	n.gpus[0].xid(62, noInstance)
	eventually(t, "all are hit", func() bool { return r.troubles(t, other)["xid"].Reason == "Xid62" })
	if got := r.troubles(t, hit)["xid"]; got.Severity != inventory.Suspect {
		t.Errorf("got %+v", got)
	}
	// An instance that is not known may be any.
	n.gpus[0].xid(79, 77)
	eventually(t, "all have failed", func() bool { return r.troubles(t, other)["xid"].Reason == "Xid79" })
}

// TestPolicyChangesTheTable in both directions.
func TestPolicyChangesTheTable(t *testing.T) {
	n := newNode(2)
	r := run(t, n, "", func(c *Config) {
		c.Settle = time.Hour
		c.Policy.Health = Health{
			XIDs:    map[string]string{"13": "failed", "79": "healthy", "154": "suspect"},
			Signals: map[string]string{"nvlink-down": "healthy", "ecc-uncorrectable-with-remapping": "suspect"},
		}
	})
	r.pool(t)
	n.change(func() {
		n.gpus[0].links[0] = nvml.FEATURE_DISABLED
		n.gpus[0].fields[nvml.FI_DEV_ECC_DBE_VOL_TOTAL] = 1
	})
	n.gpus[0].xid(79, noInstance)
	n.gpus[0].xid(13, noInstance)
	n.gpus[1].xid(154, noInstance)
	eventually(t, "all is seen", func() bool { return len(r.troubles(t, "gpu-18-00")) == 2 && len(r.troubles(t, "gpu-28-00")) == 1 })
	got := r.troubles(t, "gpu-18-00")
	if got["xid"].Reason != "Xid13" || got["xid"].Severity != inventory.Failed || got["ecc"].Severity != inventory.Suspect {
		t.Errorf("got %v", got)
	}
	if got := r.troubles(t, "gpu-28-00")["xid"]; got.Reason != "Xid154" {
		t.Errorf("got %v", got)
	}
}

// TestXIDSettles: where NVIDIA's driver never asks for anything, an XID is over
// after some time, and not before.
func TestXIDSettles(t *testing.T) {
	n := newNode(1)
	r := run(t, n, "", func(c *Config) { c.Settle = 400 * time.Millisecond })
	r.pool(t)
	n.gpus[0].xid(48, noInstance)
	begun := time.Now()
	eventually(t, "it is heard", func() bool { return r.troubles(t, "gpu-18-00")["xid"].Reason == "Xid48" })
	eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("it is over after %v", took)
	}
}

// TestWhenEventsAreOver spells out the rule, step by step.
func TestWhenEventsAreOver(t *testing.T) {
	const settle = time.Minute
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	asks, quiet, silent := &reading{tellsAction: true, asks: true}, &reading{tellsAction: true}, &reading{}
	type step struct {
		at    int
		do    any // a reading, a signal why there is none, or "event"
		begun int // when the reading was begun, if not at once
		over  bool
	}
	for name, steps := range map[string][]step{
		"asked, then not":           {{at: 0, do: "event"}, {at: 1, do: asks, begun: 1}, {at: 2, do: quiet, begun: 2, over: true}},
		"asked already":             {{at: 0, do: asks}, {at: 1, do: "event"}, {at: 2, do: quiet, begun: 2, over: true}},
		"begun before the event":    {{at: 0, do: asks}, {at: 2, do: "event"}, {at: 3, do: quiet, begun: 1}, {at: 4, do: quiet, begun: 4, over: true}},
		"never asked":               {{at: 0, do: "event"}, {at: 1, do: quiet, begun: 1}, {at: 59, do: quiet, begun: 59}, {at: 61, do: quiet, begun: 61, over: true}},
		"again while it settles":    {{at: 0, do: "event"}, {at: 1, do: quiet, begun: 1}, {at: 40, do: "event"}, {at: 70, do: quiet, begun: 70}, {at: 130, do: quiet, begun: 130, over: true}},
		"not read while it settles": {{at: 0, do: "event"}, {at: 1, do: quiet, begun: 1}, {at: 50, do: xid.NVMLTimeout}, {at: 61, do: quiet, begun: 61}, {at: 121, do: quiet, begun: 121, over: true}},
		"lost and back":             {{at: 0, do: "event"}, {at: 1, do: xid.GPULost}, {at: 2, do: silent, begun: 2, over: true}},
		"it only hung":              {{at: 0, do: "event"}, {at: 1, do: xid.NVMLTimeout}, {at: 999, do: silent, begun: 999}},
		"back, and to be reset":     {{at: 0, do: "event"}, {at: 1, do: xid.GPULost}, {at: 2, do: asks, begun: 2}, {at: 3, do: quiet, begun: 3, over: true}},
		"lost before the event":     {{at: 0, do: xid.GPULost}, {at: 1, do: "event"}, {at: 999, do: silent, begun: 999}},
	} {
		var r recovery
		for n, s := range steps {
			over := false
			switch do := s.do.(type) {
			case *reading:
				over = r.read(at(s.begun), at(s.at), do, false, settle)
			case xid.Signal:
				r.failed(do)
			default:
				r.eventAt(at(s.at))
			}
			if over != s.over {
				t.Errorf("%s, step %d: over is %v", name, n, over)
			}
		}
	}
}

// TestDriverThatTellsNoAction: before the recovery action could be read, only a
// GPU that went and came back, or forgot its errors, is known to be reset.
func TestDriverThatTellsNoAction(t *testing.T) {
	for name, reset := range map[string]func(n *node, g *testGPU){
		"the GPU was away": func(n *node, g *testGPU) {
			n.change(func() { g.failing["*"] = nvml.ERROR_GPU_IS_LOST })
			g.asked("fields", 2)
			n.change(func() { delete(g.failing, "*") })
		},
		"its errors are forgotten": func(n *node, g *testGPU) {
			n.change(func() { g.fields[nvml.FI_DEV_ECC_DBE_VOL_TOTAL] = 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(1)
			g := n.gpus[0]
			delete(g.fields, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION)
			g.fields[nvml.FI_DEV_ECC_DBE_VOL_TOTAL] = 3
			r := run(t, n, "", func(c *Config) { c.Settle = time.Millisecond })
			r.pool(t)
			g.asked("fields", 2)
			g.xid(154, noInstance) // nobody says what it is about
			eventually(t, "it is heard", func() bool { return r.troubles(t, "gpu-18-00")["xid"].Reason == "Xid154" })
			g.asked("fields", 10)
			if len(r.troubles(t, "gpu-18-00")) == 0 {
				t.Fatal("it is over by itself")
			}
			reset(n, g)
			eventually(t, "it is over", func() bool { return len(r.troubles(t, "gpu-18-00")) == 0 })
		})
	}
}

// TestXIDOfAnEarlierDriver is known to the judge only, and recovers all the same.
func TestXIDOfAnEarlierDriver(t *testing.T) {
	n := newNode(1)
	judge := newJudge(t)
	if _, err := judge.Observe(inventory.Report{Troubles: []inventory.Trouble{{
		Origin: inventory.Origin{Device: "gpu-18-00", Source: "xid"}, Severity: inventory.Suspect, Reason: "Xid48", Latched: true,
	}}}); err != nil {
		t.Fatal(err)
	}
	r := run(t, n, "", func(c *Config) { c.Settle = 200 * time.Millisecond })
	r.pool(t)
	judge.look(t, r, 0)
	judge.look(t, r, recoveryTime)
	if len(judge.Taints("gpu-18-00")) == 0 {
		t.Fatal("it is over at once")
	}
	eventually(t, "it is told to be over", func() bool {
		report, err := r.Health(t.Context())
		return err == nil && slices.Contains(report.Recovered, inventory.Origin{Device: "gpu-18-00", Source: "xid"})
	})
	judge.look(t, r, 0)
	judge.look(t, r, recoveryTime)
	if got := judge.Taints("gpu-18-00"); len(got) > 0 {
		t.Errorf("leaves %v", said(got))
	}
}

// TestLibraryThatLacksFunctions: an old library is asked for what it has; to
// call what it does not have would end the process.
func TestLibraryThatLacksFunctions(t *testing.T) {
	n := newNode(1)
	for _, name := range []string{
		"nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigMode", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetArchitecture",
		"nvmlDeviceGetRetiredPagesPendingStatus", "nvmlSystemGetCudaDriverVersion", "nvmlEventSetWait_v2",
	} {
		n.lacks[name] = true
	}
	g := n.gpus[0]
	unwanted := func(name string) { t.Errorf("%s was called", name) }
	g.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { unwanted("GetFieldValues"); return nvml.SUCCESS }
	g.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { unwanted("GetNvLinkState"); return 0, nvml.SUCCESS }
	g.GetMigModeFunc = func() (int, int, nvml.Return) { unwanted("GetMigMode"); return 0, 0, nvml.SUCCESS }
	g.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { unwanted("GetArchitecture"); return 0, nvml.SUCCESS }
	pending := false
	g.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return 0, 0, pending, false, nvml.SUCCESS
	}
	r := run(t, n, "", nil)
	device := r.device(t, "gpu-18-00")
	for _, name := range []resourcev1.QualifiedName{"architecture", "cudaDriverVersion"} {
		if _, is := device.Attributes[name]; is {
			t.Errorf("%s is made up", name)
		}
	}
	n.change(func() { pending = true })
	eventually(t, "the remap is read by the older call", func() bool { return r.troubles(t, "gpu-18-00")["row-remap"].Reason == "RowRemapPending" })
	g.xid(48, 0) // the older call leaves the instance out: 0 is none
	eventually(t, "the XID is heard", func() bool { return r.troubles(t, "gpu-18-00")["xid"].Reason == "Xid48" })

	n.change(func() { n.lacks["nvmlDeviceGetUUID"] = true })
	config := quick(n, t.TempDir())
	config.MemoryFile, config.Editor = "", &editor{}
	too, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = too.open(t.Context())
	var away *UnavailableError
	if !errors.As(err, &away) || !errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND) || !strings.Contains(err.Error(), "nvmlDeviceGetUUID") {
		t.Errorf("got %v", err)
	}
}
