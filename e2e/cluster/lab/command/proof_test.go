package command

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/growth"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/soak"
	"gpuladder.dev/ladder/e2e/storm"
)

// A result is told and written, and what does not hold is the exit code.
func TestProofTellsAndFails(t *testing.T) {
	broken := errors.New("it does not hold")
	for name, tc := range map[string]struct {
		args []string
		err  error
		code int
		says string // on stdout
	}{
		"holds":           {nil, nil, ExitOK, "# The report"},
		"does not hold":   {nil, broken, ExitFailed, "# The report"},
		"is not checked":  {[]string{"--check=false"}, broken, ExitOK, "# The report"},
		"as JSON":         {[]string{"-o", "json"}, broken, ExitFailed, `"seconds": 3`},
		"a wrong format":  {[]string{"-o", "xml"}, nil, ExitUsage, ""},
		"said of others":  {[]string{"--beside", "Others worked."}, nil, ExitOK, "Others worked."},
		"told to nowhere": {[]string{"--report", "/proc/none/report.md"}, nil, ExitFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var p proof
			file := filepath.Join(t.TempDir(), "reports", "report.md")
			cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
				return p.run(cmd, func(context.Context) (*result, error) {
					return &result{value: map[string]int{"seconds": 3}, err: tc.err, report: func(w io.Writer) error {
						_, err := io.WriteString(w, "# The report\n"+p.beside)
						return err
					}}, nil
				})
			}}
			p.register(cmd, "check")
			var stdout, stderr strings.Builder
			cmd.SetOut(&stdout)
			cmd.SetArgs(append([]string{"--report", file}, tc.args...))
			code := Report(cmd.ExecuteContext(t.Context()), &stderr)
			if code != tc.code || !strings.Contains(stdout.String(), tc.says) {
				t.Errorf("code %d, stdout %q, stderr %q, want %d and %q", code, stdout.String(), stderr.String(), tc.code, tc.says)
			}
			if code == ExitFailed && errors.Is(tc.err, broken) && !strings.Contains(stderr.String(), broken.Error()) {
				t.Errorf("what does not hold is not told: %q", stderr.String())
			}
			if strings.HasPrefix(tc.says, "# The") {
				if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "# The report") {
					t.Errorf("the report's file: %q, %v", text, err)
				}
			}
		})
	}
}

func TestProofsRefuseWhatCantBeMeasured(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"storm", "--nodes", "2"}, "--nodes 2"},
		{[]string{"storm", "--nodes", "10", "--pods", "41"}, "--pods 41"},
		{[]string{"storm", "now"}, "accepts 0 arg"},
		{[]string{"growth", "--nodes", "300,100"}, "--nodes [300 100]"},
		{[]string{"growth", "--pods", "100000"}, "--pods 100000"},
		{[]string{"soak", "--arrival", "0s"}, "--arrival 0s"},
		{[]string{"storm", "--idle", "5m"}, "--idle 5m0s: want 6m0s or more"},
		{[]string{"storm", "--idle", "1ms", "--check=false"}, "--idle 1ms: want a second or more"},
		{[]string{"placement", "--seed", "7"}, "--seed is what --shuffle draws from"},
		{[]string{"soak", "--duration", "-1m"}, "--duration -1m"},
	} {
		code, stdout, stderr := run(t, "", tc.args...)
		if code != ExitUsage || stdout != "" || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: code %d, stdout %q, stderr %q, want code 2 and %q", tc.args, code, stdout, stderr, tc.says)
		}
	}
}

// envProofs turns small versions of the proofs on. They take some minutes, so
// `go tool mage proofs` runs them and not every `mage test`.
const envProofs = "LADDER_LAB_PROOFS"

func startsLabs(t *testing.T) {
	t.Helper()
	if os.Getenv(envProofs) == "" {
		t.Skipf("it starts labs: set %s=1", envProofs)
	}
}

// A small version of `ladder-lab storm`: whatever the machine does meanwhile,
// all is placed and counted, and nothing is tried in vain at rest.
func TestStorm(t *testing.T) {
	startsLabs(t)
	o := storm.Options{Nodes: 4, Served: 8, Storm: 40, Waiting: 50, Rounds: 1, Runs: 1, Idle: 5 * time.Second, Progress: t.Output()}
	r, err := measureStorm(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 2 || r.Runs[0].Storm || !r.Runs[1].Storm || len(r.ComingSeconds) != 1 {
		t.Fatalf("runs %+v, the storm came in %v", r.Runs, r.ComingSeconds)
	}
	for _, run := range r.Runs {
		if run.Placed != float64(o.Served) || run.Seconds <= 0 {
			t.Errorf("run %+v, want %d Pods placed", run, o.Served)
		}
	}
	if r.Under.Seconds < o.Idle.Seconds() || r.Under.Attempts > 0 {
		t.Errorf("under the storm %+v, want no attempt where nothing happens", r.Under)
	}
	if r.Replay.Decisions == 0 || r.Replay.Differ+r.Replay.Unread+r.Replay.Twin.Differ > 0 || r.Replay.Twin.Asked == 0 {
		t.Errorf("decided again: %+v", r.Replay)
	}
	if r.Under.Reads+r.Before.Reads+r.Under.ServedAll+r.Before.ServedAll == 0 {
		t.Errorf("no request was counted: %+v, %+v", r.Before, r.Under)
	}
}

// A small version of `ladder-lab growth`.
func TestGrowth(t *testing.T) {
	startsLabs(t)
	o := growth.Options{Nodes: []int{4, 12}, Pods: 8, Single: 3, Runs: 1, Progress: t.Output()}
	r, err := measureGrowth(t.Context(), o, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != len(o.Nodes) || len(r.Idles) != len(o.Nodes) {
		t.Fatalf("runs %+v, idle %+v", r.Runs, r.Idles)
	}
	if err := r.Replay.Check(); err != nil {
		t.Error(err)
	}
	for _, run := range r.Runs {
		// A Pod with a claim takes at least the claim's allocation and
		// reservation, the binding, the condition, the record and an Event.
		if run.FirstTier != o.Pods || run.Attempt <= 0 || run.Decision <= 0 || run.Engine <= 0 || run.Wall <= 0 || run.Calls.Writes < 4 {
			t.Errorf("run %+v", run)
		}
		if run.Served["POST pods binding"] != 1 || run.SchedulerCPU <= 0 {
			t.Errorf("%v of binding a Pod, %v ms of processor time, served %v", run.Served["POST pods binding"], run.SchedulerCPU, run.Served)
		}
	}
}

// A small version of `ladder-lab soak`: half a minute in which all of it
// happens. It is too short to say whether memory grows.
func TestSoak(t *testing.T) {
	startsLabs(t)
	o := soakOptions{
		seed: 1, duration: 24 * time.Second, every: time.Second, late: 5 * time.Second, progress: t.Output(),
		history: filepath.Join(t.TempDir(), "history.jsonl"),
		pace: soak.Pace{
			Arrival: 400 * time.Millisecond, Life: 10 * time.Second, Taint: 2 * time.Second, Tainted: 4 * time.Second,
			Loss: 4 * time.Second, Lost: 5 * time.Second, Kill: 4 * time.Second,
		},
		limits: soak.Limits{Slack: 3 * time.Second, RecordWithin: 90 * time.Second, Growth: 1.2},
	}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	r, err := runSoak(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// On a slow machine what is lost last comes back at the end only.
	for _, kind := range []soak.Kind{soak.Arrive, soak.Depart, soak.Taint, soak.Lose, soak.Kill} {
		if r.Done.Actions[kind] == 0 {
			t.Errorf("there was no %s: %s", kind, r.Done)
		}
	}
	if r.Seen.Pods < r.Done.Actions[soak.Arrive]*9/10 || r.Seen.Bound == 0 || len(r.Seen.ByTier) < 2 {
		t.Errorf("seen %+v of %s", r.Seen, r.Done)
	}
	for _, v := range r.Verdicts {
		if v.Verdict != invariants.Pass && !v.Rare {
			t.Error(v.String())
		}
	}
	if err := r.Replay.Check(); err != nil {
		t.Error(err)
	}
	if live := r.Samples["ladder-controller"][0].Live; live <= 0 || r.Samples["ladder-scheduler"][0].Live <= 0 {
		t.Errorf("no heap after a collection is told: %v, %v", live, r.Samples["ladder-scheduler"][0].Live)
	}
	if len(r.Samples["ladder-controller"]) < 9 {
		t.Errorf("%d samples of ladder-controller", len(r.Samples["ladder-controller"]))
	}
	kept, err := os.Open(o.history)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	again, err := invariants.Read(kept)
	if err != nil || len(again) != r.Seen.Changes {
		t.Errorf("%d of %d observations were kept, %v", len(again), r.Seen.Changes, err)
	}
}
