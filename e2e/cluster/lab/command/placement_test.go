package command

import (
	"testing"

	"gpuladder.dev/ladder/e2e/placement"
)

// A small version of `mage placement`: every Pod gets its first choice while
// there are enough, and the same device in each run, in whatever order nodes and slices came and
// after a restart of the scheduler; all decisions come out the same again. The stock scheduler is
// measured as well, but nothing is promised of it.
func TestPlacement(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts labs")
	}
	o := placement.Options{Nodes: 24, H100Nodes: 3, Pods: 30, LadderRuns: 2, StockRuns: 1, Shuffle: true, Seed: 1, Progress: t.Output()}
	result, err := measureAll(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Runs) != 4 {
		t.Errorf("%d runs, want 4", len(result.Runs))
	}
	for i, r := range result.Runs {
		if want := []int{1, 2, 1, 1}[i]; r.Number != want {
			t.Errorf("%s, run %d, want %d", r.Setup, r.Number, want)
		}
		if r.Pods != o.Pods {
			t.Errorf("%s, run %d: %d Pods, want %d", r.Setup, r.Number, r.Pods, o.Pods)
		}
	}
	if err := placement.Check(o, result); err != nil {
		t.Error(err)
	}
}
