package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envRole makes the test binary act as one of the programs of these tests.
const envRole = "LADDER_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "parent": // starts a child by this package, tells its number and waits
		p, err := Start(Spec{Name: "child", Path: "/bin/sleep", Args: []string{"300"}, Log: os.Getenv("LADDER_TEST_LOG")})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		if os.Getenv("LADDER_TEST_PANIC") != "" {
			panic("on purpose")
		}
		time.Sleep(5 * time.Minute)
	case "stubborn": // does not end when asked
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(5 * time.Minute)
	}
}

func sh(t *testing.T, script string) (*Process, string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(Spec{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, log
}

func gone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if _, state := startOf(pid); state == 0 || state == 'Z' {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d still runs", pid)
}

func waitForLog(t *testing.T, log, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(Tail(log, 100), want) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q: %q", want, Tail(log, 100))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestExitStatusAndLog(t *testing.T) {
	p, log := sh(t, "echo out; echo err >&2; exit 3")
	exit := new(exec.ExitError)
	if err := p.Exit(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("Exit() = %v, want status 3", err)
	}
	if got := Tail(log, 10); got != "out\nerr" {
		t.Errorf("log = %q", got)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, ErrExited) {
		t.Errorf("Signal() after the end = %v, want ErrExited", err)
	}
}

func TestLogIsAppendedTo(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		p, err := Start(Spec{Name: "echo", Path: "/bin/sh", Args: []string{"-c", "echo line"}, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Exit(); err != nil {
			t.Fatal(err)
		}
	}
	if got := Tail(log, 10); got != "line\nline" {
		t.Errorf("log = %q, want both runs", got)
	}
}

func TestStartOfAMissingProgram(t *testing.T) {
	_, err := Start(Spec{Name: "nothing", Path: "/nonexistent/program", Log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "starting nothing") {
		t.Fatalf("Start() = %v", err)
	}
}

func TestStopIsOrderly(t *testing.T) {
	p, log := sh(t, `trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
	waitForLog(t, log, "ready")
	p.Stop(t.Context(), 10*time.Second)
	if err := p.Exit(); err != nil {
		t.Errorf("Exit() = %v, want an orderly end", err)
	}
	if got := Tail(log, 1); got != "asked" {
		t.Errorf("last line = %q", got)
	}
}

func TestStopKillsTheStubborn(t *testing.T) {
	start := func(t *testing.T) *Process {
		log := filepath.Join(t.TempDir(), "log")
		p, err := Start(Spec{
			Name: "stubborn", Path: os.Args[0], Log: log, Env: append(os.Environ(), envRole+"=stubborn"),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		waitForLog(t, log, "stubborn")
		return p
	}
	t.Run("after the grace", func(t *testing.T) {
		p := start(t)
		p.Stop(t.Context(), 100*time.Millisecond)
		gone(t, p.Pid())
	})
	t.Run("when the context is done", func(t *testing.T) {
		p := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		p.Stop(ctx, time.Hour)
		gone(t, p.Pid())
	})
}

func TestWhatTheProgramLeavesBehindIsEnded(t *testing.T) {
	p, log := sh(t, "sleep 300 & echo $!")
	if err := p.Exit(); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(Tail(log, 1))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

// The promise of the package: however the parent ends, its children end.
func TestChildrenDieWithTheirParent(t *testing.T) {
	for name, env := range map[string]string{"killed": "", "panics": "LADDER_TEST_PANIC=1"} {
		t.Run(name, func(t *testing.T) {
			parent := exec.Command(os.Args[0])
			parent.Env = append(os.Environ(), envRole+"=parent", "LADDER_TEST_LOG="+filepath.Join(t.TempDir(), "log"))
			if env != "" {
				parent.Env = append(parent.Env, env)
			}
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			child, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				t.Fatalf("the parent says %q", line)
			}
			if env == "" {
				if _, state := startOf(child); state == 0 {
					t.Fatalf("child %d does not run", child)
				}
				if err := parent.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := parent.Wait(); err == nil {
				t.Error("the parent ended well, it was to fail")
			}
			gone(t, child)
		})
	}
}

func TestTailOfALongLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := Tail(path, 2), "line 19998\nline 19999"; got != want {
		t.Errorf("Tail = %q, want %q", got, want)
	}
	if got := Tail(path+".missing", 2); got != "" {
		t.Errorf("Tail of nothing = %q", got)
	}
}

func TestIdentity(t *testing.T) {
	self := Self()
	if !self.Alive() {
		t.Error("this process is not alive")
	}
	other := self
	other.Start++
	if other.Alive() {
		t.Error("a process with the same number and another start is taken for this one")
	}
	if (Identity{}).Alive() {
		t.Error("the zero identity is alive")
	}
	if err := other.Signal(syscall.SIGKILL); !errors.Is(err, ErrExited) {
		t.Errorf("Signal to a process of the past = %v", err)
	}

	p, _ := sh(t, "sleep 300")
	start, _ := startOf(p.Pid())
	id := Identity{PID: p.Pid(), Start: start}
	if of, err := Of(p.Pid()); err != nil || of != id {
		t.Errorf("Of = %v, %v, want %v", of, err, id)
	}
	if !id.Alive() {
		t.Error("the child is not alive")
	}
	if err := id.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if id.Alive() {
		t.Error("the child is alive after its end")
	}
	if of, err := Of(p.Pid()); !errors.Is(err, ErrExited) {
		t.Errorf("Of a child that has ended = %v, %v", of, err)
	}
}

// A zombie holds its number and start, but nothing runs any more.
func TestAZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "exit 0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	start, _ := startOf(cmd.Process.Pid)
	gone(t, cmd.Process.Pid)
	if (Identity{PID: cmd.Process.Pid, Start: start}).Alive() {
		t.Error("a zombie is alive")
	}
}
