package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// mps is what parameters of a claim say.
const mps = `{"strategy":"MPS","mps":{"activeThreadPercentage":50,"pinnedDeviceMemoryLimit":"1024Mi"}}`

// TestCrashAtEveryPoint kills the driver at each point and then does what
// kubelet does: ask the next driver for the same again, or for the opposite if
// the Pod was deleted meanwhile. The result is the same as without the crash.
func TestCrashAtEveryPoint(t *testing.T) {
	for _, point := range Points() {
		for _, deleted := range []bool{false, true} {
			for _, lost := range []string{"", "cdi", "boot", "torn", "all"} {
				t.Run(fmt.Sprintf("%s/deleted=%v/%s", point, deleted, lost), func(t *testing.T) {
					crashAt(t, point, deleted, lost)
				})
			}
		}
	}
}

func crashAt(t *testing.T, point Point, deleted bool, lost string) {
	n := newNode(t, 2)
	// Another claim is there before, and must not notice.
	bystander := n.api.allocate("bystander", "gpu-1")
	before := n.mustPrepare(bystander)
	claim := n.api.allocateWith("c", mps, "gpu-0")
	unpreparing := point == BeforeUnprepareCDI || point == AfterUnprepareCDI || point == AfterUnprepareCheckpoint
	if unpreparing {
		n.mustPrepare(claim)
	}
	n.hooks.crash = point
	if alive(func() {
		if unpreparing {
			_ = n.unprepare(claim)
		} else {
			_, _ = n.prepare(claim)
		}
	}) {
		t.Fatal("it did not crash")
	}
	switch lost {
	case "cdi":
		for _, uid := range n.files() {
			if err := os.Remove(filepath.Join(n.cdi, "gpu.gpuladder.dev-claim_"+uid+".json")); err != nil {
				t.Fatal(err)
			}
		}
	case "boot":
		n.boot("boot-2")
	case "torn":
		n.tear(checkpoint.FileName)
	case "all":
		n.tear(checkpoint.FileName)
		n.tear(checkpoint.PreviousFileName)
		n.api.remove("c") // by force: nothing but the hardware may tell of it
	}
	n.restart()
	if lost == "boot" && len(n.hardware.shares) != 0 {
		t.Errorf("after a boot devices are shared: %v", n.hardware.shares)
	}

	// While nobody has said what becomes of the claim, its device is no one
	// else's if a container may have it.
	rival := n.api.allocate("rival", "gpu-0")
	mayRun := point == AfterCheckpointCompleted && lost != "boot"
	if _, err := n.prepare(rival); mayRun && ClassOf(err) != ClassDeviceHeld {
		t.Errorf("another claim was given the device: %v", err)
	}
	if err := n.unprepare(rival); err != nil {
		t.Fatal(err)
	}

	if unpreparing || deleted {
		if err := n.unprepare(claim); err != nil {
			t.Fatalf("unpreparing again: %v", err)
		}
	} else {
		n.mustPrepare(claim)
		if again := n.mustPrepare(claim); again[0].DeviceName != "gpu-0" {
			t.Errorf("kubelet is told %+v", again)
		}
	}
	shared := map[bool]v1alpha1.SharingStrategy{false: v1alpha1.SharingMPS}[unpreparing || deleted]
	if got := n.hardware.sharing("gpu-0", claim.UID); got != shared || len(n.hardware.shares) > 1 {
		t.Errorf("the device is shared by %q, want %q: %v", got, shared, n.hardware.shares)
	}
	if after := n.mustPrepare(bystander); !reflect.DeepEqual(before, after) {
		t.Errorf("kubelet is told %+v of the other claim, before %+v", after, before)
	}
	files, record := []string{string(bystander.UID)}, []string{string(bystander.UID) + "=PrepareCompleted"}
	if !unpreparing && !deleted {
		files, record = append(files, string(claim.UID)), append(record, string(claim.UID)+"=PrepareCompleted")
	}
	n.expect("in the end", files, record)
	n.mustPrepare(n.api.allocate("next", map[bool]string{true: "gpu-0", false: "mig-a"}[unpreparing || deleted]))
}

// TestCheckpointsThatAreLost: with whatever is left the claims that are
// prepared stay so, and their devices are held.
func TestCheckpointsThatAreLost(t *testing.T) {
	for name, test := range map[string]struct {
		lose   func(n *node)
		origin checkpoint.Origin
	}{
		"current torn":    {func(n *node) { n.tear(checkpoint.FileName) }, checkpoint.Previous},
		"both torn":       {func(n *node) { n.tear(checkpoint.FileName); n.tear(checkpoint.PreviousFileName) }, checkpoint.Lost},
		"current removed": {func(n *node) { remove(n, checkpoint.FileName) }, checkpoint.Previous},
		"all removed":     {func(n *node) { remove(n, checkpoint.FileName); remove(n, checkpoint.PreviousFileName) }, checkpoint.Fresh},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 3)
			first, last := n.api.allocate("first", "gpu-0"), n.api.allocate("last", "gpu-1")
			n.mustPrepare(first)
			gone := n.api.allocate("gone", "gpu-2")
			n.mustPrepare(gone)
			if err := n.unprepare(gone); err != nil {
				t.Fatal(err)
			}
			n.api.remove("gone")
			before := n.mustPrepare(last)
			// Deleted by force: only the CDI file tells that its container runs.
			n.api.remove("first")
			test.lose(n)
			n.restart()
			if !slices.Equal(n.observer.recovered, []checkpoint.Origin{test.origin}) {
				t.Errorf("observed are %v, want %s", n.observer.recovered, test.origin)
			}
			n.expect("recovered", []string{string(first.UID), string(last.UID)},
				[]string{string(first.UID) + "=PrepareCompleted", string(last.UID) + "=PrepareCompleted"})
			if after := n.mustPrepare(last); !reflect.DeepEqual(before, after) {
				t.Errorf("kubelet is told %+v, before %+v", after, before)
			}
			if _, err := n.prepare(n.api.allocate("rival", "gpu-0")); ClassOf(err) != ClassDeviceHeld {
				t.Errorf("the device of a claim that runs was given away: %v", err)
			}
			n.mustPrepare(n.api.allocate("new", "gpu-2"))
			n.restart()
			if len(n.observer.recovered) != 1 {
				t.Errorf("it was recovered again: %v", n.observer.recovered)
			}
		})
	}
}

func remove(n *node, name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.data, name)); err != nil {
		n.t.Fatalf("%v", err)
	}
}

// TestTornWhileRunning: kubelet's next call finds the damage, not a restart.
func TestTornWhileRunning(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	n.tear(checkpoint.FileName)
	n.mustPrepare(n.api.allocate("other", "gpu-1"))
	n.tear(checkpoint.FileName)
	if err := n.unprepare(claim); err != nil {
		t.Fatal(err)
	}
	if len(n.record()) != 1 || len(n.files()) != 1 || len(n.observer.recovered) != 2 {
		t.Errorf("recorded are %v, files %v, recoveries %v", n.record(), n.files(), n.observer.recovered)
	}
}

// TestRecoveryNeedsTheAPIServer: without it nothing is prepared, and nothing is
// forgotten.
func TestRecoveryNeedsTheAPIServer(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	n.tear(checkpoint.FileName)
	n.api.err = os.ErrDeadlineExceeded
	n.engine = n.driver()
	if err := n.engine.Start(t.Context()); ClassOf(err) != ClassAPI {
		t.Errorf("starting: %v", err)
	}
	if _, err := n.prepare(claim); ClassOf(err) != ClassAPI {
		t.Errorf("preparing: %v", err)
	}
	n.api.err = nil
	n.mustPrepare(claim)
}

// TestAGuessIsGivenUp: a claim that is known only by its allocation holds its
// device until the API server says otherwise.
func TestAGuessIsGivenUp(t *testing.T) {
	n := newNode(t, 1)
	guessed := n.api.allocate("guessed", "gpu-0")
	remove(n, checkpoint.FileName)
	n.restart()
	if got := n.record(); len(got) != 1 || got[0] != string(guessed.UID)+"=PrepareStarted" {
		t.Fatalf("recorded are %v", got)
	}
	rival := n.api.allocate("rival", "gpu-0")
	if _, err := n.prepare(rival); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
	n.api.remove("guessed")
	n.mustPrepare(rival)
	if got := n.record(); len(got) != 1 || !strings.HasPrefix(got[0], "rival") {
		t.Errorf("recorded are %v", got)
	}
	// One that is prepared after all is no guess any more.
	n = newNode(t, 1)
	guessed = n.api.allocate("guessed", "gpu-0")
	remove(n, checkpoint.FileName)
	n.restart()
	n.mustPrepare(guessed)
	n.api.remove("guessed")
	if _, err := n.prepare(n.api.allocate("rival", "gpu-0")); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
}

// TestFilesOfNobodyAreRemoved: a claim that is in no checkpoint has no file.
func TestFilesOfNobodyAreRemoved(t *testing.T) {
	n := newNode(t, 1)
	for _, content := range []string{"torn", `{"cdiVersion":"0.6.0","kind":"gpu.gpuladder.dev/claim","devices":[{"name":"x"}]}`} {
		path := filepath.Join(n.cdi, "gpu.gpuladder.dev-claim_x.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		n.restart()
		n.expect("restarted", nil, nil)
	}
}

// TestCrashWhileCollecting: the next driver collects it, after its own wait.
func TestCrashWhileCollecting(t *testing.T) {
	n := newNode(t, 1)
	n.mustPrepare(n.api.allocate("c", "gpu-0"))
	n.api.remove("c")
	collect := func() {
		if err := n.engine.Collect(t.Context()); err != nil {
			t.Error(err)
		}
	}
	collect()
	n.clock.SetTime(n.clock.Now().Add(time.Hour))
	n.hooks.crash = AfterUnprepareCDI
	if alive(collect) {
		t.Fatal("it did not crash")
	}
	n.restart()
	collect()
	n.clock.SetTime(n.clock.Now().Add(time.Hour))
	collect()
	n.expect("collected", nil, nil)
	if len(n.observer.collected) != 1 {
		t.Errorf("collected are %v", n.observer.collected)
	}
}

// TestGuessesThatFillABoardAreGivenUp: each half beside the other fits, all
// three do not, and the API server no longer has the first two.
func TestGuessesThatFillABoardAreGivenUp(t *testing.T) {
	n := newNode(t, 0)
	n.api.allocate("a", "mig-a")
	n.api.allocate("b", "mig-b")
	remove(n, checkpoint.FileName)
	n.restart()
	wanted := n.api.allocate("c", "mig-c")
	if _, err := n.prepare(wanted); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
	n.api.remove("a")
	n.api.remove("b")
	n.mustPrepare(wanted)
}

// newDamagedNode has a torn checkpoint and a damaged file, of a claim that was
// removed by force.
func newDamagedNode(t *testing.T) (*node, *resourcev1.ResourceClaim) {
	t.Helper()
	n := newNode(t, 1)
	claim := n.api.allocate("c", "gpu-0")
	n.mustPrepare(claim)
	n.tear(checkpoint.FileName)
	if err := os.Truncate(n.engine.CDI.Path(claim.UID), 10); err != nil {
		t.Fatal(err)
	}
	n.api.remove("c") // by force
	return n, claim
}

// TestADamagedFileIsEvidence: a file that is there, whatever is in it, was not
// removed, so the containers of its claim may run.
func TestADamagedFileIsEvidence(t *testing.T) {
	n, claim := newDamagedNode(t)
	n.restart()
	rival := n.api.allocate("rival", "gpu-0")
	if _, err := n.prepare(rival); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
	if err := n.unprepare(claim); err != nil {
		t.Fatal(err)
	}
	n.mustPrepare(rival)
}

// TestEvidenceIsKeptUntilItIsWrittenDown: what a damaged file proves is not lost
// where the checkpoint can't be written yet.
func TestEvidenceIsKeptUntilItIsWrittenDown(t *testing.T) {
	n, _ := newDamagedNode(t)
	inTheWay := filepath.Join(n.data, checkpoint.CorruptFileName)
	if err := os.MkdirAll(filepath.Join(inTheWay, "more"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := n.driver().Start(quiet); ClassOf(err) != ClassCheckpoint {
		t.Fatalf("with the checkpoint in no place to be written it starts: %v", err)
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	n.restart()
	rival := n.api.allocate("rival", "gpu-0")
	if _, err := n.prepare(rival); ClassOf(err) != ClassDeviceHeld {
		t.Errorf("got %v", err)
	}
}
