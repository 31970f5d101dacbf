// Package hardware checks Ladder's driver of NVIDIA GPUs on a machine that has
// some: it enumerates them through the driver, publishes them to an API server
// of its own, compares what was published with what nvidia-smi says, has claims
// allocated, prepares them as kubelet would, looks at what was made, and takes
// them back. The result is a report.
//
// A machine needs NVIDIA's driver with nvidia-smi, the driver's program, etcd
// and kube-apiserver; no container runtime, no kubelet, no network. What is
// written goes into a temporary folder. GPUs are left as they were; the mode of
// MIG is never changed.
//
// Over the simulated NVML all of it runs too, and the report says that.
package hardware

import (
	"errors"
	"io"
	"time"
)

// Options are what a check works with. The zero value of a path is that of an
// ordinary machine.
type Options struct {
	// Driver is the program ladder-nvml-driver; Assets the folder of etcd and
	// kube-apiserver. Both are required.
	Driver, Assets string
	// SMI is nvidia-smi. Default: that of the path.
	SMI string
	// DriverRoot, Sysfs and Proc are where NVIDIA's driver is installed, and
	// where the kernel says what there is. Defaults: /, /sys, /.
	DriverRoot, Sysfs, Proc string
	// Progress is told each step. Nil: nobody.
	Progress io.Writer
	// Now is the clock. Nil: the machine's.
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Driver == "" || o.Assets == "" {
		return errors.New("the driver's program or the folder of the API server is missing")
	}
	for value, otherwise := range map[*string]string{&o.SMI: "nvidia-smi", &o.DriverRoot: "/", &o.Sysfs: "/sys", &o.Proc: "/"} {
		if *value == "" {
			*value = otherwise
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// ErrNoGPU occurs on a machine without an NVIDIA GPU.
var ErrNoGPU = errors.New("no NVIDIA GPU here")
