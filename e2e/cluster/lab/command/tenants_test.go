package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/quota"
	"gpuladder.dev/ladder/e2e/tenants"
)

// A small version of `ladder-lab tenants`: limits hold under kills and changes,
// and all that is promised was really put to the test.
func TestTenants(t *testing.T) {
	startsLabs(t)
	o := tenants.Options{
		Tenants: 4, Pods: 100, Nodes: 3, Duration: 20 * time.Second, Seed: 1, Kills: 4, Changes: 12, Reactions: 10,
		Settle: time.Second, Progress: binaries.SerialWriter(t.Output()),
	}
	kept := filepath.Join(t.TempDir(), "history.jsonl")
	outcome, err := runTenants(t.Context(), o, kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := outcome.Err(); err != nil {
		t.Error(err)
	}
	c, l := &outcome.Churn, &outcome.Limits
	if c.ControllerKills+c.SchedulerKills != o.Kills || c.ControllerKills == 0 || c.SchedulerKills == 0 || c.Changes != o.Changes {
		t.Errorf("%d and %d kills, %d changes", c.ControllerKills, c.SchedulerKills, c.Changes)
	}
	// Two of three devices of the burst, the reactions and the load, at least.
	if least := (3*8 + o.Reactions + o.Pods) * 2 / 3; l.Given < least || l.AtLimit == 0 || l.Changes == 0 {
		t.Errorf("%d devices given, want %d; %d times up to a limit, %d changes", l.Given, least, l.AtLimit, l.Changes)
	}
	if outcome.Burst.GatesPerSecond <= 0 || outcome.Reaction.Times != o.Reactions || outcome.Reaction.Bound.P50 <= 0 {
		t.Errorf("measured %+v and %+v", outcome.Burst, outcome.Reaction)
	}
	var text bytes.Buffer
	if err := tenants.Report(&text, outcome); err != nil || strings.Contains(text.String(), "FAILED") {
		t.Errorf("%v in\n%s", err, text.String())
	}
	judgeAgain(t, kept, o.Settle, l)
}

// judgeAgain has the kept log judged: as it is, and after limits that were
// halved in it, which must be noticed.
func judgeAgain(t *testing.T, path string, settle time.Duration, want *quota.Result) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	history, err := invariants.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	got := quota.Limits(history, settle)
	if got.Err() != nil || got.Given != want.Given || got.Versions != want.Versions {
		t.Errorf("judged again: %v, %d devices and %d versions, want %d and %d", got.Err(), got.Given, got.Versions, want.Given, want.Versions)
	}
	for _, e := range history {
		if e.Quota == nil {
			continue
		}
		for i := range e.Quota.Spec.Models {
			if limit := e.Quota.Spec.Models[i].Limit; limit != nil {
				*limit /= 2
			}
		}
	}
	if got := quota.Limits(history, settle); len(got.Passed) == 0 {
		t.Error("limits that are half as high are not passed either")
	}
}
