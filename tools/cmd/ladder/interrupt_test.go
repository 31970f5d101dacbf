package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/root"
)

// asProgram has this test binary be the program: ladder itself, or one that
// takes no notice of its end.
const asProgram = "LADDER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "ladder":
		main()
	case "deaf":
		os.Exit(untilInterrupted(func(ctx context.Context) int {
			fmt.Println("ready")
			<-ctx.Done()
			fmt.Println("told")
			time.Sleep(time.Minute)
			return 0
		}))
	}
	os.Exit(m.Run())
}

// program is a process of its own; it is killed when it lives too long.
func program(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), asProgram+"="+as)
	return cmd
}

// The first Ctrl-C ends a command that waits for its input.
func TestInterrupt(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "run.jsonl")
	for name, tc := range map[string]struct {
		args []string
		unit string
	}{
		"decide":         {[]string{"decide", "-f", "-", "--bundle", bundle}, "# nothing yet\n"},
		"explain":        {[]string{"explain", "p", "-f", "-"}, "# nothing yet\n"},
		"explain bundle": {[]string{"explain", "p", "--bundle", "/dev/stdin"}, "x"},
		"replay":         {[]string{"replay", "/dev/stdin"}, "x"},
		"lint":           {[]string{"policy", "lint", "-"}, "# nothing yet\n"},
		"quota":          {[]string{"quota", "show", "-f", "-"}, "# nothing yet\n"},
		"simulate":       simulateFromStdin(),
	} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, "ladder", tc.args...)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// More than a pipe holds: once it is written the command reads.
			if _, err := io.WriteString(in, strings.Repeat(tc.unit, 1<<20/len(tc.unit))); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != command.CodeFailed || errs.String() != "error: interrupted\n" || out.Len() != 0 {
				t.Errorf("ended with %v, stdout %q, stderr %q", err, out.String(), errs.String())
			}
		})
	}
}

func simulateFromStdin() struct {
	args []string
	unit string
} {
	return struct {
		args []string
		unit string
	}{simulateArgs("--trace", "-"), "x"}
}

// A command that does not end by the first Ctrl-C does by the second one.
func TestSecondInterrupt(t *testing.T) {
	cmd := program(t, "deaf")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"ready", "told"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it said %q, want %q", lines.Text(), want)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	// The second one may come just before the first one was dealt with.
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("ended with %v", err)
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGINT {
				t.Errorf("ended with %v, want by SIGINT", err)
			}
			return
		case <-again.C:
			_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		}
	}
}

// Decisions end with the context too, and leave no bundle.
func TestDecideIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := root.Main(ctx, []string{"ladder", "decide", "-f", caseFile("01-first-choice"), "--bundle", filepath.Join(dir, "run.jsonl")},
		command.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != command.CodeFailed || out.Len() != 0 || errs.String() != "error: interrupted\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}
