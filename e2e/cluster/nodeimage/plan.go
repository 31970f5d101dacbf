package nodeimage

import (
	"context"
	"os"
	"path/filepath"

	"gpuladder.dev/ladder/e2e/cluster/apt"
)

// hostPackages are those that building an image needs on this machine. What
// the programs are built with is asked for by package binaries.
var hostPackages = []string{"debootstrap"}

// Plan says in words what Ensure would do, and what stands in its way. It
// changes nothing.
type Plan struct {
	// Image is the image that will be used, unless a pull succeeds.
	Image string
	// Steps are what will be done, in order; none where the image is there.
	Steps []string
	// Missing are the reasons why it can't be done.
	Missing []string
}

// PlanFor looks at the engine, the cache and the machine. Without an engine it
// tells what holds for one that has no images.
func PlanFor(ctx context.Context, o Options) (*Plan, error) {
	m := &maker{Options: o}
	has := func(image string) bool { return o.Engine != nil && m.has(ctx, image) }
	if o.Source != Build && has(PulledImage) {
		return &Plan{Image: PulledImage}, nil
	}
	pull := "pull " + PulledImage
	if o.Source == Pull {
		return &Plan{Image: PulledImage, Steps: []string{pull}}, nil
	}
	r, err := currentRecipe(ctx)
	if err != nil {
		return nil, err
	}
	if m.cache, err = cacheDir(); err != nil {
		return nil, err
	}
	m.recipe = r
	plan := &Plan{Image: r.image()}
	if has(plan.Image) {
		return plan, nil
	}
	if _, err := os.Stat(m.archive()); err == nil {
		plan.Steps = []string{"load the node image from " + m.archive()}
		return plan, nil
	}
	build := "build the node image " + plan.Image + ": programs from Go modules, a root file system by debootstrap"
	if o.Source == Auto || o.Source == "" {
		plan.Steps = append(plan.Steps, pull+"; where that is not possible:")
	}
	if missing := apt.New(nil).Missing(ctx, hostPackages...); len(missing) > 0 {
		if _, err := os.Stat(filepath.Join(m.cache, r.rootArchive())); err != nil {
			plan.Steps = append(plan.Steps, "install with apt-get: "+join(missing))
			if err := apt.New(nil).Check(ctx, missing...); err != nil {
				plan.Missing = append(plan.Missing, err.Error())
			}
		}
	}
	plan.Steps = append(plan.Steps, build)
	if os.Geteuid() != 0 {
		plan.Missing = append(plan.Missing, ErrNotRoot.Error())
	}
	if o.Source != Build {
		// A pull may still succeed.
		plan.Steps = append(plan.Steps, plan.Missing...)
		plan.Missing = nil
	}
	return plan, nil
}
