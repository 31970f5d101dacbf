package upstream

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// program writes a shell script that stands for a program of the suite. It
// keeps its arguments, one a line, in the file args beside it.
func program(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	text := "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + filepath.Join(dir, "args") + "\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func argsOf(t *testing.T, program string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(filepath.Dir(program), "args"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// reporting is a script that hands out a report, as the suite does for a dry run.
func reporting(t *testing.T, reports ...types.Report) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prepared.json")
	writeReport(t, path, reports...)
	return `for a; do case "$a" in --ginkgo.json-report=*) cp ` + path + ` "${a#*=}";; esac; done`
}

func TestImages(t *testing.T) {
	s := &Suite{Test: program(t, "echo example.test/busybox:1\necho example.test/agnhost:2\n# image: example.test/a/busybox:1.2-3 # words")}
	images, err := s.Images(t.Context(), "busybox")
	if want := "example.test/a/busybox:1.2-3 example.test/agnhost:2 example.test/busybox:1"; err != nil || strings.Join(images, " ") != want {
		t.Errorf("Images = %v, %v, want %s", images, err, want)
	}
	if args := argsOf(t, s.Test); args != "--list-images\n" {
		t.Errorf("args = %q", args)
	}
	s.Test = program(t, "echo broken >&2; exit 3")
	if _, err := s.Images(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("err = %v", err)
	}
}

func TestMentionedImages(t *testing.T) {
	text := "\x00image: r.test/x/tool:v1.2.3\n- image: \"r.test:5000/tool:2\"\n/tool:to-be-replaced r/tool: r/tools:3 r/x-tool:4 r/tool:5/y"
	want := "r.test/x/tool:v1.2.3 r.test:5000/tool:2 r/tool:5"
	if got := strings.Join(mentioned([]byte(text), "tool"), " "); got != want {
		t.Errorf("mentioned = %q, want %q", got, want)
	}
	if got := mentioned([]byte("a/tool:9"), "tool"); len(got) != 1 || got[0] != "a/tool:9" {
		t.Errorf("at the ends: %q", got)
	}
}

func TestListTakesItsShard(t *testing.T) {
	s := &Suite{Test: program(t, reporting(t, types.Report{SpecReports: types.SpecReports{
		it("DRA", "c", types.SpecStatePassed, ""), it("DRA", "a", types.SpecStatePassed, ""),
		it("DRA", "b", types.SpecStatePassed, ""), it("DRA", "d", types.SpecStateSkipped, ""),
	}}))}
	specs, err := s.List(t.Context(), Selection{LabelFilter: "X", Focus: "y", Shard: Shard{Index: 1, Count: 2}})
	if err != nil || len(specs) != 2 || specs[0].Name != "[sig-node] DRA a" || specs[1].Name != "[sig-node] DRA c" {
		t.Errorf("List = %v, %v", specs, err)
	}
	for _, want := range []string{"--ginkgo.dry-run\n", "--ginkgo.label-filter=X\n", "--ginkgo.focus=y\n"} {
		if args := argsOf(t, s.Test); !strings.Contains(args, want) {
			t.Errorf("args %q lack %q", args, want)
		}
	}
}

func TestListSaysWhatTheSuiteSaid(t *testing.T) {
	s := &Suite{Test: program(t, "echo 'unparsable label filter'; exit 1")}
	if _, err := s.List(t.Context(), Selection{}); err == nil || !strings.Contains(err.Error(), "unparsable label filter") {
		t.Errorf("err = %v", err)
	}
}

func TestLeftOut(t *testing.T) {
	dir := t.TempDir()
	all, chosen := filepath.Join(dir, "all.json"), filepath.Join(dir, "chosen.json")
	a, b := it("DRA", "a", types.SpecStatePassed, ""), it("DRA", "b", types.SpecStatePassed, "")
	writeReport(t, all, types.Report{SpecReports: types.SpecReports{a, b}})
	b.State = types.SpecStateSkipped
	writeReport(t, chosen, types.Report{SpecReports: types.SpecReports{a, b}})
	s := &Suite{Test: program(t, `from=`+all+`
for a; do case "$a" in
--ginkgo.label-filter=narrow) from=`+chosen+`;;
--ginkgo.json-report=*) to="${a#*=}";;
esac; done
cp $from "$to"`)}
	specs, err := s.LeftOut(t.Context(), "narrow")
	if err != nil || len(specs) != 1 || specs[0].Name != "[sig-node] DRA b" {
		t.Errorf("LeftOut = %v, %v", specs, err)
	}
}

// runner is a suite whose ginkgo writes the report and ends as given.
func runner(t *testing.T, script string, reports ...types.Report) *Suite {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prepared.json")
	writeReport(t, path, reports...)
	return &Suite{Test: "/e2e.test", Kubectl: "/kubectl", Ginkgo: program(t, "cp "+path+" ginkgo.json\n"+script)}
}

func options(t *testing.T, names ...string) RunOptions {
	t.Helper()
	o := RunOptions{Scheduler: "s", Kubeconfig: "/k", Procs: 3, Attempts: 2, Timeout: time.Hour, Dir: t.TempDir()}
	for _, name := range names {
		o.Specs = append(o.Specs, spec(name))
	}
	return o
}

func TestRun(t *testing.T) {
	s := runner(t, "echo '•• done'; exit 1", types.Report{SpecReports: types.SpecReports{
		it("DRA", "a", types.SpecStatePassed, ""), it("DRA", "b", types.SpecStateFailed, "why"),
	}})
	o := options(t, "[sig-node] DRA a", "[sig-node] DRA b")
	run, err := s.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if run.Count(Passed) != 1 || run.Count(Failed) != 1 || len(run.Trouble) != 0 || run.Scheduler != "s" {
		t.Errorf("run = %+v", run)
	}
	args := argsOf(t, s.Ginkgo)
	for _, want := range []string{
		"--procs=3\n", "--flake-attempts=2\n", "--timeout=1h0m0s\n", `--focus=(^| )(\[sig-node\] DRA a|\[sig-node\] DRA b)$` + "\n",
		"/e2e.test\n--\n", "--kubeconfig=/k\n", "--kubectl-path=/kubectl\n",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("args lack %q:\n%s", want, args)
		}
	}
	if output, err := os.ReadFile(filepath.Join(o.Dir, outputFile)); err != nil || string(output) != "•• done\n" {
		t.Errorf("output = %q, %v", output, err)
	}
}

func TestARunThatFailsOutsideOfTestsIsTold(t *testing.T) {
	s := runner(t, "exit 5", types.Report{SpecReports: types.SpecReports{it("DRA", "a", types.SpecStatePassed, "")}})
	run, err := s.Run(t.Context(), options(t, "[sig-node] DRA a"))
	if err != nil || len(run.Trouble) != 1 || !strings.Contains(run.Trouble[0], "exit status 5") {
		t.Errorf("run = %+v, %v", run, err)
	}
}

func TestARunWithoutReportIsAnError(t *testing.T) {
	s := &Suite{Ginkgo: program(t, "echo no such cluster; exit 1")}
	_, err := s.Run(t.Context(), options(t, "a"))
	if err == nil || !strings.Contains(err.Error(), "no such cluster") || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("err = %v", err)
	}
	if _, err := s.Run(t.Context(), options(t)); err == nil {
		t.Error("a run of nothing succeeds")
	}
}

func TestAnInterruptedRunEndsInOrder(t *testing.T) {
	cleaned := filepath.Join(t.TempDir(), "cleaned")
	s := &Suite{Ginkgo: program(t, `trap 'touch `+cleaned+`; exit 1' INT
touch started
while :; do sleep 0.05; done`)}
	o := options(t, "a")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(o.Dir, "started")); err == nil {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if _, err := s.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if _, err := os.Stat(cleaned); err != nil {
		t.Errorf("the suite could not clean up: %v", err)
	}
}

func TestProgressCountsTornMarks(t *testing.T) {
	var passed bytes.Buffer
	w := newWatched(&passed, nil, "s", 4)
	text := []byte("••\nsome words\n•x•")
	for i := range text {
		if _, err := w.Write(text[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if w.ended != 4 || passed.String() != string(text) || w.last(1) != "•x•" {
		t.Errorf("%d ended, passed on %q, last %q", w.ended, passed.String(), w.last(1))
	}
	w.tell()()
}
