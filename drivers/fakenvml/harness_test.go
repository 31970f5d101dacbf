package fakenvml

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is built once. A process can have only one: what it has bound of the
// first is never bound anew.
var library string

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(child(os.Getenv(childVariable)))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "fakenvml-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	library = filepath.Join(folder, LibraryName)
	if err := Build(context.Background(), library); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// machine is a folder with boards, and the library looking at it.
type machine struct {
	nvml.Interface
	Control
	t *testing.T
}

// newMachine is one with boards of a tier. NVML is initialised.
func newMachine(t *testing.T, tier string, gpus int) *machine {
	t.Helper()
	m := bareMachine(t)
	m.install(tier, gpus)
	m.ok(m.Init())
	t.Cleanup(func() { m.Shutdown() })
	return m
}

// bareMachine is one without boards, or NVML.
func bareMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{Interface: nvml.New(nvml.WithLibraryPath(library)), Control: Control{Dir: t.TempDir()}, t: t}
	t.Setenv(DirVariable, m.Dir)
	return m
}

func (m *machine) install(tier string, gpus int) {
	m.t.Helper()
	board, err := Tier(tier)
	if err != nil {
		m.t.Fatal(err)
	}
	m.must(Install(m.Dir, board, Machine{Name: "node-1", GPUs: gpus}))
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) ok(ret nvml.Return) {
	m.t.Helper()
	m.is(ret, nvml.SUCCESS)
}

func (m *machine) is(got, want nvml.Return) {
	m.t.Helper()
	if got != want {
		m.t.Fatalf("got %d (%v), want %d (%v)", got, got, want, want)
	}
}

func (m *machine) gpu(index int) nvml.Device {
	m.t.Helper()
	device, ret := m.DeviceGetHandleByIndex(index)
	m.ok(ret)
	return device
}

// value is the result of a call that must succeed.
func value[T any](m *machine) func(T, nvml.Return) T {
	m.t.Helper()
	return func(v T, ret nvml.Return) T {
		m.t.Helper()
		m.ok(ret)
		return v
	}
}

// equal compares what was got with what is wanted, as text.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s:\ngot  %s\nwant %s", what, g, w)
	}
}

// words is a text of C.
func words[T int8 | uint8](text []T) string {
	var out []byte
	for _, c := range text {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}
