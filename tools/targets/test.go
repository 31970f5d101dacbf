package targets

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// Test runs every test under the race detector: unit, property, integration
// and lab. It first builds the control plane that they need (minutes the first
// time, seconds after that).
func Test(ctx context.Context) error {
	assets, err := controlPlane(ctx)
	if err != nil {
		return err
	}
	return step("testing all modules", func() error {
		return goTest(ctx, "all", byPackage, []string{"KUBEBUILDER_ASSETS=" + assets}, "-race", "-timeout=30m", "work")
	})
}

// Unit runs the tests that need no control plane.
func Unit(ctx context.Context) error {
	return step("testing without a control plane", func() error {
		return goTest(ctx, "unit", byPackage, nil, "-short", "-race", "-timeout=15m", "work")
	})
}

// Proofs runs small versions of what ladder-lab shows in minutes or hours: storm,
// growth, soak and tenants.
func Proofs(ctx context.Context) error {
	assets, err := controlPlane(ctx)
	if err != nil {
		return err
	}
	return step("running small proofs in labs", func() error {
		return goTest(ctx, "proofs", byTest, []string{"KUBEBUILDER_ASSETS=" + assets, "LADDER_LAB_PROOFS=1"},
			"-count=1", "-timeout=30m", "-run=^Test(Storm|Growth|Soak|Tenants)$", "./e2e/cluster/lab/command")
	})
}

// Charts tests the chart with both majors of Helm against a real API server,
// and the guard on allocations.
func Charts(ctx context.Context) error {
	assets, err := controlPlane(ctx)
	if err != nil {
		return err
	}
	return step("testing the chart", func() error {
		return goTest(ctx, "charts", byPackage, []string{"KUBEBUILDER_ASSETS=" + assets}, "-count=1", "-timeout=30m", "./e2e/charts/...", "./e2e/integration/guard/...")
	})
}

// Deflake repeats the tests of one package until one fails: `deflake ./policies/decide`.
func Deflake(ctx context.Context, pkg string) error {
	assets, err := controlPlane(ctx)
	if err != nil {
		return err
	}
	for {
		err := cmd("go", "test", "-race", "-count=1", "-shuffle=on", pkg).with("KUBEBUILDER_ASSETS=" + assets).run(ctx)
		if err != nil {
			return err
		}
	}
}

// Golden rewrites the golden files; look at the difference before you commit.
func Golden(ctx context.Context) error {
	for _, pkg := range []string{"./policies/compile", "./tools/internal/...", "./e2e/charts"} {
		if err := cmd("go", "test", "-count=1", pkg, "-update").run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// controlPlane builds etcd, kube-apiserver and the rest, and returns their folder.
func controlPlane(ctx context.Context) (dir string, err error) {
	lab, err := ladderLab(ctx)
	if err != nil {
		return "", err
	}
	err = step("building the control plane", func() error {
		all := []string{
			"binaries",
			"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok",
			"ladder-scheduler", "ladder-controller", "ladder-fake-driver", "ladder",
		}
		if err := lab(all...).run(ctx); err != nil {
			return err
		}
		dir, err = lab("binaries", "--dir", "etcd", "kube-apiserver", "kubectl").output(ctx)
		dir = strings.TrimSpace(dir)
		return err
	})
	return dir, err
}

// How gotestsum tells what passed: packages, or, where one package takes many
// minutes, each test as it ends.
const (
	byPackage = "pkgname-and-test-fails"
	byTest    = "testname"
)

// goTest runs go test through gotestsum, whose last lines give the counts; the
// JUnit report goes to .artifacts.
func goTest(ctx context.Context, name, format string, env []string, args ...string) error {
	gotestsum, err := pinnedTool(ctx, "pinned", "gotest.tools/gotestsum")
	if err != nil {
		return err
	}
	artifacts, err := artifactsDir("")
	if err != nil {
		return err
	}
	sum := []string{gotestsum, "--format", format, "--junitfile", filepath.Join(artifacts, name+".xml"), "--"}
	return cmd(append(sum, args...)...).with(env...).run(ctx)
}

// artifactsDir makes .artifacts, or a folder below it.
func artifactsDir(name string) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".artifacts", name)
	return dir, os.MkdirAll(dir, 0o755)
}
