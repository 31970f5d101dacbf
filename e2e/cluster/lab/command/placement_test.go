package command

import (
	"testing"

	"gpuladder.dev/ladder/e2e/placement"
)

// A small version of `mage placement`: every Pod gets its first choice while
// there are enough, and the same device in each run. The stock scheduler is
// measured as well, but nothing is promised of it.
func TestPlacement(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts labs")
	}
	o := placement.Options{Nodes: 24, H100Nodes: 3, Pods: 30, LadderRuns: 2, StockRuns: 1, Progress: t.Output()}
	runs, err := measureAll(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 4 {
		t.Errorf("%d runs, want 4", len(runs))
	}
	for _, r := range runs {
		if r.Pods != o.Pods {
			t.Errorf("%s, run %d: %d Pods, want %d", r.Setup, r.Number, r.Pods, o.Pods)
		}
	}
	if err := placement.Check(o, runs); err != nil {
		t.Error(err)
	}
}
