package hardware

// This file runs the check over a simulated NVML, with the real driver.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// smiVariable has this program be nvidia-smi, of the boards in a driver root;
// what smiReplace names, as old=new, it says otherwise.
const (
	smiVariable = "HARDWARE_TEST_SMI"
	smiReplace  = "HARDWARE_TEST_SMI_REPLACE"
)

func TestMain(m *testing.M) {
	root := os.Getenv(smiVariable)
	if root == "" {
		os.Exit(m.Run())
	}
	if err := standIn(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

func standIn(root string) error {
	folder, err := fakenvml.FolderIn(root)
	if err != nil {
		return err
	}
	said, err := fakenvml.Control{Dir: folder}.SMI()
	if err != nil {
		return err
	}
	if old, replacement, given := strings.Cut(os.Getenv(smiReplace), "="); given {
		said = bytes.Replace(said, []byte(old), []byte(replacement), 1)
	}
	_, err = os.Stdout.Write(said)
	return err
}

// simulated is a machine with boards of a tier.
func simulated(t *testing.T, tier string, gpus int) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a kube-apiserver and the driver")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs device nodes, which only root may make")
	}
	programs, err := binaries.Ensure(t.Context(), os.Stderr, binaries.Etcd, binaries.APIServer, binaries.LadderNVMLDriver)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	board, err := fakenvml.Tier(tier)
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), fakenvml.LibraryName)
	if err := fakenvml.Build(t.Context(), library); err != nil {
		t.Fatal(err)
	}
	nodes, err := fakenvml.InstallRoot(root, library, board, fakenvml.Machine{Name: "m", GPUs: gpus})
	if err != nil {
		t.Fatal(err)
	}
	if !nodes {
		t.Skip("needs the right to make device nodes")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	smi := filepath.Join(t.TempDir(), "nvidia-smi")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = \"-q -x\" ] || exit 8\n%s='%s' exec '%s'\n", smiVariable, root, self)
	if err := os.WriteFile(smi, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return Options{
		Driver: programs.Path(binaries.LadderNVMLDriver), Assets: programs.Dir, SMI: smi,
		DriverRoot: root, Sysfs: filepath.Join(root, "sys"), Proc: root, Progress: t.Output(),
	}
}

// checked runs a check.
func checked(t *testing.T, o Options) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	report, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// find is a step of a report.
func find(t *testing.T, r *Report, name string) Step {
	t.Helper()
	at := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Name == name })
	if at < 0 {
		t.Fatalf("there is no step %q in %v", name, r.Steps)
	}
	return r.Steps[at]
}

// TestWholeGPUs: the check passes over boards that are as nvidia-smi says.
func TestWholeGPUs(t *testing.T) {
	o := simulated(t, "h100", 2)
	report := checked(t, o)
	if !report.Passed || !report.Simulated || len(report.GPUs) != 2 || len(report.Bus) != 2 {
		t.Fatalf("got %s", report.Markdown())
	}
	if got := find(t, report, "look at gpu-12-00").Said; !strings.Contains(got, "/dev/nvidia1, ") {
		t.Errorf("a container of the second GPU gets %s", got)
	}
	whats := map[string]bool{}
	for _, c := range report.Comparisons {
		whats[c.What] = true
	}
	for _, what := range []string{"number of GPUs", "UUID", "PCI address", "name", "memory", "MIG mode", "driver version", "CUDA version", "architecture"} {
		if !whats[what] {
			t.Errorf("%s is not compared", what)
		}
	}
	paths, err := report.Write(filepath.Join(t.TempDir(), "hardware"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(data, &again); err != nil || !again.Passed || len(again.Steps) != len(report.Steps) {
		t.Errorf("the JSON is read as %+v, %v", again, err)
	}
	text, err := os.ReadFile(paths[1])
	if err != nil || !strings.Contains(string(text), "A simulation") || !strings.Contains(filepath.Base(paths[1]), "simulated-nvidia-h100") {
		t.Errorf("%s says %s, %v", paths[1], text, err)
	}
}

// TestPartitions are made and destroyed, and nvidia-smi sees it.
func TestPartitions(t *testing.T) {
	report := checked(t, simulated(t, "h100-mig", 1))
	if !report.Passed {
		t.Fatalf("got %s", report.Markdown())
	}
	for _, step := range report.Steps {
		if strings.HasPrefix(step.Name, "look at ") && !strings.Contains(step.Said, "GPU instance ") {
			t.Errorf("got %v", step)
		}
	}
	find(t, report, "unprepare gpu-11-00")
	if !slices.ContainsFunc(report.Steps, func(s Step) bool { return strings.HasPrefix(s.Name, "unprepare gpu-11-00-mig-1g10gb") }) {
		t.Errorf("no partition was claimed: %v", report.Steps)
	}
}

// TestDifference: what the two say otherwise fails the check.
func TestDifference(t *testing.T) {
	o := simulated(t, "l4", 1)
	t.Setenv(smiReplace, "23034 MiB=23000 MiB")
	report := checked(t, o)
	wrong := differences(report.Comparisons)
	if report.Passed || find(t, report, "compare").Passed || len(wrong) != 1 || wrong[0].What != "memory" {
		t.Errorf("got %+v in %s", wrong, report.Markdown())
	}
	if !find(t, report, "unprepare gpu-11-00").Passed {
		t.Error("what follows is not checked any more")
	}
}

// TestBrokenDriver: a GPU on the bus whose driver does not answer is a failure,
// and not a machine without a GPU.
func TestBrokenDriver(t *testing.T) {
	o := simulated(t, "l4", 1)
	folder, err := fakenvml.FolderIn(o.DriverRoot)
	if err != nil {
		t.Fatal(err)
	}
	if err := (fakenvml.Control{Dir: folder}).UnloadDriver(); err != nil {
		t.Fatal(err)
	}
	report := checked(t, o)
	if step := find(t, report, "ask nvidia-smi"); report.Passed || step.Passed || !strings.Contains(step.Said, "not loaded") {
		t.Errorf("got %s", report.Markdown())
	}
}
