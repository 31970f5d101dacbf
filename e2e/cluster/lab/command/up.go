package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/policies/fleet"
)

// defaultFleet is used where no fleet file is given: one small node of each of
// the two models that the first example policy names.
func defaultFleet() *fleet.Fleet {
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 8},
		fleet.Group{Name: "a100", Nodes: 1, Board: "A100-SXM4-80GB", GPUs: 8},
	)
}

// upOptions are the flags of up.
type upOptions struct {
	name, fleet, scheduler, kubeconfig string
	detach, noController               bool
}

func newUp() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a lab and keep it until Ctrl-C",
		Long: `Start a lab. Programs that are missing are built first, which takes minutes
on the first run. The lab runs until Ctrl-C, or, with --detach, in the
background until ladder-lab down. When a component crashes, the lab goes down
and its logs are kept.`,
		Example: `  ladder-lab up --fleet fleet.yaml
  ladder-lab up --fleet nodes.csv --scheduler stock --detach --kubeconfig lab.kubeconfig`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			opts, err := o.complete()
			if err != nil {
				return err
			}
			memory, err := lab.OpenMemory()
			if err != nil {
				return err
			}
			if o.detach {
				return detach(ctx, memory, o, cmd.ErrOrStderr(), cmd.OutOrStdout())
			}
			return hold(ctx, memory, o, opts, cmd.ErrOrStderr(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "default", "name of the lab, where several run")
	flags.StringVarP(&o.fleet, "fleet", "f", "", "fleet file, or a node list in CSV (default: one node with 8 H100 and one with 8 A100)")
	flags.StringVar(&o.scheduler, "scheduler", string(lab.SchedulerLadder), "ladder, ladder-default, stock, stock-configured or none")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "write the kubeconfig to this file, too, which must not exist; it is removed with the lab")
	flags.BoolVarP(&o.detach, "detach", "d", false, "return when the lab is up and leave it running")
	flags.BoolVar(&o.noController, "no-controller", false, "leave ladder-controller out")
	_ = cmd.MarkFlagFilename("fleet", "yaml", "yml", "csv")
	_ = cmd.RegisterFlagCompletionFunc("scheduler", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var words []string
		for _, s := range lab.Schedulers() {
			words = append(words, string(s))
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// complete turns the flags into options and refuses what can't work.
func (o *upOptions) complete() (lab.Options, error) {
	opts := lab.Options{Name: o.name, Fleet: defaultFleet(), WithoutController: o.noController}
	var err error
	if opts.Scheduler, err = lab.ParseScheduler(o.scheduler); err != nil {
		return opts, usage(err)
	}
	if o.fleet != "" {
		if opts.Fleet, err = fleet.ReadFile(o.fleet); err != nil {
			return opts, usage(err)
		}
	}
	if o.kubeconfig != "" {
		if _, err := os.Lstat(o.kubeconfig); !errors.Is(err, fs.ErrNotExist) {
			return opts, usage(fmt.Errorf("writing the kubeconfig to %s, it exists or can't be looked at", o.kubeconfig))
		}
	}
	return opts, nil
}

// hold runs a lab until the context is done or the lab fails.
func hold(ctx context.Context, memory *lab.Memory, o upOptions, opts lab.Options, stderr, stdout io.Writer) (err error) {
	state := lab.State{
		Name: o.name, Phase: lab.PhaseStarting, Holder: process.Self(), Scheduler: opts.Scheduler,
		Nodes: opts.Fleet.NodeCount(), Devices: opts.Fleet.DeviceCount(), Started: time.Now().UTC().Round(time.Millisecond),
	}
	if err := remember(memory, state, stderr); err != nil {
		return err
	}
	detached := os.Getenv(envDetached) != ""
	defer func() { err = finish(memory, state, detached, err) }()

	opts.Progress = stderr
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		if downErr := l.Down(context.WithoutCancel(ctx)); downErr != nil {
			err = errors.Join(err, downErr)
		}
	}()
	state = l.State()
	if o.kubeconfig != "" {
		if err := copyNew(state.Kubeconfig, o.kubeconfig); err != nil {
			return err
		}
		state.Copy = o.kubeconfig
	}
	if err := memory.Update(state); err != nil {
		return err
	}
	if !detached {
		tellUse(stdout, state)
		fmt.Fprintln(stdout, "Ctrl-C ends the lab.")
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(stderr, "ending the lab")
		return nil
	case err := <-l.Failed():
		return err
	}
}

// remember writes the state of a new lab. One that ended without being able to
// clean up after itself is removed first.
func remember(memory *lab.Memory, state lab.State, stderr io.Writer) error {
	err := memory.Create(state)
	if !errors.Is(err, lab.ErrExists) {
		return err
	}
	old, getErr := memory.Get(state.Name)
	if errors.Is(getErr, fs.ErrNotExist) {
		return memory.Create(state)
	}
	if getErr != nil {
		return getErr
	}
	if old.Alive() {
		return fmt.Errorf("%w: lab %q is kept by process %d; end it with ladder-lab down --name %s, or choose another --name",
			err, old.Name, old.Holder.PID, old.Name)
	}
	fmt.Fprintf(stderr, "removing what lab %q left behind\n", old.Name)
	old.Copy = "" // it may be somebody else's file by now
	if err := memory.Forget(*old); err != nil {
		return err
	}
	return memory.Create(state)
}

// finish forgets the lab. One in the background that failed is remembered as
// such, since nobody was there to read why.
func finish(memory *lab.Memory, state lab.State, detached bool, err error) error {
	state.Dir = "" // gone, or its logs are kept
	if err == nil || !detached {
		if forgetErr := memory.Forget(state); forgetErr != nil {
			return errors.Join(err, forgetErr)
		}
		return err
	}
	state.Phase, state.Reason, state.Parts = lab.PhaseFailed, err.Error(), nil
	state.Kubeconfig = "" // gone with its API server; logs and journal are kept
	if state.Copy != "" {
		err = errors.Join(err, os.Remove(state.Copy))
		state.Copy = ""
	}
	return errors.Join(err, memory.Update(state))
}

func tellUse(w io.Writer, s lab.State) {
	kubeconfig := s.Kubeconfig
	if s.Copy != "" {
		kubeconfig = s.Copy
	}
	if whole, err := filepath.Abs(kubeconfig); err == nil {
		kubeconfig = whole
	}
	fmt.Fprintf(w, "export KUBECONFIG=%s\n", kubeconfig)
	fmt.Fprintln(w, "then for example: kubectl get nodes,resourceslices")
}

// copyNew copies a private file to a place that must be free.
func copyNew(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying the kubeconfig, %w", err)
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("copying the kubeconfig, %w", err)
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("copying the kubeconfig, %w", err)
	}
	return nil
}
