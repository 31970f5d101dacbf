package targets

import (
	"context"
	"errors"
	"path/filepath"
)

// Lint runs golangci-lint, with kube-api-linter built in, over every module.
func Lint(ctx context.Context) error {
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	var linter string
	if err := step("building the linter", func() (err error) {
		linter, err = pinnedTool(ctx, "lint", "./golangci-lint")
		return err
	}); err != nil {
		return err
	}
	var errs []error
	for _, m := range modules() {
		errs = append(errs, step("linting "+m, func() error {
			return cmd(linter, "run", "--allow-parallel-runners", "--config", filepath.Join(root, ".golangci.yaml"), "./...").in(m).run(ctx)
		}))
	}
	return errors.Join(errs...)
}
