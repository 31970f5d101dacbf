package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/demo"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func newDemo() *cobra.Command {
	var bundle string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on a lab of its own",
		Long: `Start a lab with a small mixed fleet, place a dozen Pods of two tenants,
explain three of the decisions, free a device and see it used again, decide the
scheduler's journal a second time, and end the lab.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return runDemo(ctx, bundle, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&bundle, "bundle", filepath.Join(".artifacts", "demo"), "folder that the journal is copied to")
	return cmd
}

func runDemo(ctx context.Context, bundle string, stdout, stderr io.Writer) (err error) {
	programs, err := binaries.Ensure(ctx, stderr, "ladder")
	if err != nil {
		return err
	}
	f, err := demo.Fleet()
	if err != nil {
		return err
	}
	start := time.Now()
	// The demo is about what the scheduler decides, also about Pods that wait,
	// which would wait at their tenant's gate instead.
	l, c, err := upWithClient(ctx, lab.Options{Name: "demo", Fleet: f, WithoutQuotaGate: true, Progress: stderr})
	if err != nil {
		return err
	}
	defer func() { err = endLab(ctx, l, err) }()
	err = demo.Run(ctx, demo.Cluster{
		Client:  c,
		Journal: l.Journal(),
		Ladder: func(ctx context.Context, args ...string) (string, int, error) {
			return runLadder(ctx, programs.Path("ladder"), l.Kubeconfig(), args)
		},
	}, demo.Options{BundleDir: bundle, Out: stdout})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\nDone in %.0f s, the lab's start included. 1 demo passed, 0 failed\n", time.Since(start).Seconds())
	return err
}

// runLadder runs the ladder CLI and returns its standard output and exit code.
func runLadder(ctx context.Context, program, kubeconfig string, args []string) (string, int, error) {
	var stdout, stderr bytes.Buffer
	x := exec.CommandContext(ctx, program, args...)
	x.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	x.Stdout, x.Stderr = &stdout, &stderr
	err := x.Run()
	exit := new(exec.ExitError)
	if errors.As(err, &exit) {
		return stdout.String() + stderr.String(), exit.ExitCode(), nil
	}
	return stdout.String(), 0, err
}

// upWithClient starts a lab and returns it with an administrator's client.
func upWithClient(ctx context.Context, opts lab.Options) (*lab.Lab, client.Client, error) {
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	c, err := newClient(unlimited(l))
	if err != nil {
		return nil, nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return l, c, nil
}

// newClient makes a client that knows Kubernetes' kinds and Ladder's. Its scheme is
// its own: client-go's may be in use.
func newClient(config *rest.Config) (client.WithWatch, error) {
	known := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: known})
	if err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return c, nil
}

// endLab takes the lab down. After an error its logs are kept, and a part that
// has crashed is told as the reason.
func endLab(ctx context.Context, l *lab.Lab, err error) error {
	if err != nil {
		l.KeepLogs()
		select {
		case crash := <-l.Failed():
			err = errors.Join(crash, err)
		default:
		}
	}
	return errors.Join(err, l.Down(context.WithoutCancel(ctx)))
}
