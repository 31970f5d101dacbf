package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

func openMemory(t *testing.T) *Memory {
	t.Helper()
	t.Setenv(binaries.EnvCache, t.TempDir())
	m, err := OpenMemory()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStateIsRemembered(t *testing.T) {
	m := openMemory(t)
	if states, err := m.List(); err != nil || len(states) != 0 {
		t.Fatalf("an empty memory lists %v, %v", states, err)
	}
	want := State{
		Name: "one", Phase: PhaseRunning, Holder: process.Self(), Kubeconfig: "/k", Scheduler: SchedulerStock,
		Nodes: 3, Started: time.Now().UTC().Round(time.Millisecond), Parts: []Part{{Name: Etcd, PID: 7, Starts: 1}},
	}
	if err := m.Create(want); err != nil {
		t.Fatal(err)
	}
	got, err := m.Get("one")
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("Get = %+v, %v, want %+v", got, err, want)
	}
	if !got.Alive() {
		t.Error("a lab of this process is not alive")
	}
	if err := m.Create(State{Name: "one"}); !errors.Is(err, ErrExists) {
		t.Errorf("Create again = %v, want ErrExists", err)
	}
	want.Nodes = 4
	if err := m.Update(want); err != nil {
		t.Fatal(err)
	}
	if err := m.Create(State{Name: "another"}); err != nil {
		t.Fatal(err)
	}
	states, err := m.List()
	if err != nil || len(states) != 2 || states[0].Name != "another" || states[1].Nodes != 4 {
		t.Errorf("List = %+v, %v", states, err)
	}
}

func TestForgettingRemovesWhatIsLeft(t *testing.T) {
	m := openMemory(t)
	dir := filepath.Join(t.TempDir(), dirPrefix+"123")
	copied := filepath.Join(t.TempDir(), "kubeconfig")
	s := State{Name: "one", Dir: dir, Copy: copied}
	if err := m.Create(s); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{copied, m.LogFile("one")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to do
		if err := m.Forget(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, copied, m.LogFile("one")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there, %v", path, err)
		}
	}
	if _, err := m.Get("one"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get = %v, want ErrNotExist", err)
	}
}

// A state file is only data: a folder in it that no lab made is not removed.
func TestForgettingLeavesOtherFoldersAlone(t *testing.T) {
	m := openMemory(t)
	dir := t.TempDir()
	if err := m.Forget(State{Name: "one", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the folder is gone: %v", err)
	}
}

func TestNamesAreChecked(t *testing.T) {
	m := openMemory(t)
	for _, name := range []string{"", "../up", "A", "-a", "a/b", "a-", string(make([]byte, 50))} {
		if err := m.Create(State{Name: name}); err == nil {
			t.Errorf("a lab may be called %q", name)
		}
	}
}

func TestATornStateFileIsNamed(t *testing.T) {
	m := openMemory(t)
	if err := m.Create(State{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	path, err := m.file("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.List(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("List = %v, want the file's name", err)
	}
}
