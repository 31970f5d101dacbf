package engine

// This file starts a driver of another version on what the last one left.

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gpuladder.dev/ladder/drivers/checkpoint"
)

// TestDowngradeRefusesAndRecovers: the checkpoint is of a newer schema. Whatever
// is asked is refused in words, over restarts, and nothing that the newer driver
// made is touched; when it is removed the state is made again from the rest.
func TestDowngradeRefusesAndRecovers(t *testing.T) {
	n := newNode(t, 3)
	claim := n.api.allocateWith("c", mps, "gpu-0")
	before := n.mustPrepare(claim)
	newer := []byte(`{"schema":2,"sections":[]}`)
	path := filepath.Join(n.data, checkpoint.FileName)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n.engine = n.driver()
		var schema *checkpoint.SchemaError
		if err := n.engine.Start(t.Context()); ClassOf(err) != ClassCheckpoint || !errors.As(err, &schema) {
			t.Fatalf("starting: %v", err)
		}
		if _, err := n.prepare(n.api.allocate("other", "gpu-1")); ClassOf(err) != ClassCheckpoint || !strings.Contains(err.Error(), "schema version 2") {
			t.Errorf("preparing: %v", err)
		}
		if err := n.unprepare(claim); ClassOf(err) != ClassCheckpoint {
			t.Errorf("unpreparing: %v", err)
		}
		if err := n.engine.Collect(t.Context()); ClassOf(err) != ClassCheckpoint {
			t.Errorf("collecting: %v", err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !reflect.DeepEqual(got, newer) {
		t.Errorf("the newer file is %s, %v", got, err)
	}
	if got := n.files(); len(got) != 1 || len(n.hardware.shares) != 1 {
		t.Errorf("left are files %v, shares %v", got, n.hardware.shares)
	}
	for _, name := range []string{checkpoint.FileName, checkpoint.PreviousFileName} {
		remove(n, name)
	}
	n.api.remove("other")
	n.restart()
	n.expect("recovered", []string{string(claim.UID)}, []string{string(claim.UID) + "=PrepareCompleted"})
	if after := n.mustPrepare(claim); !reflect.DeepEqual(before, after) {
		t.Errorf("kubelet is told %+v, before %+v", after, before)
	}
	if _, err := n.prepare(n.api.allocate("rival", "gpu-0")); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("the device of a claim that runs was given away: %v", err)
	}
}

// TestUpgradeKeepsWhatRuns: the first version's file, and a claim that it has
// prepared: this one goes on with it, and writes nothing of the claim anew.
func TestUpgradeKeepsWhatRuns(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocate("claim-0", "gpu-0")
	before := n.mustPrepare(claim)
	file, err := os.ReadFile(n.engine.CDI.Path(claim.UID))
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile("../checkpoint/testdata/schema1-first.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.data, checkpoint.FileName), old, 0o600); err != nil {
		t.Fatal(err)
	}
	// The old file says that claim uid-0 has the device: this is that claim.
	n.api.remove("claim-0")
	if err := os.Rename(n.engine.CDI.Path(claim.UID), n.engine.CDI.Path("uid-0")); err != nil {
		t.Fatal(err)
	}
	claim.UID = "uid-0"
	n.restart()
	if len(n.observer.recovered) != 0 {
		t.Errorf("it was recovered from %v", n.observer.recovered)
	}
	after := n.mustPrepare(claim)
	if len(after) != len(before) || after[0].DeviceName != "gpu-0" {
		t.Errorf("kubelet is told %+v, before %+v", after, before)
	}
	if got, err := os.ReadFile(n.engine.CDI.Path("uid-0")); err != nil || string(got) != string(file) {
		t.Errorf("the CDI file is %s, %v", got, err)
	}
	if _, err := n.prepare(n.api.allocate("rival", "gpu-0")); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("the device of a claim that runs was given away: %v", err)
	}
	if err := n.unprepare(claim); err != nil {
		t.Fatal(err)
	}
	if got := n.record(); len(got) != 1 || got[0] != "uid-1=PrepareStarted" {
		t.Errorf("recorded are %v", got)
	}
}
