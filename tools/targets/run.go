package targets

import (
	"context"
	"os"
	"path/filepath"
)

// Demo brings up a control plane with a small mixed fleet, places a dozen Pods
// of two tenants, explains three of the decisions, frees a device, replays the
// record and tears everything down.
func Demo(ctx context.Context) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	return lab("demo").run(ctx)
}

// Placement compares Ladder with the stock scheduler in the lab: 160 Pods, 500
// nodes of which 20 carry H100, ten runs. The report goes to docs/reports.
func Placement(ctx context.Context) error {
	lab, err := ladderLab(ctx)
	if err != nil {
		return err
	}
	return lab("placement", "--report", "docs/reports/placement.md").run(ctx)
}

// Simulate plays Microsoft's Philly trace in every set-up, as docs/reports/simulate.md
// tells, and renews the page and the numbers there. The trace is other people's
// data: it lies in $LADDER_DATA, else in ../shared/data.
func Simulate(ctx context.Context) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	data := os.Getenv("LADDER_DATA")
	if data == "" {
		data = filepath.Join(root, "..", "shared", "data")
	}
	const reports = "docs/reports/"
	return step("simulating the Philly trace", func() error {
		page, err := cmd(
			"go", "run", "./tools/cmd/ladder", "simulate", "--trace", filepath.Join(data, "philly.csv.gz"),
			"--fleet", reports+"simulate/fleet.yaml", "--policy", reports+"simulate/policy.yaml", "--quota", reports+"simulate/quota.yaml",
			"--cost", "H100=100,A100=50,L4=10", "--save", reports+"simulate.json", "-o", "html",
		).output(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, reports, "simulate.html"), []byte(page), 0o644)
	})
}

// Build builds every program into bin/.
func Build(ctx context.Context) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	for _, p := range []string{
		"./tools/cmd/ladder", "./scheduler/cmd/ladder-scheduler", "./controllers/cmd/ladder-controller",
		"./drivers/cmd/ladder-fake-driver", "./drivers/cmd/ladder-device-plugin", "./drivers/cmd/ladder-probe", "./e2e/cmd/ladder-lab",
	} {
		if err := step("building "+filepath.Base(p), func() error {
			return goBuild(ctx, filepath.Join(root, "bin")+"/", p)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Clean removes what the other targets made in the tree; caches outside it stay.
func Clean() error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "dist", ".artifacts", ".cache"} {
		if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	return nil
}
