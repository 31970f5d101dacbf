package hardware

// This file is the check from its start to its end.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
)

// publishWithin is how long the driver may take until its slices are there.
const publishWithin = 90 * time.Second

// check is one check.
type check struct {
	Options
	report *Report
	server *server
	driver *driver
}

// Run checks the machine. The report tells what was found, also where something
// is wrong; an error is that there is nothing to be checked ([ErrNoGPU]), or that
// the options can't be used.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	bus, err := Present(o)
	if err != nil {
		return nil, err
	}
	c := &check{Options: o, report: &Report{Started: o.Now().UTC(), System: runtime.GOOS + "/" + runtime.GOARCH, Bus: bus}}
	c.run(ctx)
	c.report.Passed = c.report.passed()
	return c.report, nil
}

// step does one step, tells of it, and says whether it succeeded.
func (c *check) step(what string, do func() (string, error)) bool {
	begun := c.Now()
	said, err := do()
	made := Step{Name: what, Passed: err == nil, Milliseconds: c.Now().Sub(begun).Milliseconds(), Said: said}
	if err != nil {
		made.Said = err.Error()
	}
	c.report.Steps = append(c.report.Steps, made)
	fmt.Fprintln(c.Progress, made.String())
	return err == nil
}

func (c *check) run(ctx context.Context) {
	folder, err := os.MkdirTemp("", "ladder-hw-")
	if !c.step("make a folder", func() (string, error) { return folder, err }) {
		return
	}
	defer func() { _ = os.RemoveAll(folder) }() // a temporary one
	if !c.step("ask nvidia-smi", func() (string, error) { return c.ask(ctx) }) ||
		!c.step("enumerate", func() (string, error) { return c.enumerate(ctx) }) {
		return
	}
	if !c.step("start an API server", func() (said string, err error) {
		c.server, err = startServer(ctx, c.Assets, folder)
		return "etcd and kube-apiserver on loopback", err
	}) {
		return
	}
	defer c.step("stop the API server", func() (string, error) { return "", c.server.stop() })
	if !c.step("start the driver", func() (said string, err error) {
		c.driver, err = startDriver(ctx, c.Options, c.server.kubeconfig, folder)
		return "", err
	}) {
		return
	}
	defer c.step("stop the driver", func() (string, error) { return "", c.driver.stop() })
	var devices []resourcev1.Device
	if !c.step("register", func() (string, error) { return "as kubelet does", c.driver.register(ctx) }) ||
		!c.step("publish", func() (said string, err error) {
			devices, err = c.published(ctx)
			return fmt.Sprintf("%d devices", len(devices)), err
		}) {
		return
	}
	c.step("compare", func() (string, error) {
		c.report.Comparisons = Compare(devices, c.report.smi)
		if wrong := differences(c.report.Comparisons); len(wrong) > 0 {
			return "", fmt.Errorf("%d of %d differ", len(wrong), len(c.report.Comparisons))
		}
		return fmt.Sprintf("%d of %d are the same", len(c.report.Comparisons), len(c.report.Comparisons)), nil
	})
	for _, b := range boards(devices) {
		for _, device := range b.chosen() {
			(&life{check: c, board: b, device: device}).run(ctx)
		}
	}
}

// chosen are the devices of a board that are claimed: the whole of it, and the
// smallest partition.
func (b *board) chosen() []*resourcev1.Device {
	var all []*resourcev1.Device
	if b.whole != nil {
		all = append(all, b.whole)
	}
	if len(b.partitions) > 0 {
		smallest := slices.MinFunc(b.partitions, func(a, b resourcev1.Device) int {
			x, y := a.Capacity["memory"], b.Capacity["memory"]
			return x.Value.Cmp(y.Value)
		})
		all = append(all, &smallest)
	}
	return all
}

func (c *check) ask(ctx context.Context) (string, error) {
	smi, err := askSMI(ctx, c.SMI)
	if err != nil {
		return "", err
	}
	c.report.smi, c.report.Simulated, c.report.DriverVersion, c.report.CUDAVersion = smi, smi.Simulated, smi.Driver, smi.CUDA
	for i := range smi.GPUs {
		g := &smi.GPUs[i]
		c.report.GPUs = append(c.report.GPUs, GPU{Name: g.Product, Address: g.address(), UUID: g.UUID, Memory: g.Memory, MIG: g.MIG})
	}
	if len(smi.GPUs) == 0 {
		return "", errors.New("it lists no GPU")
	}
	return fmt.Sprintf("%d GPUs, driver %s", len(smi.GPUs), smi.Driver), nil
}

func (c *check) enumerate(ctx context.Context) (string, error) {
	shown, err := list(ctx, c.Options)
	if err != nil {
		return "", err
	}
	if len(shown.Devices) == 0 {
		return "", errors.New("the driver finds no device")
	}
	for _, t := range shown.Troubles {
		c.report.Troubles = append(c.report.Troubles, fmt.Sprintf("%s: %s, %s", t.Device, t.Reason, t.Message))
	}
	return fmt.Sprintf("%d devices of %d GPUs, %d troubles", len(shown.Devices), len(boards(shown.Devices)), len(shown.Troubles)), nil
}

// published waits for the slices.
func (c *check) published(ctx context.Context) ([]resourcev1.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	var devices []resourcev1.Device
	err := c.driver.await(ctx, "the slices are there", func() (bool, error) {
		all, err := c.server.slices(ctx)
		if err != nil {
			return false, err
		}
		devices = nil
		for _, slice := range all {
			devices = append(devices, slice.Spec.Devices...)
		}
		return len(devices) > 0, nil
	})
	return devices, err
}
