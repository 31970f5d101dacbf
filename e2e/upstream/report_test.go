package upstream

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	stock := runOf("kube-scheduler", map[string]Outcome{"[sig-node] DRA [DRA] same": Passed, "worse": Passed, "better": Failed, "neither": Skipped})
	ours := runOf("ladder-scheduler", map[string]Outcome{"[sig-node] DRA [DRA] same": Passed, "worse": Failed, "better": Passed, "neither": Skipped})
	for i := range ours.Results {
		switch ours.Results[i].Name {
		case "worse":
			ours.Results[i].Reason = "a | b"
		case "better":
			ours.Results[i].Attempts = 2
		}
	}
	stock.Took = 90 * time.Second
	ours.Trouble = []string{"Interrupted by User"}
	var text bytes.Buffer
	err := Report(&text, Compare(stock, ours), About{
		Version: "v1", Cluster: "kind", Filter: "DRA", Narrowed: "shard 1/2",
		LeftOut:     []Spec{{Name: "alpha", Labels: []string{"Feature:OffByDefault", "FeatureGate:X"}}, {Name: "long", Labels: []string{"Slow"}}},
		Substitutes: []string{"busybox: from a package"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| passed | 2 | 2 |", "| failed | 1 | 1 |", "| skipped by the test | 1 | 1 |", "| time | 2 min | 0 min |",
		"**1 tests pass with kube-scheduler and not with ladder-scheduler.**", "label filter `DRA`, shard 1/2.",
		"## Worse with ours\n\n| test |", `| worse | passed | failed: a \| b |`,
		"## Passed with ours only\n", "| better | failed | passed |", "| neither | skipped | skipped |",
		"ladder-scheduler: Interrupted by User", "| better | 1 | 2 |", "- busybox: from a package",
		"Needs a feature gate that is off by default, among X:\n- alpha", "Marked slow:\n- long", "- DRA same\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
}

func TestReportOfEqualRuns(t *testing.T) {
	outcomes := map[string]Outcome{"a": Passed, "b": Passed}
	var text bytes.Buffer
	if err := Report(&text, Compare(runOf("x", outcomes), runOf("y", outcomes)), About{}); err != nil {
		t.Fatal(err)
	}
	for _, heading := range []string{"Worse", "ours only", "Unable", "Images", "Left out", "further attempt"} {
		if strings.Contains(text.String(), heading) {
			t.Errorf("the report speaks of %q where there is nothing", heading)
		}
	}
	if !strings.Contains(text.String(), "**Every test that passes with x passes with y: 2.**") {
		t.Errorf("report:\n%s", text.String())
	}
}

func TestWhyATestIsLeftOut(t *testing.T) {
	for want, labels := range map[string][]string{
		"Needs a kubelet":           {"DRA", "Feature:DynamicResourceAllocation"},
		"Marked slow":               {"DRA", "Slow", "Feature:DynamicResourceAllocation"},
		"Needs Other; marked flaky": {"Feature:Other", "Flaky"},
		"Needs a feature gate that is off by default, among A, B": {"FeatureGate:A", "FeatureGate:B", "Feature:OffByDefault"},
	} {
		if got := because(labels); got != want {
			t.Errorf("because(%v) = %q, want %q", labels, got, want)
		}
	}
}
