package ociruntime

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpuladder.dev/ladder/e2e/cluster/docker/capability"
)

// envAct makes the test binary act as the runtime.
const envAct = "LADDER_TEST_ACT_AS_RUNTIME"

func TestMain(m *testing.M) {
	if os.Getenv(envAct) != "" {
		err := Main(os.Args)
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// allBut is every capability of today except those given.
func allBut(lacking ...int) capability.Set {
	s := capability.Set(1<<(unix.CAP_LAST_CAP+1) - 1)
	for _, n := range lacking {
		s &^= 1 << n
	}
	return s
}

const bundle = `{
	"ociVersion": "1.0.2",
	"process": {
		"terminal": false,
		"args": ["sh", "-c", "a < b && c > d"],
		"capabilities": {
			"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_SYS_ADMIN"],
			"effective": ["CAP_SYS_RESOURCE"],
			"inheritable": [],
			"permitted": ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_NEW"],
			"ambient": ["CAP_SYS_RESOURCE", "CAP_CHOWN"]
		},
		"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 18446744073709551615, "soft": 1024}],
		"unknown": {"b": 1, "a": 2}
	},
	"linux": {"resources": {"memory": {"limit": 9223372036854771712}}},
	"unknown": 1.50
}`

const trimmedBundle = `{
	"ociVersion": "1.0.2",
	"process": {
		"terminal": false,
		"args": ["sh", "-c", "a < b && c > d"],
		"capabilities": {
			"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"],
			"effective": [],
			"inheritable": [],
			"permitted": ["CAP_CHOWN", "CAP_NEW"],
			"ambient": ["CAP_CHOWN"]
		},
		"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 18446744073709551615, "soft": 1024}],
		"unknown": {"b": 1, "a": 2}
	},
	"linux": {"resources": {"memory": {"limit": 9223372036854771712}}},
	"unknown": 1.50
}`

// value decodes with numbers as they are written.
func value(t *testing.T, content string) any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(content))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	return v
}

func TestTrimBundle(t *testing.T) {
	got, changed, err := trimBundle([]byte(bundle), allBut(unix.CAP_SYS_RESOURCE))
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if !reflect.DeepEqual(value(t, string(got)), value(t, trimmedBundle)) {
		t.Errorf("got %s", got)
	}
	if !strings.Contains(string(got), `"a < b && c > d"`) {
		t.Errorf("the arguments are escaped anew: %s", got)
	}
	again, changed, err := trimBundle(got, allBut(unix.CAP_SYS_RESOURCE))
	if err != nil || changed || again != nil {
		t.Errorf("a second time: %s, %v, %v", again, changed, err)
	}
}

func TestNothingToTrim(t *testing.T) {
	for name, content := range map[string]string{
		"all granted":      bundle,
		"no process":       `{"ociVersion":"1.0.2"}`,
		"process is null":  `{"process":null}`,
		"no capabilities":  `{"process":{"args":["x"]}}`,
		"capabilities nil": `{"process":{"capabilities":null}}`,
		"empty sets":       `{"process":{"capabilities":{"bounding":null,"ambient":[]}}}`,
	} {
		if got, changed, err := trimBundle([]byte(content), allBut()); changed || err != nil || got != nil {
			t.Errorf("%s: %s, %v, %v", name, got, changed, err)
		}
	}
}

func TestTrimWhatCannotBeRead(t *testing.T) {
	for _, content := range []string{"", "[]", "{", `{"process":1}`, `{"process":{"capabilities":[]}}`, `{"process":{"capabilities":{"bounding":"CAP_CHOWN"}}}`} {
		if _, _, err := trimBundle([]byte(content), allBut()); err == nil {
			t.Errorf("%q: no error", content)
		}
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	process := filepath.Join(dir, "process")
	for path, content := range map[string]string{
		filepath.Join(dir, "config.json"): bundle,
		process:                           `{"args":["x"],"capabilities":{"bounding":["CAP_SYS_TIME","CAP_KILL"]}}`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	granted := allBut(unix.CAP_SYS_RESOURCE, unix.CAP_SYS_TIME)
	for _, args := range [][]string{
		{"--root", "/r", "create", "--bundle", dir, "c1"},
		{"exec", "--process", process, "c1"},
		{"exec", "--process", filepath.Join(dir, "missing"), "c1"},
		{"create", "--bundle", filepath.Join(dir, "missing"), "c1"},
		{"start", "c1"},
	} {
		if err := Trim(args, granted); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	if got, err := os.ReadFile(process); err != nil || !reflect.DeepEqual(value(t, string(got)), value(t, `{"args":["x"],"capabilities":{"bounding":["CAP_KILL"]}}`)) {
		t.Errorf("the process is %s, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || !reflect.DeepEqual(value(t, string(got)), value(t, trimmedBundle)) {
		t.Errorf("the bundle is %s, %v", got, err)
	}
	if info, err := os.Stat(process); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
	if err := Trim([]string{"exec", "-p", dir, "c1"}, granted); err == nil {
		t.Error("no error for a folder in place of a file")
	}
}

// The program trims by the bounding set that it has, and hands over every
// argument, the environment and the exit code.
func TestMainHandsOver(t *testing.T) {
	dir := t.TempDir()
	next := filepath.Join(dir, "next")
	if err := os.WriteFile(next, []byte("#!/bin/sh\nprintf '%s|' \"$@\" \"$MARK\"\nexit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--root", "/r", "create", "--bundle", dir, "a b")
	cmd.Env = append(os.Environ(), envAct+"=1", EnvNext+"="+next, "MARK=kept")
	out, err := cmd.CombinedOutput()
	exit := new(exec.ExitError)
	if want := "--root|/r|create|--bundle|" + dir + "|a b|kept|"; string(out) != want || !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("output %q, %v, want %q and exit code 7", out, err, want)
	}
	granted, err := capability.Bounding()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Process struct{ Capabilities map[string][]string }
	}
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	for set, names := range got.Process.Capabilities {
		for _, name := range names {
			if !granted.Has(name) {
				t.Errorf("%s is still in the set %s", name, set)
			}
		}
	}
}

func TestMainWithoutARuntime(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "state", "c1")
	cmd.Env = []string{envAct + "=1", "PATH=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "hand over") || !strings.Contains(string(out), "runc") {
		t.Errorf("%q, %v", out, err)
	}
}
