package main

// This file is the hardware as the flags describe it.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpuladder.dev/ladder/drivers/nvml"
	"gpuladder.dev/ladder/drivers/nvml/edits"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
)

// hardwareOptions are the flags of the hardware.
type hardwareOptions struct {
	config, library, sysfs string
	roots                  edits.Roots
	removeUnknown          bool
	calls, edit, poll      time.Duration
	retry, settle          time.Duration
	allow, deny            []string
}

func (o *hardwareOptions) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.config, "config", "", "a file of kind "+nvml.PolicyKind+": which GPUs are published, as what, and what counts against them")
	flags.StringSliceVar(&o.allow, "allow", nil, "UUIDs or PCI addresses of the only GPUs that are published, beside what the file says")
	flags.StringSliceVar(&o.deny, "deny", nil, "UUIDs or PCI addresses of GPUs that are left alone, beside what the file says")
	flags.StringVar(&o.roots.Driver, "driver-root", "/", "where NVIDIA's driver is installed, as this program sees it")
	flags.StringVar(&o.roots.DriverOnHost, "driver-root-on-host", "", "the same folder as the container runtime sees it (default: the same path)")
	flags.StringVar(&o.roots.Dev, "dev-root", "", "the folder that has dev with NVIDIA's device nodes, as this program sees it (default: the driver root)")
	flags.StringVar(&o.roots.DevOnHost, "dev-root-on-host", "", "the same folder as the container runtime sees it")
	flags.StringVar(&o.roots.Proc, "proc-root", "/", "the folder that has proc with what NVIDIA's kernel driver says of MIG instances")
	flags.StringVar(&o.roots.Hook, "cdi-hook", "", "NVIDIA's nvidia-cdi-hook on the host; without it containers get no updated library cache and no links")
	flags.StringVar(&o.library, "nvml", "", "the library (default: libnvidia-ml.so.1 below the driver root, or where the system finds it)")
	flags.StringVar(&o.sysfs, "sysfs", "", "the folder where PCIe roots and NUMA nodes are read (default: /sys)")
	flags.BoolVar(&o.removeUnknown, "remove-unknown-instances", false, "when starting, destroy MIG instances that no claim has; otherwise nothing is published in their place")
	flags.DurationVar(&o.calls, "call-limit", nvml.DefaultCallLimit, "how long a call of NVML may take")
	flags.DurationVar(&o.edit, "edit-limit", nvml.DefaultEditLimit, "how long each step of making a partition may take")
	flags.DurationVar(&o.poll, "poll-period", nvml.DefaultPollPeriod, "how often each GPU is asked how it is")
	flags.DurationVar(&o.retry, "retry-limit", nvml.DefaultRetryLimit, "the longest wait before a driver that is away, or a lost GPU, is looked for again")
	flags.DurationVar(&o.settle, "xid-settle", nvml.DefaultSettle, "how long NVIDIA's driver must not ask for anything after an XID before it is over, if it never did")
}

// policy is the file and the lists of the flags; an error is of one of the flags.
func (o *hardwareOptions) policy() (nvml.Policy, error) {
	for _, flag := range []struct {
		name  string
		value time.Duration
	}{
		{"call-limit", o.calls}, {"edit-limit", o.edit}, {"poll-period", o.poll}, {"retry-limit", o.retry}, {"xid-settle", o.settle},
	} {
		if flag.value < 0 {
			return nvml.Policy{}, fmt.Errorf("--%s %s must not be negative", flag.name, flag.value)
		}
	}
	policy, err := nvml.LoadPolicy(o.config)
	if err != nil {
		return policy, err
	}
	policy.GPUs.Allow = append(policy.GPUs.Allow, matches(o.allow)...)
	policy.GPUs.Deny = append(policy.GPUs.Deny, matches(o.deny)...)
	return policy, policy.Validate()
}

func matches(list []string) []nvml.Match {
	var all []nvml.Match
	for _, text := range list {
		match := nvml.Match{PCIAddress: text}
		if len(text) > 4 && text[:4] == "GPU-" {
			match = nvml.Match{UUID: text}
		}
		all = append(all, match)
	}
	return all
}

// place is where the hardware keeps what it remembers; empty for nowhere.
type place struct {
	memory, bootID string
	registry       prometheus.Registerer
}

// memoryFileName is in the data folder.
const memoryFileName = "gpus.json"

// open makes the inventory. Nothing of NVML is called before it runs.
func (o *hardwareOptions) open(ctx context.Context, policy nvml.Policy, at place) (*nvml.Inventory, error) {
	library := o.library
	if library == "" {
		library = edits.LibraryOf(o.roots.Driver)
	}
	var options []gonvml.LibraryOption
	if library != "" {
		options = append(options, gonvml.WithLibraryPath(library))
	}
	calls := gonvml.New(options...)
	var sysfs []deviceattribute.MachineModifier
	if o.sysfs != "" {
		if _, err := os.Stat(o.sysfs); err != nil {
			return nil, fmt.Errorf("looking for sysfs, %w", err)
		}
		sysfs = append(sysfs, deviceattribute.WithFSFromRoot(o.sysfs))
	}
	var shared *sharing.Config
	if at.memory != "" { // with nothing remembered, nothing could be set back
		shared = &sharing.Config{
			Root: o.roots.Driver, Data: filepath.Dir(at.memory), BootIDFile: at.bootID,
		}
	}
	return nvml.New(ctx, nvml.Config{
		NVML: calls, Editor: edits.New(ctx, calls, o.roots), Policy: policy, MemoryFile: at.memory, BootIDFile: at.bootID,
		RemoveUnknown: o.removeUnknown, Sysfs: sysfs, CallLimit: o.calls, EditLimit: o.edit, PollPeriod: o.poll,
		RetryLimit: o.retry, Settle: o.settle, Registry: at.registry, Sharing: shared,
	})
}

// memoryIn is the file in a data folder.
func memoryIn(folder string) string { return filepath.Join(folder, memoryFileName) }

// sortedUnique is a list in order, each once.
func sortedUnique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
