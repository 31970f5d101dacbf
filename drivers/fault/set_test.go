package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	testingclock "k8s.io/utils/clock/testing"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/plugin"
	"gpuladder.dev/ladder/policies/fault"
)

// quiet is a context without a log.
var quiet = klog.NewContext(context.Background(), klog.New(nil))

// killed is what the tests' Kill panics with.
type killed struct{}

// place is a Set and what it acts on.
type place struct {
	*Set
	config Config
	clock  *testingclock.FakeClock
	torn   int
	tear   error
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{clock: testingclock.NewFakeClock(time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC))}
	p.config = Config{
		Path:    filepath.Join(t.TempDir(), FileName),
		Devices: func() []string { return []string{"gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-1"} },
		Tear:    func(context.Context) error { p.torn++; return p.tear },
		Kill:    func() { panic(killed{}) },
		Clock:   p.clock,
	}
	p.restart(t)
	return p
}

func (p *place) restart(t *testing.T) {
	t.Helper()
	set, err := NewSet(p.config)
	if err != nil {
		t.Fatal(err)
	}
	p.Set = set
}

func (p *place) inject(t *testing.T, spec fault.Spec) fault.Fault {
	t.Helper()
	made, err := p.Inject(quiet, spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// kinds of the faults in force.
func (p *place) kinds(t *testing.T) string {
	t.Helper()
	list, err := p.List(quiet)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range list {
		all = append(all, fmt.Sprintf("%s:%s", f.ID, f.Kind))
	}
	return strings.Join(all, " ")
}

func TestFaultsLastOverRestarts(t *testing.T) {
	p := newPlace(t)
	first := p.inject(t, fault.Spec{Kind: fault.Lost, Device: "gpu-0"})
	p.inject(t, fault.Spec{Kind: fault.StaleSlice})
	if first.ID != "1" || !first.Since.Equal(p.clock.Now()) {
		t.Errorf("the fault is %+v", first)
	}
	other, err := NewSet(p.config) // of a rolling update
	if err != nil {
		t.Fatal(err)
	}
	p.restart(t)
	if got := p.kinds(t); got != "1:lost 2:stale-slice" {
		t.Errorf("in force are %s", got)
	}
	if _, err := p.Clear(quiet, fault.Selector{ID: "2"}); err != nil {
		t.Fatal(err)
	}
	if other.Publishing() != plugin.PublishAll {
		t.Error("the other driver still has the fault")
	}
	p.restart(t)
	if made := p.inject(t, fault.Spec{Kind: fault.Remap, Device: "gpu-1"}); made.ID != "3" {
		t.Errorf("ID %s is used twice", made.ID)
	}
}

func TestClearing(t *testing.T) {
	p := newPlace(t)
	for _, device := range []string{"gpu-0", "gpu-1", "gpu-0"} {
		p.inject(t, fault.Spec{Kind: fault.Lost, Device: device})
	}
	for name, test := range map[string]struct {
		which fault.Selector
		err   error
	}{
		"unknown device": {fault.Selector{Device: "gpu-9"}, fault.ErrNotFound},
		"unknown ID":     {fault.Selector{ID: "9"}, fault.ErrNotFound},
		"nothing there":  {fault.Selector{Device: "gpu-0-mig-1g10gb-19-0"}, nil},
	} {
		if cleared, err := p.Clear(quiet, test.which); !errors.Is(err, test.err) || len(cleared) != 0 {
			t.Errorf("%s: %v, %v", name, cleared, err)
		}
	}
	if cleared, err := p.Clear(quiet, fault.Selector{Device: "gpu-0"}); err != nil || len(cleared) != 2 {
		t.Errorf("cleared are %v, %v", cleared, err)
	}
	if got := p.kinds(t); got != "2:lost" {
		t.Errorf("left are %s", got)
	}
	if cleared, err := p.Clear(quiet, fault.Selector{}); err != nil || len(cleared) != 1 || p.kinds(t) != "" {
		t.Errorf("cleared are %v, %v", cleared, err)
	}
}

func TestUnknownDeviceIsRefused(t *testing.T) {
	p := newPlace(t)
	if _, err := p.Inject(quiet, fault.Spec{Kind: fault.Lost, Device: "gpu-7"}); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), "gpu-1") {
		t.Errorf("got %v", err)
	}
}

func TestEachChangeIsTold(t *testing.T) {
	p := newPlace(t)
	one, two := p.Changed(), p.Changed()
	p.inject(t, fault.Spec{Kind: fault.StaleSlice})
	<-one
	<-two
	if _, err := p.Clear(quiet, fault.Selector{}); err != nil {
		t.Fatal(err)
	}
	<-one
	<-two
	if _, err := p.Clear(quiet, fault.Selector{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-one:
		t.Error("nothing was cleared, and it was told")
	default:
	}
}

func TestPublishing(t *testing.T) {
	p := newPlace(t)
	for _, test := range []struct {
		kind fault.Kind
		want plugin.Publishing
	}{{"", plugin.PublishAll}, {fault.StaleSlice, plugin.PublishNoChange}, {fault.WithholdSlice, plugin.PublishNothing}} {
		if test.kind != "" {
			p.inject(t, fault.Spec{Kind: test.kind})
		}
		if got := p.Publishing(); got != test.want {
			t.Errorf("with %s it is %v, want %v", p.kinds(t), got, test.want)
		}
	}
}

func TestTearing(t *testing.T) {
	p := newPlace(t)
	p.inject(t, fault.Spec{Kind: fault.TornCheckpoint})
	if p.torn != 1 || p.kinds(t) != "" {
		t.Errorf("torn %d times, in force are %s", p.torn, p.kinds(t))
	}
	p.tear = errors.New("read-only")
	if _, err := p.Inject(quiet, fault.Spec{Kind: fault.TornCheckpoint}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("got %v", err)
	}
	if made := p.inject(t, fault.Spec{Kind: fault.StaleSlice}); made.ID != "2" {
		t.Errorf("the next ID is %s", made.ID)
	}
}

// dies says whether the driver is killed at a point.
func (p *place) dies(point engine.Point) (died bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ours := r.(killed); !ours {
				panic(r)
			}
			died = true
		}
	}()
	_ = p.At(quiet, point, "uid")
	return false
}

// TestCrashPoints: every point that can be asked for is one that the engine
// comes to, and the other way round.
func TestCrashPoints(t *testing.T) {
	var known []engine.Point
	for _, point := range fault.CrashPoints() {
		known = append(known, engine.Point(point))
	}
	if !slices.Equal(known, engine.Points()) {
		t.Errorf("faults know %v, the engine %v", known, engine.Points())
	}
	for _, point := range fault.CrashPoints() {
		p := newPlace(t)
		p.inject(t, fault.Spec{Kind: fault.CrashAt, Point: point})
		for _, at := range engine.Points() {
			if died := p.dies(at); died != (string(at) == string(point)) {
				t.Errorf("crash at %s: at %s it died: %v", point, at, died)
			}
		}
		p.restart(t)
		if !p.dies(engine.Point(point)) {
			t.Errorf("crash at %s is over with the first", point)
		}
	}
}

func TestCrashOnceIsOverAfterwards(t *testing.T) {
	p := newPlace(t)
	p.inject(t, fault.Spec{Kind: fault.CrashAt, Point: fault.AfterCDI, Once: true})
	if !p.dies(engine.AfterCDI) {
		t.Error("it did not die")
	}
	p.restart(t)
	if p.dies(engine.AfterCDI) || p.kinds(t) != "" {
		t.Error("it died again")
	}
}

func TestFailingPrepares(t *testing.T) {
	p := newPlace(t)
	p.inject(t, fault.Spec{Kind: fault.FailPrepare, Times: 2, Message: "no power"})
	for i := range 3 {
		if err := p.At(quiet, engine.AfterCDI, "uid"); err != nil {
			t.Errorf("it failed where nothing is prepared: %v", err)
		}
		err := p.At(quiet, engine.AfterCheckpointStarted, "uid")
		if failed := err != nil; failed != (i < 2) || failed && err.Error() != "no power" {
			t.Errorf("time %d: %v", i+1, err)
		}
	}
	p.inject(t, fault.Spec{Kind: fault.FailPrepare, Message: "always"})
	for range 5 {
		if err := p.At(quiet, engine.AfterCheckpointStarted, "uid"); err == nil {
			t.Error("it did not fail")
		}
	}
	if list, _ := p.List(quiet); list[0].Fired != 5 {
		t.Errorf("it fired %d times", list[0].Fired)
	}
}

func TestSlowPrepares(t *testing.T) {
	p := newPlace(t)
	p.inject(t, fault.Spec{Kind: fault.SlowPrepare, Duration: fault.Duration(time.Minute)})
	ended := make(chan error, 1)
	go func() { ended <- p.At(quiet, engine.AfterCheckpointStarted, "uid") }()
	for !p.clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	p.clock.Step(time.Minute - time.Nanosecond)
	select {
	case <-ended:
		t.Fatal("it was too quick")
	default:
	}
	p.clock.Step(time.Nanosecond)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(quiet)
	cancel()
	if err := p.At(ctx, engine.AfterCheckpointStarted, "uid"); !errors.Is(err, context.Canceled) {
		t.Errorf("after kubelet has gone away: %v", err)
	}
}

func TestTroubles(t *testing.T) {
	devices := []string{"gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-1"}
	for name, test := range map[string]struct {
		specs []fault.Spec
		want  string
	}{
		"none":                   {nil, ""},
		"of the driver only":     {[]fault.Spec{{Kind: fault.StaleSlice}}, ""},
		"lost":                   {[]fault.Spec{{Kind: fault.Lost, Device: "gpu-1"}}, "gpu-1 bus failed GPULost"},
		"board of a partition":   {[]fault.Spec{{Kind: fault.Remap, Device: "gpu-0-mig-1g10gb-19-0"}}, "gpu-0 row-remap suspect RowRemapPending, gpu-0-mig-1g10gb-19-0 row-remap suspect RowRemapPending"},
		"partitions of a board":  {[]fault.Spec{{Kind: fault.XID, Device: "gpu-0", Code: 79}}, "gpu-0 xid failed Xid79, gpu-0-mig-1g10gb-19-0 xid failed Xid79"},
		"an application's error": {[]fault.Spec{{Kind: fault.XID, Device: "gpu-1", Code: 31}}, ""},
		"worst of two XIDs":      {[]fault.Spec{{Kind: fault.XID, Device: "gpu-1", Code: 79}, {Kind: fault.XID, Device: "gpu-1", Code: 48}}, "gpu-1 xid failed Xid79"},
		"two sources":            {[]fault.Spec{{Kind: fault.XID, Device: "gpu-1", Code: 48}, {Kind: fault.Lost, Device: "gpu-1"}}, "gpu-1 xid suspect Xid48, gpu-1 bus failed GPULost"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			for _, spec := range test.specs {
				p.inject(t, spec)
			}
			var got []string
			for _, trouble := range p.Troubles(devices) {
				got = append(got, fmt.Sprintf("%s %s %v %s", trouble.Device, trouble.Source, trouble.Severity, trouble.Reason))
				if trouble.Message == "" || trouble.Severity == inventory.Healthy {
					t.Errorf("the trouble is %+v", trouble)
				}
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

// TestTwoDriversChangeTheFaults: no change of one is lost to the other's, and
// no ID is given twice.
func TestTwoDriversChangeTheFaults(t *testing.T) {
	p := newPlace(t)
	other, err := NewSet(p.config)
	if err != nil {
		t.Fatal(err)
	}
	counted := p.inject(t, fault.Spec{Kind: fault.SlowPrepare})
	const each = 25
	var drivers sync.WaitGroup
	for _, set := range []*Set{p.Set, other} {
		drivers.Go(func() {
			for range each {
				kept, err := set.Inject(quiet, fault.Spec{Kind: fault.StaleSlice})
				if err != nil {
					t.Error(err)
				}
				over, err := set.Inject(quiet, fault.Spec{Kind: fault.WithholdSlice})
				if err != nil {
					t.Error(err)
				}
				if cleared, err := set.Clear(quiet, fault.Selector{ID: over.ID}); err != nil || len(cleared) != 1 {
					t.Errorf("fault %s, after %s: cleared are %v, %v", over.ID, kept.ID, cleared, err)
				}
				if err := set.fired(counted.ID, func(fault.Fault) bool { return false }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	drivers.Wait()
	list, err := p.List(quiet)
	if err != nil || len(list) != 1+2*each || list[0].Fired != 2*each {
		t.Errorf("there are %d faults, the first has fired %d times, %v", len(list), list[0].Fired, err)
	}
	ids := map[string]bool{}
	for _, f := range list {
		ids[f.ID] = true
	}
	if len(ids) != len(list) {
		t.Errorf("%d faults have %d IDs", len(list), len(ids))
	}
}

func TestFileThatCanNotBeRead(t *testing.T) {
	p := newPlace(t)
	p.inject(t, fault.Spec{Kind: fault.StaleSlice})
	if err := os.WriteFile(p.config.Path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSet(p.config); err == nil || !strings.Contains(err.Error(), p.config.Path) {
		t.Errorf("got %v", err)
	}
	if _, err := p.Inject(quiet, fault.Spec{Kind: fault.StaleSlice}); err == nil {
		t.Error("a fault was added to a file that can't be read")
	}
}

// TestTearWhileTheEngineIsAtAPoint: a fault that waits for the checkpoint's lock
// does not keep the engine, which has it, from going on.
func TestTearWhileTheEngineIsAtAPoint(t *testing.T) {
	p := newPlace(t)
	var lock sync.Mutex // in the place of the checkpoint's
	p.config.Tear = func(context.Context) error { lock.Lock(); defer lock.Unlock(); return nil }
	p.restart(t)
	lock.Lock()
	torn := make(chan error, 1)
	go func() { _, err := p.Inject(quiet, fault.Spec{Kind: fault.TornCheckpoint}); torn <- err }()
	time.Sleep(10 * time.Millisecond)
	if err := p.At(quiet, engine.BeforeCheckpointStarted, "uid"); err != nil {
		t.Error(err)
	}
	lock.Unlock()
	if err := <-torn; err != nil {
		t.Error(err)
	}
}
