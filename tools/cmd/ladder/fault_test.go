package main

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

	"gpuladder.dev/ladder/policies/fault"
)

// driver is the side of the socket that a driver has.
type driver struct {
	mu     sync.Mutex
	faults []fault.Fault
	next   int
	broken error
}

func (d *driver) List(context.Context) ([]fault.Fault, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.faults), d.broken
}

func (d *driver) Inject(_ context.Context, spec fault.Spec) (fault.Fault, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if spec.Device != "" && spec.Device != "gpu-0" {
		return fault.Fault{}, fault.UnknownDevice(spec.Device, []string{"gpu-0"})
	}
	d.next++
	made := fault.Fault{ID: fmt.Sprint(d.next), Spec: spec, Since: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	d.faults = append(d.faults, made)
	return made, d.broken
}

func (d *driver) Clear(_ context.Context, which fault.Selector) ([]fault.Fault, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var cleared []fault.Fault
	d.faults = slices.DeleteFunc(d.faults, func(in fault.Fault) bool {
		if which.Matches(in) {
			cleared = append(cleared, in)
		}
		return which.Matches(in)
	})
	if which.ID != "" && cleared == nil {
		return nil, fault.UnknownFault(which.ID)
	}
	return cleared, d.broken
}

// startDriver serves a driver on a socket, which the environment names.
func startDriver(t *testing.T) (d *driver, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "fault.sock")
	listener, err := fault.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	d = &driver{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fault.Serve(ctx, listener, d) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Setenv(fault.SocketVariable, socket)
	return d, socket
}

// Every kind of fault has its command, and arrives as it was meant.
func TestFaultCommands(t *testing.T) {
	d, _ := startDriver(t)
	for i, tc := range []struct {
		args, said string
		want       fault.Spec
	}{
		{"xid gpu-0 79", "xid gpu-0 79", fault.Spec{Kind: fault.XID, Device: "gpu-0", Code: 79}},
		{"lost gpu-0", "lost gpu-0", fault.Spec{Kind: fault.Lost, Device: "gpu-0"}},
		{"remap gpu-0", "remap gpu-0", fault.Spec{Kind: fault.Remap, Device: "gpu-0"}},
		{"slow-prepare 90s", "slow-prepare by 1m30s", fault.Spec{Kind: fault.SlowPrepare, Duration: fault.Duration(90 * time.Second)}},
		{"fail-prepare", "fail-prepare always: fault injected", fault.Spec{Kind: fault.FailPrepare, Message: "fault injected"}},
		{"fail-prepare --times 2 --message broken", "fail-prepare 2 times: broken", fault.Spec{Kind: fault.FailPrepare, Times: 2, Message: "broken"}},
		{"torn-checkpoint", "torn-checkpoint", fault.Spec{Kind: fault.TornCheckpoint}},
		{"stale-slice", "stale-slice", fault.Spec{Kind: fault.StaleSlice}},
		{"withhold-slice", "withhold-slice", fault.Spec{Kind: fault.WithholdSlice}},
		{"crash-at after-cdi", "crash-at after-cdi, once", fault.Spec{Kind: fault.CrashAt, Point: fault.AfterCDI, Once: true}},
		{"crash-at before-unprepare-cdi --once=false", "crash-at before-unprepare-cdi, each time", fault.Spec{Kind: fault.CrashAt, Point: fault.BeforeUnprepareCDI}},
	} {
		r := ladder(t, append([]string{"fault"}, strings.Fields(tc.args)...)...).want(t, 0)
		if want := fmt.Sprintf("fault %d: %s\n", i+1, tc.said); r.stdout != want {
			t.Errorf("%s: said %q, want %q", tc.args, r.stdout, want)
		}
		faults, _ := d.List(t.Context())
		if got := faults[len(faults)-1].Spec; got != tc.want {
			t.Errorf("%s: asked for %+v, want %+v", tc.args, got, tc.want)
		}
	}
	faults, _ := d.List(t.Context())
	for _, kind := range fault.Kinds() {
		if !slices.ContainsFunc(faults, func(in fault.Fault) bool { return in.Kind == kind }) {
			t.Errorf("no command was tried for %s", kind)
		}
	}
}

func TestFaultListAndClear(t *testing.T) {
	d, socket := startDriver(t)
	t.Setenv(fault.SocketVariable, "/nowhere") // the flag wins
	at := func(args ...string) string {
		t.Helper()
		return ladder(t, append([]string{"fault", "--socket", socket}, args...)...).want(t, 0).stdout
	}
	if got := at("list"); got != "no fault is in force\n" {
		t.Errorf("nothing: %q", got)
	}
	if got := at("clear"); got != "no fault was in force\n" {
		t.Errorf("clearing nothing: %q", got)
	}
	at("xid", "gpu-0", "79")
	at("slow-prepare", "5s")
	d.mu.Lock()
	d.faults[1].Fired = 3
	d.mu.Unlock()
	if got, want := at("list"), ""+
		"ID  FAULT         DEVICE  DETAIL  SINCE                 FIRED\n"+
		"1   xid           gpu-0   79      2026-11-01T12:00:00Z  0\n"+
		"2   slow-prepare  -       by 5s   2026-11-01T12:00:00Z  3\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := at("list", "-o", "json"), `{
  "faults": [
    {
      "id": "1",
      "kind": "xid",
      "device": "gpu-0",
      "code": 79,
      "since": "2026-11-01T12:00:00Z"
    },
    {
      "id": "2",
      "kind": "slow-prepare",
      "duration": "5s",
      "since": "2026-11-01T12:00:00Z",
      "fired": 3
    }
  ]
}
`; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := at("clear", "--id", "2", "-o", "yaml"), "faults:\n- duration: 5s\n  fired: 3\n  id: \"2\"\n  kind: slow-prepare\n  since: \"2026-11-01T12:00:00Z\"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := at("clear", "--device", "gpu-0"); !strings.HasPrefix(got, "cleared:\nID ") || !strings.Contains(got, "xid") {
		t.Errorf("cleared\n%s", got)
	}
	if got := at("list", "-o", "json"); got != "{\n  \"faults\": []\n}\n" {
		t.Errorf("nothing, as JSON: %q", got)
	}
	if got := at("lost", "gpu-0", "-o", "json"); !strings.HasPrefix(got, "{\n  \"id\": \"3\",\n  \"kind\": \"lost\"") {
		t.Errorf("a fault, as JSON: %s", got)
	}
}

// What makes no sense ends with 2, here or in the driver; a driver that fails, 1.
func TestFaultErrors(t *testing.T) {
	d, _ := startDriver(t)
	for name, tc := range map[string]struct {
		args, want string
	}{
		"no code":         {"xid gpu-0", "accepts 2 arg(s), received 1; see 'ladder fault xid --help'"},
		"words as a code": {"xid gpu-0 bus", `the code of an Xid is a number from 1 to 1023, not "bus"`},
		"a large code":    {"xid gpu-0 1024", "code: must be 1 to 1023, is 1024"},
		"no device":       {"lost gpu-7", `there is no device "gpu-7"; this node has gpu-0`},
		"no such fault":   {"clear --id 9", `no fault "9" is in force`},
		"both":            {"clear --id 9 --device gpu-0", "--id and --device go not together"},
		"no unit":         {"slow-prepare 5", `a duration is written like 5s or 1m30s, not "5"`},
		"no time":         {"slow-prepare 0s", "duration: slow-prepare needs one"},
		"long":            {"slow-prepare 2h", "duration: must be above 0 and up to 1h0m0s, is 2h0m0s"},
		"no such point":   {"crash-at midway", `point: there is no "midway"; there are before-checkpoint-started, after`},
		"less than never": {"fail-prepare --times=-1", "times: must be 0 to 1048576, is -1"},
		"no such command": {"crash", `unknown command "crash" for "ladder fault"`},
	} {
		r := ladder(t, append([]string{"fault"}, strings.Fields(tc.args)...)...).want(t, 2)
		if !strings.Contains(r.stderr, tc.want) || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %q and on stderr %q, want %q", name, r.stdout, r.stderr, tc.want)
		}
	}
	d.mu.Lock()
	d.broken = errors.New("the disk is full")
	d.mu.Unlock()
	if r := ladder(t, "fault", "torn-checkpoint").want(t, 1); r.stderr != "error: the disk is full\n" {
		t.Errorf("a driver that fails: %q", r.stderr)
	}
}

func TestFaultsAreOff(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "fault.sock")
	r := ladder(t, "fault", "lost", "gpu-0", "--socket", socket).want(t, 1)
	if want := "error: there is no socket " + socket + ", faults are off: start the driver with --allow-faults\n"; r.stderr != want {
		t.Errorf("got %q, want %q", r.stderr, want)
	}
}

func TestSocketThatIsNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := ladder(t, "fault", "list", "--socket", file).want(t, 1); r.stderr != "error: "+file+" is not a socket\n" {
		t.Errorf("stderr %q", r.stderr)
	}
}

func TestFaultCompletion(t *testing.T) {
	r := ladder(t, "__complete", "fault", "crash-at", "").want(t, 0)
	for _, point := range fault.CrashPoints() {
		if !strings.Contains(r.stdout, string(point)+"\n") {
			t.Errorf("%s is not offered: %s", point, r.stdout)
		}
	}
	if r := ladder(t, "__complete", "fault", "crash-at", "after-cdi", "").want(t, 0); strings.Contains(r.stdout, "after") {
		t.Errorf("offered after the point: %s", r.stdout)
	}
}
