package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/policies/fleet"
)

// envProgram makes the test binary act as ladder-lab: a lab in the background
// is kept by a second process of the same program.
const envProgram = "LADDER_LAB_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		os.Exit(Execute(context.Background(), New(), os.Stderr))
	}
	os.Exit(m.Run())
}

// run calls the command in this process.
func run(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := New()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	code = Execute(t.Context(), cmd, &errOut)
	return code, out.String(), errOut.String()
}

// memory gives the test a memory of its own, and the programs of the real cache.
func memory(t *testing.T) *lab.Memory {
	t.Helper()
	t.Setenv(binaries.EnvCache, t.TempDir())
	m, err := lab.OpenMemory()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const fleetFile = `apiVersion: gpuladder.dev/v1alpha1
kind: Fleet
groups:
- {name: h100, nodes: 2, board: H100-SXM5-80GB, gpus: 8}
`

func TestWrongUse(t *testing.T) {
	memory(t)
	existing := write(t, "kubeconfig", "mine")
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"unknown flag":        {[]string{"up", "--fast"}, "unknown flag"},
		"unknown scheduler":   {[]string{"up", "--scheduler", "fast"}, "stock-configured"},
		"missing fleet":       {[]string{"up", "--fleet", "/nonexistent.yaml"}, "/nonexistent.yaml"},
		"bad fleet":           {[]string{"up", "--fleet", write(t, "fleet.yaml", "kind: Fleet\nwrong: 1\n")}, "fleet.yaml"},
		"existing kubeconfig": {[]string{"up", "--kubeconfig", existing}, "exists"},
		"arguments":           {[]string{"up", "now"}, "accepts 0 arg"},
		"too few nodes":       {[]string{"tenants", "--nodes", "2"}, "one of each model"},
		"no tenant":           {[]string{"tenants", "--tenants", "0"}, "0 tenants"},
		"bad lab name":        {[]string{"down", "--name", "../x"}, "lab name"},
		"bad cluster name":    {[]string{"kind", "up", "--name", "A B"}, "lower-case"},
		"bad name to remove":  {[]string{"kind", "down", "--name", "A B"}, "lower-case"},
		"bad name to load":    {[]string{"kind", "load", "x.tar", "--name", "../x"}, "lower-case"},
		"bad name to kill":    {[]string{"kind", "kill", "etcd@x", "--name", ""}, "lower-case"},
		"bad name to restart": {[]string{"kind", "restart", "etcd@x", "--name", "-"}, "lower-case"},
		"bad name for suites": {[]string{"e2e", "up", "--name", "A B"}, "lower-case"},
		"bare or not":         {[]string{"e2e", "up", "--bare=perhaps"}, "--bare"},
		"bad name to ask for": {[]string{"e2e", "env", "--name", "A B"}, "lower-case"},
		"bad name to end":     {[]string{"e2e", "down", "--name", "A B"}, "lower-case"},
		"bad output":          {[]string{"status", "-o", "xml"}, "xml"},
		"unknown provider":    {[]string{"upstream", "--provider", "minikube"}, "kind and lab are"},
		"bad shard":           {[]string{"upstream", "--shard", "5/4"}, "second of four"},
		"bad focus":           {[]string{"upstream", "--focus", "("}, "focus"},
		"no earlier run":      {[]string{"upstream", "--stock", "/nonexistent.json"}, "/nonexistent.json"},
		"one unknown":         {[]string{"upstream", "--only", "both"}, "stock and ladder are"},
		"no test at once":     {[]string{"upstream", "--procs", "0"}, "must be positive"},
		"unknown program":     {[]string{"binaries", "frobnicate"}, "frobnicate"},
		"unknown conversion":  {[]string{"convert", "xls"}, "xls"},
		"missing list":        {[]string{"convert", "nodes", "/nonexistent.csv"}, "/nonexistent.csv"},
		"not a node list":     {[]string{"convert", "openb-nodes", write(t, "x.csv", "a,b\n1,2\n")}, "x.csv"},
		"no fleet to render":  {[]string{"render"}, "--fleet"},
		"bad fleet to render": {[]string{"render", "--fleet", write(t, "f.yaml", "\x00\x01")}, "f.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, "", tc.args...)
			if code != ExitUsage || stdout != "" || !strings.Contains(stderr, tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q, want code 2 and %q", code, stdout, stderr, tc.says)
			}
			if strings.Count(stderr, "ladder-lab:") != 1 {
				t.Errorf("the error is not told once: %q", stderr)
			}
		})
	}
	if content, err := os.ReadFile(existing); err != nil || string(content) != "mine" {
		t.Errorf("the user's kubeconfig is %q, %v", content, err)
	}
}

func TestRenderGivesTheManifestsOfTheFleet(t *testing.T) {
	path := write(t, "fleet.yaml", fleetFile)
	code, stdout, stderr := run(t, "", "render", "--fleet", path)
	if code != ExitOK || stderr != "" {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	f, err := fleet.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := f.WriteManifests(&want); err != nil {
		t.Fatal(err)
	}
	if stdout != want.String() || strings.Count(stdout, "kind: Node\n") != 2 {
		t.Errorf("render prints %q", stdout)
	}
}

func TestConvert(t *testing.T) {
	nodes := "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,T4\nopenb-node-0001,64000,262144,2,T4\n"
	code, fleetYAML, stderr := run(t, nodes, "convert", "openb-nodes", "-")
	if code != ExitOK {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	f, err := fleet.Parse("converted", strings.NewReader(fleetYAML))
	if err != nil || f.NodeCount() != 2 || f.DeviceCount() != 4 {
		t.Errorf("the fleet is %+v, %v", f, err)
	}
	pods := "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n" +
		"openb-pod-0000,12000,16384,1,1000,T4|P100,LS,Running,0,1,0\nopenb-pod-0001,12000,16384,1,1000,T4,LS,Running,5,9,5\n"
	code, stdout, stderr := run(t, "", "convert", "openb-pods", "--limit", "1", write(t, "pods.csv", pods))
	if code != ExitOK || strings.Count(stdout, "kind: Pod\n") != 1 || !strings.Contains(stdout, "kind: AcceleratorPolicy\n") {
		t.Errorf("code %d, stderr %q, stdout %q", code, stderr, stdout)
	}
}

func TestStatusAndDownWithoutALab(t *testing.T) {
	memory(t)
	if code, stdout, _ := run(t, "", "status"); code != ExitNotRunning || !strings.Contains(stdout, "no lab") {
		t.Errorf("status: code %d, %q", code, stdout)
	}
	if code, stdout, _ := run(t, "", "status", "-o", "json"); code != ExitNotRunning || strings.Join(strings.Fields(stdout), "") != `{"labs":[]}` {
		t.Errorf("status as JSON: code %d, %q", code, stdout)
	}
	if code, stdout, _ := run(t, "", "down", "--name", "nosuch"); code != ExitOK || stdout != "no lab \"nosuch\" is there\n" {
		t.Errorf("down: code %d, %q", code, stdout)
	}
	if code, stdout, _ := run(t, "", "down", "--all"); code != ExitOK || stdout != "no lab is there\n" {
		t.Errorf("down --all: code %d, %q", code, stdout)
	}
}

// deadHolder is a process that has ended.
func deadHolder(t *testing.T) process.Identity {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return process.Identity{PID: cmd.Process.Pid, Start: 1}
}

func TestALabWhoseProcessIsGone(t *testing.T) {
	m := memory(t)
	dir := filepath.Join(t.TempDir(), "ladder-lab-123")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	state := lab.State{
		Name: "lost", Phase: lab.PhaseRunning, Holder: deadHolder(t), Dir: dir, Parts: []lab.Part{{Name: "etcd", PID: 1}},
	}
	if err := m.Create(state); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := run(t, "", "status")
	if code != ExitNotRunning || !strings.Contains(stdout, lab.PhaseFailed) || !strings.Contains(stdout, "is gone") || strings.Contains(stdout, "process 1\n") {
		t.Errorf("status: code %d, %q", code, stdout)
	}
	if code, stdout, stderr := run(t, "", "down", "--all"); code != ExitOK || !strings.Contains(stdout, `"lost" is down`) {
		t.Errorf("down: code %d, %q, %q", code, stdout, stderr)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

func TestWhatIsRememberedOfACrash(t *testing.T) {
	m := memory(t)
	copied := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(copied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	state := lab.State{
		Name: "crashed", Phase: lab.PhaseRunning, Holder: deadHolder(t), Dir: "/lab",
		Kubeconfig: "/lab/kubeconfig/admin.yaml", Copy: copied, Journal: "/lab/journal/journal.jsonl", Logs: "/lab/logs",
	}
	if err := m.Create(state); err != nil {
		t.Fatal(err)
	}
	if err := finish(m, state, true, errors.New("etcd has crashed")); err == nil || err.Error() != "etcd has crashed" {
		t.Errorf("finish = %v", err)
	}
	code, stdout, _ := run(t, "", "status")
	if code != ExitNotRunning {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{"etcd has crashed", state.Journal, state.Logs} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not said: %s", want, stdout)
		}
	}
	if strings.Contains(stdout, "admin.yaml") {
		t.Errorf("a kubeconfig that is gone is named: %s", stdout)
	}
	if _, err := os.Stat(copied); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copied kubeconfig is left: %v", err)
	}
}

func TestOneNameOneLab(t *testing.T) {
	m := memory(t)
	if err := m.Create(lab.State{Name: "default", Phase: lab.PhaseRunning, Holder: process.Self()}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"up"}, {"up", "--detach"}} {
		if code, _, stderr := run(t, "", args...); code != ExitFailed || !strings.Contains(stderr, "exists") {
			t.Errorf("%v: code %d, %q", args, code, stderr)
		}
	}
	// What is left of a lab that was killed does not stand in the way.
	dead := lab.State{Name: "default", Holder: deadHolder(t)}
	if err := m.Update(dead); err != nil {
		t.Fatal(err)
	}
	if err := remember(m, lab.State{Name: "default", Holder: process.Self()}, &bytes.Buffer{}); err != nil {
		t.Errorf("remember = %v", err)
	}
	if state, err := m.Get("default"); err != nil || !state.Alive() {
		t.Errorf("state = %+v, %v", state, err)
	}
}

func TestCompletion(t *testing.T) {
	code, stdout, _ := run(t, "", "__complete", "up", "--scheduler", "")
	if code != ExitOK || !strings.Contains(stdout, "stock-configured\n") {
		t.Errorf("code %d, %q", code, stdout)
	}
	if code, stdout, _ := run(t, "", "completion", "bash"); code != ExitOK || !strings.Contains(stdout, "ladder-lab") {
		t.Errorf("completion: code %d", code)
	}
}

// program runs ladder-lab as a process of its own.
func program(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), envProgram+"=1")
	cmd.Stdout, cmd.Stderr = &out, &errOut
	exit := new(exec.ExitError)
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// cacheWithPrograms is a folder for this test's memory with the real programs.
func cacheWithPrograms(t *testing.T) {
	t.Helper()
	real, err := binaries.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	needed := lab.Programs(lab.Options{Scheduler: lab.SchedulerNone, WithoutController: true})
	if _, err := binaries.Ensure(t.Context(), t.Output(), needed...); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	if err := os.Symlink(filepath.Join(real, "bin"), filepath.Join(cache, "bin")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaries.EnvCache, cache)
}

// statusOf reads what `status -o json` says of the only lab.
func statusOf(t *testing.T) (int, lab.State) {
	t.Helper()
	code, stdout, stderr := run(t, "", "status", "-o", "json")
	var list struct{ Labs []lab.State }
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.Labs) != 1 {
		t.Fatalf("status: code %d, %q, %q, %v", code, stdout, stderr, err)
	}
	return code, list.Labs[0]
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func ended(parts []lab.Part) bool {
	for _, p := range parts {
		if !errors.Is(syscall.Kill(p.PID, 0), syscall.ESRCH) {
			return false
		}
	}
	return true
}

// The life of a lab in the background: up, used, down; then one whose keeper is
// killed, which takes all its processes along.
func TestDetachedLab(t *testing.T) {
	cacheWithPrograms(t)
	t.Setenv("TMPDIR", t.TempDir())
	kubeconfig := filepath.Join(t.TempDir(), "lab.kubeconfig")
	up := []string{"up", "--detach", "--scheduler=none", "--no-controller", "--fleet", write(t, "fleet.yaml", fleetFile)}

	code, stdout, stderr := program(t, append(up, "--kubeconfig", kubeconfig)...)
	if code != ExitOK || !strings.Contains(stdout, "export KUBECONFIG="+kubeconfig) || !strings.Contains(stderr, "is up") {
		t.Fatalf("up: code %d, %q, %q", code, stdout, stderr)
	}
	t.Cleanup(func() { run(t, "", "down", "--all") })
	code, state := statusOf(t)
	if code != ExitOK || state.Phase != lab.PhaseRunning || state.Nodes != 2 || len(state.Parts) != 4 || ended(state.Parts) {
		t.Fatalf("status: code %d, %+v", code, state)
	}
	original, err := os.ReadFile(state.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := os.ReadFile(kubeconfig); err != nil || !bytes.Equal(copied, original) {
		t.Errorf("the kubeconfig's copy differs, %v", err)
	}
	if code, _, stderr := program(t, up...); code != ExitFailed || !strings.Contains(stderr, "exists") {
		t.Errorf("a second lab of that name: code %d, %q", code, stderr)
	}
	if code, stdout, stderr := run(t, "", "down"); code != ExitOK {
		t.Errorf("down: code %d, %q, %q", code, stdout, stderr)
	}
	for _, path := range []string{kubeconfig, state.Dir} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left, %v", path, err)
		}
	}
	if !ended(state.Parts) {
		t.Errorf("processes are left: %+v", state.Parts)
	}

	if code, _, stderr := program(t, up...); code != ExitOK {
		t.Fatalf("up again: code %d, %q", code, stderr)
	}
	_, state = statusOf(t)
	if err := state.Holder.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "every process goes with its keeper", func() bool { return !state.Alive() && ended(state.Parts) })
	if code, state := statusOf(t); code != ExitNotRunning || state.Phase != lab.PhaseFailed {
		t.Errorf("status: code %d, %+v", code, state)
	}
	if code, _, stderr := run(t, "", "down"); code != ExitOK {
		t.Errorf("down: code %d, %q", code, stderr)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Ctrl-C on a lab in the foreground ends it with code 0; a crash with code 1.
func TestForegroundLab(t *testing.T) {
	cacheWithPrograms(t)
	t.Setenv("TMPDIR", t.TempDir())
	for name, tc := range map[string]struct {
		do   func(*exec.Cmd, lab.State) error
		code int
		says string
	}{
		"Ctrl-C": {func(cmd *exec.Cmd, _ lab.State) error { return cmd.Process.Signal(os.Interrupt) }, ExitOK, "ending the lab"},
		"crash": {func(_ *exec.Cmd, s lab.State) error {
			for _, p := range s.Parts {
				if p.Name == lab.Etcd {
					return syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
			return errors.New("etcd does not run")
		}, ExitFailed, "running etcd, ended unasked"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), os.Args[0], "up", "--scheduler=none", "--no-controller", "--name=fg")
			cmd.Env = append(os.Environ(), envProgram+"=1")
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			m, err := lab.OpenMemory()
			if err != nil {
				t.Fatal(err)
			}
			var state *lab.State
			waitUntil(t, "the lab is up", func() bool {
				state, err = m.Get("fg")
				return err == nil && state.Phase == lab.PhaseRunning
			})
			if err := tc.do(cmd, *state); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code is looked at below
			if cmd.ProcessState.ExitCode() != tc.code || !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("code %d, %q, want code %d and %q", cmd.ProcessState.ExitCode(), stderr.String(), tc.code, tc.says)
			}
			if !ended(state.Parts) {
				t.Errorf("processes are left: %+v", state.Parts)
			}
			if _, err := m.Get("fg"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the lab is still remembered, %v", err)
			}
		})
	}
}
