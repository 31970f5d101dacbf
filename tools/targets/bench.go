package targets

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/magefile/mage/mg"
)

// Bench are the targets that measure how fast things are.
type Bench mg.Namespace

// All runs the benchmarks of the decision engine, and of preparing claims over
// the simulated NVML, each beside its peer: `go tool mage bench`.
func (Bench) All(ctx context.Context) error {
	if err := step("benchmarking decisions", func() error {
		return cmd("go", "test", "-run=^$", "-bench=.", "-benchmem", "-timeout=30m", "./policies/decide/...").run(ctx)
	}); err != nil {
		return err
	}
	return step("benchmarking prepare and unprepare", func() error {
		return cmd("go", "test", "-run=^$", "-bench=Prepare", "-benchtime=1000x", "-timeout=30m", "./drivers/nvml").run(ctx)
	})
}

// Scheduler measures Pods a second, latency and memory of Ladder beside the
// stock scheduler, in Kubernetes' scheduler_perf: `go tool mage bench:scheduler
// [-workloads=REGEX] [-schedulers=LIST] [-repeats=N] [-nodes=N] [-short]
// [-profile] [-resume] [-check] [-report=FILE]`. In full it takes hours
// (docs/benchmarks.md); -short proves in minutes that it works.
func (Bench) Scheduler(ctx context.Context, workloads, schedulers *string, repeats, nodes *int, short, profile, resume, check *bool, report *string) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	etcd, err := etcdFolder(ctx)
	if err != nil {
		return err
	}
	args := []string{"-etcd=" + etcd, "-out=" + filepath.Join(root, ".artifacts", "bench")}
	for name, given := range map[string]*string{"workloads": workloads, "schedulers": schedulers} {
		if given != nil {
			args = append(args, "-"+name+"="+*given)
		}
	}
	for name, given := range map[string]*int{"repeats": repeats, "nodes": nodes} {
		if given != nil {
			args = append(args, fmt.Sprintf("-%s=%d", name, *given))
		}
	}
	for name, given := range map[string]*bool{"short": short, "profile": profile, "resume": resume, "check": check} {
		if value(given, false) {
			args = append(args, "-"+name)
		}
	}
	if report != nil {
		path, err := filepath.Abs(*report)
		if err != nil {
			return err
		}
		args = append(args, "-report="+path)
	}
	return step("measuring schedulers", func() error {
		return inBench(append([]string{"go", "run", "./cmd/ladder-bench"}, args...)...).run(ctx)
	})
}

// benchModule is no part of the workspace: see its package comment.
const benchModule = "e2e/bench"

// inBench is a command in that module. The flags with which programs are built
// elsewhere, and no cgo, have most of its packages compiled already.
func inBench(args ...string) command {
	return cmd(args...).in(benchModule).with("GOWORK=off", "CGO_ENABLED=0", "GOFLAGS="+strings.Join(compileFlags, " "))
}

// etcdFolder builds etcd and returns its folder.
func etcdFolder(ctx context.Context) (dir string, err error) {
	lab, err := ladderLab(ctx)
	if err != nil {
		return "", err
	}
	err = step("building etcd", func() error {
		dir, err = lab("binaries", "--dir", "etcd").output(ctx)
		dir = strings.TrimSpace(dir)
		return err
	})
	return dir, err
}
