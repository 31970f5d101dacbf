//go:build linux

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func TestWaitTakesUpEveryChild(t *testing.T) {
	signals := make(chan os.Signal, 16)
	var pids []int
	for range 3 {
		// Started without os/exec's Wait: nobody else takes them up.
		path, err := exec.LookPath("true")
		if err != nil {
			t.Fatal(err)
		}
		process, err := os.StartProcess(path, []string{"true"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, process.Pid)
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		for state(t, pid) != 'Z' {
			if time.Now().After(deadline) {
				t.Fatalf("process %d does not end", pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	signals <- syscall.SIGCHLD // one for three
	signals <- syscall.SIGTERM
	if code := wait(signals); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
}

// state is the letter of a process in /proc.
func state(t *testing.T, pid int) byte {
	t.Helper()
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	for i := len(content) - 1; i > 0; i-- {
		if content[i] == ')' {
			return content[i+2]
		}
	}
	t.Fatalf("no state in %q", content)
	return 0
}

func TestAnInterruptEndsIt(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT)
	defer signal.Stop(signals)
	done := make(chan int, 1)
	go func() { done <- wait(signals) }()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on after SIGINT")
	}
}
