package fakenvml

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestSanitized runs a program of C, in which whatever is done to the library is
// watched for what C does not forgive.
func TestSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles for a while")
	}
	m := bareMachine(t)
	m.install("h100-mig", 2)
	m.must(m.StartProcess(Process{GPU: 1, PID: 5}))
	m.must(m.XID(0, 13))
	m.must(m.Hang("nvmlUnitGetCount", 1, 1))
	program := filepath.Join(t.TempDir(), "abuse")
	abuse, err := filepath.Abs("testdata/abuse.c")
	m.must(err)
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-static-libasan"}
	probe := exec.Command("gcc", append(sanitize, "-x", "c", "-", "-o", program)...) //nolint:gosec // the compiler
	probe.Stdin = strings.NewReader("int main(void) { return 0; }")
	if said, err := probe.CombinedOutput(); err != nil {
		t.Skipf("gcc has no sanitizers: %s", said)
	}
	arguments := append(slices.Clone(sanitize), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wno-unused-result", abuse)
	m.must(build(context.Background(), program, arguments...))
	run := exec.Command(program, filepath.Join(m.Dir, confName), filepath.Join(m.Dir, stateName)) //nolint:gosec // made here
	run.Env = append(os.Environ(), DirVariable+"="+m.Dir, "UBSAN_OPTIONS=print_stacktrace=1")
	said, err := run.CombinedOutput()
	if err != nil || string(said) != "done\n" {
		t.Errorf("%v\n%s", err, said)
	}
}

// TestEveryFunctionIsThere: a program that calls a function which the library
// lacks would die, so it has all of the header that go-nvml is made of.
func TestEveryFunctionIsThere(t *testing.T) {
	m := newMachine(t, "l4", 1)
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pkg/nvml/nvml.h"))
	m.must(err)
	functions := regexp.MustCompile(`(?m)^\s*(?:DEPRECATED\(\S+\) )?(?:nvmlReturn_t|const char\*)\s+(?:DECLDIR\s+)?(nvml\w+) ?\(`).FindAllStringSubmatch(string(header), -1)
	if len(functions) < 400 {
		t.Fatalf("the header has %d functions", len(functions))
	}
	for _, function := range functions {
		if err := m.Extensions().LookupSymbol(function[1]); err != nil {
			t.Error(err)
		}
	}
	_, ret := m.gpu(0).GetFanSpeed()
	m.is(ret, nvml.ERROR_NOT_SUPPORTED)
}
