// Package harness brings up what the end-to-end suites test: a kind cluster
// with the images of this tree in its nodes and, unless a test does that itself,
// Ladder installed from the chart. Everything that is there already is used
// again, so that a second run takes only what has changed.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
	"gpuladder.dev/ladder/e2e/images"
)

// Options say what is brought up.
type Options struct {
	// Name of the cluster. Default: kind.DefaultName.
	Name string
	// Driver that is installed. Default: FakeDriver.
	Driver Driver
	// Bare leaves out the chart, for tests that install it themselves. One that is
	// installed on a cluster that is there is uninstalled.
	Bare bool
	// Source of the node image. Default: nodeimage.Auto.
	Source nodeimage.Source
	// Progress is told what happens, line by line.
	Progress io.Writer
}

// Driver is what drives the GPUs of the nodes, which do not exist.
type Driver string

const (
	// FakeDriver is ladder-fake-driver: there is no hardware below the engine.
	FakeDriver Driver = "fake"
	// NVMLDriver is ladder-nvml-driver over a simulated libnvidia-ml.
	NVMLDriver Driver = "nvml"
)

// ParseDriver reads the name of a driver.
func ParseDriver(name string) (Driver, error) {
	switch d := Driver(name); d {
	case FakeDriver, NVMLDriver:
		return d, nil
	}
	return "", fmt.Errorf("choosing the driver, it is %s or %s and not %q", FakeDriver, NVMLDriver, name)
}

func (o *Options) complete() {
	if o.Driver == "" {
		o.Driver = FakeDriver
	}
	if o.Name == "" {
		o.Name = kind.DefaultName
	}
	if o.Source == "" {
		o.Source = nodeimage.Auto
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Progress = binaries.SerialWriter(o.Progress)
}

// harness is one Up under way.
type harness struct {
	Options
	engine  *docker.Engine
	cluster *kind.Cluster
	start   time.Time
}

// Up brings the cluster up, or what of it is missing, and remembers how tests
// reach it (see [Env]). It says what it is going to do before it does it. After
// an error everything is left as it is: Up goes on from there, Down removes it.
func Up(ctx context.Context, o Options) error {
	o.complete()
	h := &harness{Options: o, start: time.Now()}
	if err := h.open(ctx); err != nil {
		return err
	}
	built, err := h.build(ctx)
	if err != nil {
		return err
	}
	if err := h.up(ctx); err != nil {
		return err
	}
	if err := h.cluster.LoadImages(ctx, built.Archives()...); err != nil {
		return err
	}
	what := "Ladder"
	if o.Bare {
		what, err = "Ladder's images", h.uninstall(ctx)
	} else {
		err = h.install(ctx, built.Tag)
	}
	if err != nil {
		return err
	}
	if err := h.env(built).write(o.Name); err != nil {
		return err
	}
	h.say("cluster %s with %s is ready after %.0f s", o.Name, what, time.Since(h.start).Seconds())
	return nil
}

// open makes sure of a container engine, having told everything that will be
// done and is missing.
func (h *harness) open(ctx context.Context) error {
	plan, err := docker.Detect(ctx, docker.Options{Install: true, Progress: h.Progress})
	if err != nil {
		return err
	}
	node, err := nodeimage.PlanFor(ctx, nodeimage.Options{Source: h.Source, Progress: h.Progress})
	if err != nil {
		return err
	}
	h.say("to bring up the cluster %s, this will\n%s", h.Name, strings.TrimRight(plan.String(), "\n"))
	for _, step := range node.Steps {
		h.say("- %s, unless the engine has it", step)
	}
	if len(node.Missing) > 0 {
		return fmt.Errorf("bringing up a cluster, what is missing: %s", strings.Join(node.Missing, "; "))
	}
	h.engine, err = plan.Open(ctx)
	return err
}

// imagesOf are the images that a cluster with the driver needs.
func imagesOf(driver Driver) []string {
	names := []string{"ladder-scheduler", "ladder-controller", driverImage}
	if driver == NVMLDriver {
		names = append(names, "ladder-nvml-driver", "ladder-fakenvml")
	}
	return names
}

// build makes the images of this tree.
func (h *harness) build(ctx context.Context) (*images.Set, error) {
	h.say("building Ladder's images")
	return images.Build(ctx, h.engine, h.Progress, imagesOf(h.Driver)...)
}

// readyWithin is how long a cluster that is there may take to be well again.
const readyWithin = 3 * time.Minute

// up attaches to the cluster, or creates it. One that was made from another
// node image is made anew.
func (h *harness) up(ctx context.Context) error {
	image, err := nodeimage.Ensure(ctx, nodeimage.Options{Source: h.Source, Engine: h.engine, Progress: h.Progress})
	if err != nil {
		return err
	}
	h.cluster, err = kind.Attach(ctx, h.Name, h.engine, h.Progress)
	switch {
	case err == nil && h.engine.Started():
		h.say("the cluster %s has ended with its container engine; making it anew", h.Name)
	case err == nil && h.cluster.State().Image == image:
		ready, cancel := context.WithTimeoutCause(ctx, readyWithin, errors.New("it does not become ready"))
		defer cancel()
		if err := h.cluster.Ready(ready); err == nil {
			h.say("using the cluster %s that is there", h.Name)
			return nil
		} else if ctx.Err() != nil {
			return err
		}
		h.say("the cluster %s that is there is not well; making it anew", h.Name)
	case err == nil:
		h.say("the cluster %s was made from another node image; making it anew", h.Name)
	case errors.Is(err, kind.ErrNotFound):
	default:
		h.say("%v; making it anew", err)
	}
	if !errors.Is(err, kind.ErrNotFound) {
		if err := kind.Remove(ctx, h.Name, h.engine, h.Progress); err != nil && !errors.Is(err, kind.ErrNotFound) {
			return err
		}
	}
	h.cluster, err = kind.Create(ctx, kind.Options{Name: h.Name, Image: image, Engine: h.engine, Progress: h.Progress})
	return err
}

// Down removes the cluster and stops a private container engine, unless
// containers of somebody else run in it. One that was killed is started again to
// remove what it has stored of the cluster. Calling it again does nothing.
func Down(ctx context.Context, o Options) error {
	o.complete()
	return down(ctx, o, docker.OfMachine)
}

func down(ctx context.Context, o Options, access docker.Access) error {
	engine, err := engineOf(ctx, o, access)
	if err == nil && engine == nil {
		err = access.CleanUp(ctx, o.Progress)
	}
	if err != nil {
		return err // what is remembered of the cluster stays, so that it can be tried again
	}
	if engine != nil {
		err = kind.Remove(ctx, o.Name, engine, o.Progress)
	}
	if engine == nil || errors.Is(err, kind.ErrNotFound) {
		fmt.Fprintf(o.Progress, "no cluster %s is there\n", o.Name)
	} else if err != nil {
		return err
	}
	if err := forget(o.Name); err != nil || engine == nil {
		return err
	}
	if idle, err := engine.Idle(ctx); err != nil || !idle {
		return err
	}
	return engine.Close(ctx)
}

// engineOf is the engine that has the cluster, or had it, if the cluster is
// remembered; else the one in which it can be all the same. Nil where there is
// none.
func engineOf(ctx context.Context, o Options, access docker.Access) (*docker.Engine, error) {
	state, err := kind.Remembered(o.Name)
	if err != nil {
		return nil, err
	}
	if state != nil {
		return state.OpenEngine(ctx, o.Progress)
	}
	return access.Present(ctx, o.Progress)
}

func (h *harness) say(format string, args ...any) { fmt.Fprintf(h.Progress, format+"\n", args...) }

// stateFile is where the harness remembers a cluster.
func stateFile(name string) (string, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "e2e", name+".json"), nil
}

func forget(name string) error {
	path, err := stateFile(name)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("forgetting cluster %s, %w", name, err)
	}
	return nil
}
