package upstream

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// it is a test as Ginkgo reports it.
func it(container, leaf string, state types.SpecState, message string) types.SpecReport {
	r := types.SpecReport{
		ContainerHierarchyTexts: []string{"[sig-node]", container}, ContainerHierarchyLabels: [][]string{{"sig-node"}, {"DRA"}},
		LeafNodeType: types.NodeTypeIt, LeafNodeText: leaf, LeafNodeLabels: []string{"Serial", "DRA"},
		State: state, NumAttempts: 1,
	}
	if state != types.SpecStateSkipped || message != "" {
		r.StartTime = time.Unix(100, 0)
		r.RunTime = 1400 * time.Millisecond
	}
	r.Failure.Message = message
	return r
}

func spec(name string) Spec { return Spec{Name: name} }

func writeReport(t *testing.T, path string, reports ...types.Report) {
	t.Helper()
	content, err := json.Marshal(reports)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSelectedOfADryRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	before := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStatePassed}
	writeReport(t, path, types.Report{SpecReports: types.SpecReports{
		it("DRA", "b", types.SpecStatePassed, ""), before,
		it("DRA", "a", types.SpecStatePassed, ""), it("DRA", "not chosen", types.SpecStateSkipped, ""),
	}})
	reports, err := readReports(path)
	if err != nil {
		t.Fatal(err)
	}
	labels := []string{"DRA", "Serial", "sig-node"}
	want := []Spec{{"[sig-node] DRA a", labels}, {"[sig-node] DRA b", labels}}
	if got := selected(reports); !reflect.DeepEqual(got, want) {
		t.Errorf("selected = %+v, want %+v", got, want)
	}
}

func TestReportsThatCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if _, err := readReports(path); err == nil {
		t.Error("no file is a report")
	}
	if err := os.WriteFile(path, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readReports(path); err == nil {
		t.Error("half a file is a report")
	}
}

func TestResults(t *testing.T) {
	flaky := it("DRA", "flaky", types.SpecStatePassed, "")
	flaky.NumAttempts = 2
	setup := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed}
	setup.Failure.Message = "no node is ready"
	// Each process reports every test; only one of them ran it.
	reports := []types.Report{
		{SpecReports: types.SpecReports{it("DRA", "passes", types.SpecStateSkipped, ""), flaky, setup}},
		{SpecReports: types.SpecReports{
			it("DRA", "passes", types.SpecStatePassed, ""), it("DRA", "flaky", types.SpecStateSkipped, ""),
			it("DRA", "fails", types.SpecStateFailed, "expected\n\n  this\n"), it("DRA", "panics", types.SpecStatePanicked, "nil"),
			it("DRA", "too slow", types.SpecStateTimedout, "timeout"), it("DRA", "skips", types.SpecStateSkipped, "needs two nodes"),
			it("DRA", "not reached", types.SpecStateSkipped, ""), it("other", "passes", types.SpecStatePassed, ""),
		}, SpecialSuiteFailureReasons: []string{"Interrupted by User"}},
	}
	var specs []Spec
	for _, leaf := range []string{"too slow", "skips", "passes", "panics", "not reached", "flaky", "fails", "absent"} {
		specs = append(specs, spec("[sig-node] DRA "+leaf))
	}
	got, trouble := results(specs, reports)
	want := []Result{
		{Spec: spec("[sig-node] DRA absent"), Outcome: NotRun},
		{Spec: spec("[sig-node] DRA fails"), Outcome: Failed, Reason: "expected this", Attempts: 1, Took: time.Second},
		{Spec: spec("[sig-node] DRA flaky"), Outcome: Passed, Attempts: 2, Took: time.Second},
		{Spec: spec("[sig-node] DRA not reached"), Outcome: NotRun, Attempts: 1},
		{Spec: spec("[sig-node] DRA panics"), Outcome: Failed, Reason: "nil", Attempts: 1, Took: time.Second},
		{Spec: spec("[sig-node] DRA passes"), Outcome: Passed, Attempts: 1, Took: time.Second},
		{Spec: spec("[sig-node] DRA skips"), Outcome: Skipped, Reason: "needs two nodes", Attempts: 1, Took: time.Second},
		{Spec: spec("[sig-node] DRA too slow"), Outcome: Failed, Reason: "timeout", Attempts: 1, Took: time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("results =\n%+v, want\n%+v", got, want)
	}
	if len(trouble) != 2 || trouble[0] != "Interrupted by User" || !strings.HasSuffix(trouble[1], "no node is ready") {
		t.Errorf("trouble = %q", trouble)
	}
	run := Run{Results: got}
	for outcome, n := range map[Outcome]int{Passed: 2, Failed: 3, Skipped: 1, NotRun: 2} {
		if run.Count(outcome) != n {
			t.Errorf("%d %s, want %d", run.Count(outcome), outcome, n)
		}
	}
}

func TestLongReasonsAreCut(t *testing.T) {
	if got := firstLines(strings.Repeat("ä", maxReason+1)); got != strings.Repeat("ä", maxReason)+"…" {
		t.Errorf("%d characters remain", len([]rune(got)))
	}
}
