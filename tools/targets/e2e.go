package targets

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/magefile/mage/mg"
)

// E2e are the targets that test Ladder end to end.
type E2e mg.Namespace

// All brings a cluster up with Ladder in it, runs the suites and takes the
// cluster down: `go tool mage e2e [-provider=kind|lab] [-driver=fake|nvml]
// [-run=REGEX] [-keep] [-full]`. Those that take long, and most rounds of
// stress, run with -full, or where -run names them. With -keep the cluster
// stays, for the next run or for a look.
func (E2e) All(ctx context.Context, provider, driver, run *string, keep, full *bool) error {
	p := value(provider, "kind")
	if p != "kind" && p != "lab" {
		return fmt.Errorf("choosing the provider, -provider is kind or lab and not %q", p)
	}
	d := value(driver, "fake")
	if p == "lab" && d != "fake" {
		return fmt.Errorf("choosing the driver, the lab has no nodes for -driver %q", d)
	}
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	// Compiled as ladder-lab and Kubernetes' programs are, so that what they
	// share is compiled once; lint has vetted it.
	args := append([]string{"-tags=e2e", "-vet=off", "-count=1", "-timeout=60m"}, compileFlags...)
	if r := value(run, ""); r != "" {
		args = append(args, "-run="+r)
	}
	args = append(args, "./e2e/suites/...")
	artifacts, err := artifactsDir("e2e")
	if err != nil {
		return err
	}
	env := []string{"CGO_ENABLED=0", "LADDER_E2E_PROVIDER=" + p, "LADDER_E2E_ARTIFACTS=" + artifacts}
	if value(full, false) || value(run, "") != "" {
		env = append(env, "LADDER_E2E_FULL=1")
	}
	if p == "lab" { // The suites start the lab themselves: it takes seconds.
		if _, err := controlPlane(ctx); err != nil {
			return err
		}
		return step("running the suites in a lab", func() error { return goTest(ctx, "e2e", byTest, env, args...) })
	}
	return withCluster(ctx, lab, "Ladder", []string{"--driver", d}, value(keep, false), func(cluster []string) error {
		return step("running the suites on kind", func() error { return goTest(ctx, "e2e", byTest, append(env, cluster...), args...) })
	})
}

// Up brings up the cluster of the end-to-end tests, with Ladder in it, and
// leaves it running: `go tool mage e2e -keep` then uses it.
func (E2e) Up(ctx context.Context) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	return step("bringing up a cluster with Ladder", func() error { return lab("e2e", "up").run(ctx) })
}

// Down takes down the cluster of the end-to-end tests and what was started for it.
func (E2e) Down(ctx context.Context) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	return step("taking the cluster down", func() error { return lab("e2e", "down").run(ctx) })
}

// Upstream runs Kubernetes' own suite for dynamic resource allocation against
// the stock scheduler and against ladder-scheduler, and compares.
func (E2e) Upstream(ctx context.Context) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	return step("running Kubernetes' own DRA suite", func() error { return lab("upstream").run(ctx) })
}

// releaseCluster is the name of the cluster on which Release installs the chart;
// that of the suites has Ladder in it.
const releaseCluster = "ladder-release"

// Release installs, tests, upgrades and uninstalls the chart with both majors of
// Helm, on a kind cluster of its own: `go tool mage e2e:release [-keep]`. With
// -keep the cluster stays, for the next run or for a look.
func (E2e) Release(ctx context.Context, keep *bool) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	own := func(args ...string) command { return lab(append(args, "--name", releaseCluster)...) }
	return withCluster(ctx, own, "Ladder's images", []string{"--bare"}, value(keep, false), func(cluster []string) error {
		args := append([]string{"-vet=off", "-count=1", "-timeout=120m"}, compileFlags...)
		return step("installing, upgrading and uninstalling the chart", func() error {
			return goTest(ctx, "release", byTest, append(cluster, "CGO_ENABLED=0"), append(args, "-run=^TestLifeOfARelease$", "./e2e/charts")...)
		})
	})
}

// withCluster brings a cluster up, with the arguments more, and runs f with the
// variables that tell tests about it. has says what is in it.
func withCluster(ctx context.Context, lab func(...string) command, has string, more []string, keep bool, f func(env []string) error) error {
	down := func() error {
		if keep {
			fmt.Printf("the cluster is kept; `%s` takes it down\n", strings.Join(lab("e2e", "down").args, " "))
			return nil
		}
		return step("taking the cluster down", func() error { return lab("e2e", "down").run(context.WithoutCancel(ctx)) })
	}
	up := lab(append([]string{"e2e", "up"}, more...)...)
	if err := step("bringing up a cluster with "+has, func() error { return up.run(ctx) }); err != nil {
		return errors.Join(err, down())
	}
	env, err := lab("e2e", "env").output(ctx)
	if err != nil {
		return errors.Join(err, down())
	}
	return errors.Join(f(strings.Fields(env)), down())
}

func value[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}
