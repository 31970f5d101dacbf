package targets

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Generate writes what is generated: deep copies, CRDs, their copies in the chart, and the API reference.
func Generate(ctx context.Context) error {
	gen, err := pinnedTool(ctx, "pinned", "sigs.k8s.io/controller-tools/cmd/controller-gen")
	if err != nil {
		return err
	}
	if err := step("generating deep copies and CRDs", func() error {
		return cmd(gen, "object", "crd", "paths=./api/...", "output:crd:artifacts:config=api/crds").
			in("policies").with("GOWORK=off").run(ctx)
	}); err != nil {
		return err
	}
	docs, err := pinnedTool(ctx, "pinned", "github.com/elastic/crd-ref-docs")
	if err != nil {
		return err
	}
	if err := step("generating the API reference", func() error {
		_, err := cmd(docs, "--source-path=./api/v1alpha1", "--config=../tools/pinned/crd-ref-docs.yaml",
			"--renderer=markdown", "--output-path=../docs/reference/api.md").in("policies").with("GOWORK=off").output(ctx)
		return err
	}); err != nil {
		return err
	}
	return step("copying CRDs and admission policies into the chart", func() error {
		return cmd("go", "test", "-count=1", "./e2e/charts", "-run=TestCopiesAreTheirSources", "-update").run(ctx)
	})
}

// Verify regenerates everything and fails on a difference; builds and vets each
// module alone, without the workspace; and checks that go.mod files are tidy.
func Verify(ctx context.Context) error {
	before, err := treeState(ctx)
	if err != nil {
		return err
	}
	if err := Generate(ctx); err != nil {
		return err
	}
	after, err := treeState(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("generated files are out of date, run `go tool mage generate` and commit:\n%s", after)
	}
	var errs []error
	for _, m := range modules() {
		errs = append(errs, step("checking module "+m+" alone", func() error {
			alone := func(args ...string) error { return cmd(args...).in(m).with("GOWORK=off").run(ctx) }
			return errors.Join(
				alone("go", "mod", "tidy", "-diff"),
				alone("go", "build", "./..."),
				alone("go", "vet", "./..."),
			)
		}))
	}
	return errors.Join(errs...)
}

// treeState is the difference of the tracked and new files to the last commit.
func treeState(ctx context.Context) (string, error) {
	diff, err := cmd("git", "diff", "HEAD").output(ctx)
	if err != nil {
		return "", err
	}
	status, err := cmd("git", "status", "--porcelain").output(ctx)
	return strings.TrimSpace(status + diff), err
}
