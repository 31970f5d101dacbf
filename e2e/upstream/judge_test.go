package upstream

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"gpuladder.dev/ladder/e2e/cluster"
)

// fakeCluster is a cluster that only remembers what was done to it.
type fakeCluster struct {
	cluster.Cluster
	failed     chan error
	kept, down bool
}

func (c *fakeCluster) Kubeconfig() string { return "/kubeconfig" }
func (c *fakeCluster) Failed() <-chan error {
	return c.failed
}
func (c *fakeCluster) KeepLogs() { c.kept = true }
func (c *fakeCluster) Down(context.Context) error {
	c.down = true
	return nil
}

// judging returns a judge whose suite reports the state for its one test.
func judging(t *testing.T, script string, states map[Scheduler]types.SpecState) (*Judge, map[Scheduler]*fakeCluster) {
	t.Helper()
	clusters := map[Scheduler]*fakeCluster{}
	dir := t.TempDir()
	for s, state := range states {
		writeReport(t, filepath.Join(dir, string(s)), types.Report{SpecReports: types.SpecReports{it("DRA", "a", state, "")}})
	}
	return &Judge{
		// The suite runs in the folder that is called after the scheduler.
		Suite: &Suite{Ginkgo: program(t, script+"\ncp "+dir+`/$(basename "$PWD") ginkgo.json`)},
		Specs: []Spec{spec("[sig-node] DRA a")}, Timeout: time.Hour, Dir: t.TempDir(), Progress: io.Discard,
		Target: func(_ context.Context, s Scheduler) (cluster.Cluster, error) {
			clusters[s] = &fakeCluster{failed: make(chan error, 1)}
			return clusters[s], nil
		},
	}, clusters
}

func TestJudgeRunsBothAndCompares(t *testing.T) {
	j, clusters := judging(t, "", map[Scheduler]types.SpecState{Stock: types.SpecStatePassed, Ladder: types.SpecStateFailed})
	c, err := j.Compare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	worse := new(WorseError)
	if !errors.As(c.Err(), &worse) || c.Stock.Scheduler != "kube-scheduler" || c.Ours.Scheduler != "ladder-scheduler" {
		t.Errorf("comparison = %+v, %v", c, c.Err())
	}
	if s := clusters[Stock]; !s.down || s.kept {
		t.Errorf("the stock cluster: %+v", s)
	}
	if s := clusters[Ladder]; !s.down || !s.kept {
		t.Errorf("the cluster where a test failed: %+v", s)
	}
	run, err := ReadRun(filepath.Join(j.Dir, "ladder-scheduler", runFile))
	if err != nil || run.Count(Failed) != 1 {
		t.Errorf("kept run = %+v, %v", run, err)
	}
}

func TestJudgeUsesAnEarlierRun(t *testing.T) {
	j, clusters := judging(t, "", map[Scheduler]types.SpecState{Ladder: types.SpecStatePassed})
	j.StockRun = runOf("kube-scheduler", map[string]Outcome{"[sig-node] DRA a": Passed, "not asked for": Passed})
	c, err := j.Compare(t.Context())
	if err != nil || c.Err() != nil || len(c.Same) != 1 {
		t.Errorf("comparison = %+v, %v", c, err)
	}
	if clusters[Stock] != nil {
		t.Error("a stock cluster was made all the same")
	}
}

func TestACrashOfTheClusterEndsTheRun(t *testing.T) {
	j, clusters := judging(t, "while :; do sleep 0.05; done", map[Scheduler]types.SpecState{Stock: types.SpecStatePassed})
	crash := errors.New("etcd ended")
	target := j.Target
	j.Target = func(ctx context.Context, s Scheduler) (cluster.Cluster, error) {
		c, err := target(ctx, s)
		clusters[s].failed <- crash
		return c, err
	}
	if _, err := j.Run(t.Context(), Stock); !errors.Is(err, crash) {
		t.Errorf("err = %v", err)
	}
	if c := clusters[Stock]; !c.down || !c.kept {
		t.Errorf("cluster = %+v", c)
	}
}

func TestAClusterThatDoesNotComeUpIsAnError(t *testing.T) {
	j, _ := judging(t, "", nil)
	j.Target = func(context.Context, Scheduler) (cluster.Cluster, error) { return nil, errors.New("no engine") }
	if _, err := j.Compare(t.Context()); err == nil || !strings.Contains(err.Error(), "kube-scheduler, no engine") {
		t.Errorf("err = %v", err)
	}
}

func TestReadRunTakesRunsOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	for _, content := range []string{"", "{}", `{"scheduler":"x"}`, "["} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := ReadRun(path); err == nil {
			t.Errorf("ReadRun(%q) = %+v", content, r)
		}
	}
}
