// Command ladder-hardware checks Ladder's driver of NVIDIA GPUs on a machine that
// has some; see package hardware.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/hardware"
)

// Exit codes.
const (
	codePassed = 0
	codeFailed = 1 // a step failed, or something differs
	codeUsage  = 2 // flags or files that can't be used
	codeNoGPU  = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// failure is an error with the exit code that it has.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// run is the program: arguments and streams in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o hardware.Options
	var report string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ladder-hardware",
		Short: "Check Ladder's driver of NVIDIA GPUs on this machine",
		Long: "Check Ladder's driver of NVIDIA GPUs on this machine: enumerate them, publish them to an API server of its own,\n" +
			"compare what NVML and nvidia-smi say, and prepare and unprepare a claim of each. The report goes to standard output.\n\n" +
			"It needs root, NVIDIA's driver and nvidia-smi. What is not there already of ladder-nvml-driver, etcd and\n" +
			"kube-apiserver is built, unless --driver and --assets say where they are.\n\n" +
			"Exit codes: 0 all is well, 1 a step failed or something differs, 2 flags or files can't be used, 3 no NVIDIA GPU here.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = cmd.ErrOrStderr()
			return check(cmd.Context(), o, report, asJSON, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Driver, "driver", "", "the program ladder-nvml-driver (default: it is built)")
	flags.StringVar(&o.Assets, "assets", "", "a folder with etcd and kube-apiserver (default: they are built)")
	flags.StringVar(&o.SMI, "nvidia-smi", "nvidia-smi", "NVIDIA's program")
	flags.StringVar(&o.DriverRoot, "driver-root", "/", "where NVIDIA's driver is installed")
	flags.StringVar(&o.Sysfs, "sysfs", "/sys", "where the kernel says what is on the PCI bus")
	flags.StringVar(&o.Proc, "proc-root", "/", "the folder that has proc with what NVIDIA's kernel driver says of MIG")
	flags.StringVar(&report, "report", "", "a folder that the report is written to as well, as JSON and as markdown")
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON instead of markdown")
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return codePassed
	}
	fmt.Fprintf(stderr, "ladder-hardware: %v\n", err)
	if failed := new(failure); errors.As(err, &failed) {
		return failed.code
	}
	return codeUsage
}

// errNotPassed ends the program after a report that says why.
var errNotPassed = errors.New("the check has not passed")

func check(ctx context.Context, o hardware.Options, folder string, asJSON bool, out io.Writer) error {
	// First, since what is built below takes minutes.
	if _, err := hardware.Present(o); errors.Is(err, hardware.ErrNoGPU) {
		return &failure{codeNoGPU, err}
	} else if err != nil {
		return &failure{codeFailed, err}
	}
	if err := programs(ctx, &o); err != nil {
		return &failure{codeFailed, err}
	}
	report, err := hardware.Run(ctx, o)
	if err != nil {
		return &failure{codeFailed, err}
	}
	text := []byte(report.Markdown())
	if asJSON {
		if text, err = report.JSON(); err != nil {
			return &failure{codeFailed, err}
		}
	}
	if _, err := out.Write(text); err != nil {
		return &failure{codeFailed, err}
	}
	if folder != "" {
		paths, err := report.Write(folder)
		if err != nil {
			return &failure{codeFailed, err}
		}
		for _, path := range paths {
			fmt.Fprintln(o.Progress, "wrote", path)
		}
	}
	if !report.Passed {
		return &failure{codeFailed, errNotPassed}
	}
	return nil
}

// programs builds what was not given.
func programs(ctx context.Context, o *hardware.Options) error {
	if o.Assets == "" {
		set, err := binaries.Ensure(ctx, o.Progress, binaries.Etcd, binaries.APIServer)
		if err != nil {
			return fmt.Errorf("building an API server, %w", err)
		}
		o.Assets = set.Dir
	}
	if o.Driver == "" {
		set, err := binaries.Ensure(ctx, o.Progress, binaries.LadderNVMLDriver)
		if err != nil {
			return fmt.Errorf("building the driver, %w", err)
		}
		o.Driver = set.Path(binaries.LadderNVMLDriver)
	}
	return nil
}
