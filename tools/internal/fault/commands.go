package fault

// This file has a command for each kind of fault.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/tools/internal/command"
)

// kind makes the command of a kind from what is its own.
func (f *shared) kind(use, short, long string, args cobra.PositionalArgs, spec func(args []string) (fault.Spec, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := spec(args)
			if err != nil {
				return command.BadInput(err)
			}
			return f.inject(cmd.Context(), wanted)
		},
	}
	f.format.Flag(cmd)
	return cmd
}

// ofDevices are the faults of hardware.
func (f *shared) ofDevices() []*cobra.Command {
	of := func(kind fault.Kind) func([]string) (fault.Spec, error) {
		return func(args []string) (fault.Spec, error) { return fault.Spec{Kind: kind, Device: args[0]}, nil }
	}
	return []*cobra.Command{
		f.kind("xid DEVICE CODE", "Report an Xid error of a device",
			"Report an Xid error of a device, such as 79 (fallen off the bus) or 48 (double-bit\nECC error). What it means for the device is for the driver to say.",
			cobra.ExactArgs(2), func(args []string) (fault.Spec, error) {
				code, err := strconv.Atoi(args[1])
				if err != nil || code < 1 {
					return fault.Spec{}, fmt.Errorf("the code of an Xid is a number from 1 to %d, not %q", fault.MaxXID, args[1])
				}
				return fault.Spec{Kind: fault.XID, Device: args[0], Code: code}, nil
			}),
		f.kind("lost DEVICE", "Lose a device: it has fallen off the bus",
			"Lose a device: NVML answers that it is lost, as when it has fallen off the bus.", cobra.ExactArgs(1), of(fault.Lost)),
		f.kind("remap DEVICE", "Leave a row remap of a device pending",
			"Leave a row remap of a device pending: its memory needs a reset of the device to\nbe whole again.", cobra.ExactArgs(1), of(fault.Remap)),
	}
}

// ofDriver are the faults of the driver itself.
func (f *shared) ofDriver() []*cobra.Command {
	of := func(kind fault.Kind) func([]string) (fault.Spec, error) {
		return func([]string) (fault.Spec, error) { return fault.Spec{Kind: kind}, nil }
	}
	return []*cobra.Command{
		f.kind("slow-prepare DURATION", "Make every prepare of a claim take longer",
			"Make every prepare of a claim take longer by a time, such as 5s.",
			cobra.ExactArgs(1), func(args []string) (fault.Spec, error) {
				longer, err := time.ParseDuration(args[0])
				if err != nil {
					return fault.Spec{}, fmt.Errorf("a duration is written like 5s or 1m30s, not %q", args[0])
				}
				return fault.Spec{Kind: fault.SlowPrepare, Duration: fault.Duration(longer)}, nil
			}),
		f.failPrepare(),
		f.kind("torn-checkpoint", "Cut the driver's checkpoint file in the middle",
			"Cut the driver's checkpoint file in the middle, now and once.", cobra.NoArgs, of(fault.TornCheckpoint)),
		f.kind("stale-slice", "Publish no change of the ResourceSlices",
			"Publish no change: the ResourceSlices stay as they are, whatever becomes of the\ndevices.", cobra.NoArgs, of(fault.StaleSlice)),
		f.kind("withhold-slice", "Take the ResourceSlices back",
			"Take the ResourceSlices back and publish none.", cobra.NoArgs, of(fault.WithholdSlice)),
		f.crashAt(),
	}
}

func (f *shared) failPrepare() *cobra.Command {
	spec := fault.Spec{Kind: fault.FailPrepare}
	cmd := f.kind("fail-prepare", "Make prepares of claims fail",
		"Make prepares of claims fail: all until cleared, or the next few.",
		cobra.NoArgs, func([]string) (fault.Spec, error) { return spec, nil })
	cmd.Flags().IntVar(&spec.Times, "times", 0, "how many prepares fail; 0 for all, until cleared")
	cmd.Flags().StringVar(&spec.Message, "message", fault.DefaultMessage, "what the failing prepare says")
	return cmd
}

func (f *shared) crashAt() *cobra.Command {
	var once bool
	var points []string
	for _, point := range fault.CrashPoints() {
		points = append(points, string(point))
	}
	cmd := f.kind("crash-at POINT", "Crash the driver between two steps of its work",
		"Crash the driver, as a SIGKILL would, when a claim comes to a point of prepare or\nunprepare. Points, in the order in which a claim comes to them:\n\n  "+strings.Join(points, "\n  "),
		cobra.ExactArgs(1), func(args []string) (fault.Spec, error) {
			return fault.Spec{Kind: fault.CrashAt, Point: fault.CrashPoint(args[0]), Once: once}, nil
		})
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return points, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.Flags().BoolVar(&once, "once", true, "the first time only; with --once=false each time, also after a restart")
	return cmd
}

func (f *shared) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Print the faults in force, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var faults []fault.Fault
			err := f.ask(cmd.Context(), func(ctx context.Context, c *fault.Client) (err error) {
				faults, err = c.List(ctx)
				return err
			})
			if err != nil {
				return err
			}
			return f.printAll(faults, "no fault is in force", "")
		},
	}
	f.format.Flag(cmd)
	return cmd
}

func (f *shared) clear() *cobra.Command {
	var which fault.Selector
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "End faults: all of them, those of a device, or one",
		Long:  "End faults: all of them, those of a device, or one. It prints what it has ended.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if which.ID != "" && which.Device != "" {
				return command.BadInput(errors.New("--id and --device go not together"))
			}
			var cleared []fault.Fault
			err := f.ask(cmd.Context(), func(ctx context.Context, c *fault.Client) (err error) {
				cleared, err = c.Clear(ctx, which)
				return err
			})
			if err != nil {
				return err
			}
			return f.printAll(cleared, "no fault was in force", "cleared:")
		},
	}
	cmd.Flags().StringVar(&which.ID, "id", "", "only the fault with this ID")
	cmd.Flags().StringVar(&which.Device, "device", "", "only the faults of this device")
	f.format.Flag(cmd)
	return cmd
}
