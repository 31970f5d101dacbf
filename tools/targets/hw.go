package targets

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"

	"github.com/magefile/mage/mg"
)

// Hw checks the driver on this machine's NVIDIA GPUs, as root, against an API
// server of its own: `go tool mage hw [-report]`. With -report the report goes to
// docs/hardware as well. It ends with 1 where the check fails, and with 3 where
// there is no NVIDIA GPU (docs/nvml.md).
func Hw(ctx context.Context, report *bool) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	check := []string{filepath.Join(root, ".cache", "bin", "ladder-hardware")}
	if err := step("building ladder-hardware (some minutes the first time)", func() error {
		return goBuild(ctx, check[0], "./e2e/cmd/ladder-hardware")
	}); err != nil {
		return err
	}
	if value(report, false) {
		check = append(check, "--report", "docs/hardware")
	}
	err = step("checking the hardware", func() error { return cmd(check...).run(ctx) })
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return mg.Fatal(ended.ExitCode(), err)
	}
	return err
}
