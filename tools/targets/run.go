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
