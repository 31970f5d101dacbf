package health

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const recovery = 30 * time.Second

var start = time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)

// ward is a monitor and its clock.
type ward struct {
	t     *testing.T
	path  string
	boot  string
	clock *testingclock.FakePassiveClock
	*Monitor
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{t: t, path: filepath.Join(t.TempDir(), FileName), boot: "boot-1", clock: testingclock.NewFakePassiveClock(start)}
	w.restart()
	return w
}

func (w *ward) restart() {
	w.t.Helper()
	m, err := New(filepath.Dir(w.path), w.boot, w.clock, recovery)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Monitor = m
}

// see observes troubles and returns the transitions as text.
func (w *ward) see(troubles ...inventory.Trouble) string {
	w.t.Helper()
	return w.report(inventory.Report{Troubles: troubles})
}

func (w *ward) report(report inventory.Report) string {
	w.t.Helper()
	transitions, err := w.Observe(report)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for _, t := range transitions {
		all = append(all, fmt.Sprintf("%s %v>%v %s", t.Device, t.From, t.To, t.Reason))
	}
	return strings.Join(all, ", ")
}

func (w *ward) after(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

// taints of a device as text.
func (w *ward) taints(device string) string {
	var all []string
	for _, t := range w.Taints(device) {
		all = append(all, fmt.Sprintf("%s=%s:%s@%d", strings.TrimPrefix(t.Key, v1alpha1.DriverName+"/"), t.Value, t.Effect, t.TimeAdded.Unix()-start.Unix()))
	}
	return strings.Join(all, " ")
}

func trouble(device, source string, severity inventory.Severity) inventory.Trouble {
	return inventory.Trouble{
		Origin: inventory.Origin{Device: device, Source: source}, Severity: severity,
		Reason: strings.ToUpper(source[:1]) + source[1:], Message: "says " + source,
	}
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}

// TestWorstOfSeveral is a device through suspicion, failure and recovery.
func TestWorstOfSeveral(t *testing.T) {
	w := newWard(t)
	remap, xid, lost := trouble("gpu-0", "remap", inventory.Suspect), trouble("gpu-0", "xid", inventory.Suspect), trouble("gpu-0", "bus", inventory.Failed)
	expect(t, "nothing", w.see(), "")
	expect(t, "first", w.see(remap), "gpu-0 healthy>suspect Remap")
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Remap:NoSchedule@0")
	w.after(10 * time.Second)
	expect(t, "second of one severity", w.see(remap, xid), "")
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Remap:NoSchedule@0")
	w.after(10 * time.Second)
	expect(t, "worse", w.see(remap, xid, lost), "gpu-0 suspect>failed Bus")
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Bus:NoSchedule@0 failed=Bus:NoExecute@20")
	severity, why := w.Severity("gpu-0")
	if severity != inventory.Failed || why != "Bus, says bus; Remap, says remap; Xid, says xid" {
		t.Errorf("it is %v, %q", severity, why)
	}
	expect(t, "other device", w.taints("gpu-1"), "")

	// The worst ends: the rest counts again after the recovery time.
	expect(t, "ended", w.see(remap), "")
	w.after(recovery - time.Nanosecond)
	expect(t, "not yet", w.see(remap), "")
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Bus:NoSchedule@0 failed=Bus:NoExecute@20")
	w.after(time.Nanosecond)
	expect(t, "over", w.see(remap), "gpu-0 failed>suspect Remap")
	expect(t, "ended", w.see(), "")
	w.after(recovery)
	expect(t, "all over", w.see(), "gpu-0 suspect>healthy Remap")
	expect(t, "taints", w.taints("gpu-0"), "")
	if severity, why := w.Severity("gpu-0"); severity != inventory.Healthy || why != "" {
		t.Errorf("it is %v, %q", severity, why)
	}
}

// TestComingAndGoing: a trouble that comes back within the recovery time was
// never over.
func TestComingAndGoing(t *testing.T) {
	w := newWard(t)
	lost := trouble("gpu-0", "bus", inventory.Failed)
	w.see(lost)
	for range 20 {
		w.after(recovery - time.Second)
		expect(t, "gone", w.see(), "")
		w.after(recovery - time.Second)
		expect(t, "back", w.see(lost), "")
	}
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Bus:NoSchedule@0 failed=Bus:NoExecute@0")
	if _, why := w.Severity("gpu-0"); why != "Bus, says bus" {
		t.Errorf("the message is %q", why)
	}
	w.see()
	if _, why := w.Severity("gpu-0"); !strings.HasPrefix(why, "Bus, says bus (over since 2026-11-29T") {
		t.Errorf("the message is %q", why)
	}
}

// TestLatched: an event holds until it is said to be over, or the node boots.
func TestLatched(t *testing.T) {
	w := newWard(t)
	event := trouble("gpu-0", "xid", inventory.Suspect)
	event.Latched = true
	w.see(event)
	for range 3 {
		w.after(time.Hour)
		expect(t, "silence", w.see(), "")
		w.restart()
	}
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Xid:NoSchedule@0")
	expect(t, "another one's recovery", w.report(inventory.Report{Recovered: []inventory.Origin{{Device: "gpu-0", Source: "bus"}, {Device: "gpu-1", Source: "xid"}}}), "")
	expect(t, "its recovery", w.report(inventory.Report{Recovered: []inventory.Origin{event.Origin}}), "")
	w.restart()
	w.after(recovery)
	expect(t, "over", w.see(), "gpu-0 suspect>healthy Xid")

	w.see(event)
	w.boot = "boot-2"
	w.restart()
	expect(t, "taints after a boot", w.taints("gpu-0"), "")
}

func TestSeverityOfOneSourceChanges(t *testing.T) {
	w := newWard(t)
	w.see(trouble("gpu-0", "xid", inventory.Suspect))
	w.after(time.Second)
	expect(t, "worse", w.see(trouble("gpu-0", "xid", inventory.Failed)), "gpu-0 suspect>failed Xid")
	expect(t, "taints", w.taints("gpu-0"), "unhealthy=Xid:NoSchedule@1 failed=Xid:NoExecute@1")
}

// TestALesserTroubleOfOneSource is no end of the worse one: that must be over
// for the recovery time, and a latched one said to be over.
func TestALesserTroubleOfOneSource(t *testing.T) {
	w := newWard(t)
	worse, lesser := trouble("gpu-0", "xid", inventory.Failed), trouble("gpu-0", "xid", inventory.Suspect)
	w.see(worse)
	expect(t, "lesser", w.see(lesser), "")
	w.after(recovery - time.Second)
	expect(t, "worse again", w.see(worse), "")
	expect(t, "lesser", w.see(lesser), "")
	w.after(recovery)
	expect(t, "over", w.see(lesser), "gpu-0 failed>suspect Xid")

	worse.Latched, lesser.Latched = true, true
	w.see(worse)
	w.see(lesser)
	w.after(time.Hour)
	expect(t, "latched", w.see(lesser), "")
	expect(t, "taints", w.taints("gpu-0")[:9], "unhealthy")
	w.report(inventory.Report{Troubles: []inventory.Trouble{lesser}, Recovered: []inventory.Origin{worse.Origin}})
	w.after(recovery)
	expect(t, "over", w.see(lesser), "gpu-0 failed>suspect Xid")
}

// TestSurvivesARestart: taints, times and what is being recovered from.
func TestSurvivesARestart(t *testing.T) {
	w := newWard(t)
	lost, remap := trouble("gpu-0", "bus", inventory.Failed), trouble("gpu-1", "remap", inventory.Suspect)
	w.see(lost, remap)
	w.after(5 * time.Second)
	w.see(remap)
	before := [][]resourcev1.DeviceTaint{w.Taints("gpu-0"), w.Taints("gpu-1")}
	w.after(5 * time.Second)
	w.restart()
	if after := [][]resourcev1.DeviceTaint{w.Taints("gpu-0"), w.Taints("gpu-1")}; fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the taints are %v, before %v", after, before)
	}
	w.after(recovery - 5*time.Second)
	expect(t, "over, counted from before the restart", w.see(remap), "gpu-0 failed>healthy Bus")
}

// TestWritingIsTriedAgain: what could not be written counts all the same.
func TestWritingIsTriedAgain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	m, err := New(folder, "boot-1", testingclock.NewFakePassiveClock(start), recovery)
	if err != nil {
		t.Fatal(err)
	}
	report := inventory.Report{Troubles: []inventory.Trouble{trouble("gpu-0", "bus", inventory.Failed)}}
	if got, err := m.Observe(report); err == nil || len(got) != 1 || len(m.Taints("gpu-0")) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Observe(report); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(folder, FileName)); err != nil {
		t.Error(err)
	}
}

func TestNothingNewIsNotWritten(t *testing.T) {
	w := newWard(t)
	lost := trouble("gpu-0", "bus", inventory.Failed)
	w.see(lost)
	before, err := os.Stat(w.path)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.after(time.Second)
		w.see(lost)
	}
	if after, err := os.Stat(w.path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again, %v", err)
	}
}

// TestRandomTroubles holds the monitor against its rule, told naively: a
// trouble counts from when it is reported until it was not for the whole of the
// recovery time. Restarts change nothing.
func TestRandomTroubles(t *testing.T) {
	folder := t.TempDir()
	serial := 0
	rapid.Check(t, func(r *rapid.T) {
		serial++
		path := filepath.Join(folder, fmt.Sprint(serial))
		if err := os.Mkdir(path, 0o700); err != nil {
			r.Fatal(err)
		}
		clock := testingclock.NewFakePassiveClock(start)
		m, err := New(path, "boot", clock, recovery)
		if err != nil {
			r.Fatal(err)
		}
		sources := []string{"xid", "bus", "remap"}
		last := map[string]inventory.Severity{} // the worst reported
		seen := map[string]time.Time{}          // when it was first missed; zero while reported
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			clock.SetTime(clock.Now().Add(time.Duration(rapid.IntRange(0, 20).Draw(r, "seconds")) * time.Second))
			var report inventory.Report
			for _, source := range sources {
				severity := inventory.Severity(rapid.IntRange(0, 2).Draw(r, source))
				if severity > inventory.Healthy {
					report.Troubles = append(report.Troubles, trouble("gpu-0", source, severity))
				}
				if severity > inventory.Healthy && severity >= last[source] {
					last[source], seen[source] = severity, time.Time{}
					continue
				}
				if _, known := last[source]; !known {
					continue
				}
				if seen[source].IsZero() {
					seen[source] = clock.Now()
				}
				if clock.Since(seen[source]) >= recovery {
					delete(last, source)
					if severity > inventory.Healthy { // a lesser one is left
						last[source], seen[source] = severity, time.Time{}
					}
				}
			}
			slices.Reverse(report.Troubles) // the order says nothing
			if _, err := m.Observe(report); err != nil {
				r.Fatal(err)
			}
			if rapid.Bool().Draw(r, "restart") {
				if m, err = New(path, "boot", clock, recovery); err != nil {
					r.Fatal(err)
				}
			}
			want := inventory.Healthy
			for _, severity := range last {
				want = max(want, severity)
			}
			got, _ := m.Severity("gpu-0")
			var effects []resourcev1.DeviceTaintEffect
			for _, taint := range m.Taints("gpu-0") {
				effects = append(effects, taint.Effect)
			}
			all := []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute}
			if got != want || len(effects) != int(want) || !reflect.DeepEqual(append([]resourcev1.DeviceTaintEffect{}, effects...), append([]resourcev1.DeviceTaintEffect{}, all[:want]...)) {
				r.Fatalf("severity is %v with %v, want %v", got, effects, want)
			}
		}
	})
}
