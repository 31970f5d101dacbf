package command

// What the commands that prove something of the scheduler in a lab share: the
// flags of a report, how results are told, and a lab with clients.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/replay"
)

// proof is what each of them does.
type proof struct {
	out output
	// report is a Markdown file, beside what is to be said in it about other
	// work on the machine.
	report, beside string
	// check makes the command fail where something does not hold.
	check bool
}

func (p *proof) register(cmd *cobra.Command, check string) {
	p.out.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&p.report, "report", "", "write the report to this Markdown file, too")
	flags.StringVar(&p.beside, "beside", "", "a sentence for the report about what else ran on the machine")
	flags.BoolVar(&p.check, "check", true, check)
	_ = cmd.MarkFlagFilename("report", "md")
}

// result is what was measured, how it is reported, and what does not hold of it.
type result struct {
	value  any
	report func(w io.Writer) error
	err    error
}

// run measures until an interrupt, and tells the result. What was measured
// before an error is told all the same.
func (p *proof) run(cmd *cobra.Command, measure func(ctx context.Context) (*result, error)) error {
	asJSON, err := p.out.json()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	r, err := measure(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := r.report(&text); err != nil {
		return err
	}
	if err := tell(cmd, p.report, &text, r.value, asJSON); err != nil || !p.check {
		return err
	}
	return r.err
}

// tell writes the report's text to its file, where one is named, and to stdout
// that or the value as JSON.
func tell(cmd *cobra.Command, file string, text *bytes.Buffer, value any, asJSON bool) error {
	if file != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("writing the report, %w", err)
		}
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing the report, %w", err)
		}
	}
	if asJSON {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	_, err := text.WriteTo(cmd.OutOrStdout())
	return err
}

// typedClient is a client of built-in kinds that costs both sides little.
func typedClient(l *lab.Lab) (kubernetes.Interface, error) {
	config := unlimited(l)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return c, nil
}

// unlimited is the administrator's configuration without a limit of its own.
func unlimited(l *lab.Lab) *rest.Config {
	config := l.RESTConfig()
	config.QPS, config.Burst = -1, -1
	return config
}

// inLab starts a lab, has something done in it and ends it.
func inLab(ctx context.Context, opts lab.Options, do func(ctx context.Context, l *lab.Lab, c client.Client, kube kubernetes.Interface) error) (err error) {
	l, c, err := upWithClient(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = endLab(ctx, l, err) }()
	kube, err := typedClient(l)
	if err != nil {
		return err
	}
	return do(ctx, l, c, kube)
}

// journalSettles is longer than what the scheduler decided waits for being written.
const journalSettles = 2 * time.Second

// decideAgain ends the lab's scheduler, which is not started again, and replays
// its journals.
func decideAgain(ctx context.Context, l *lab.Lab, progress io.Writer) (*replay.Result, error) {
	timer := time.NewTimer(journalSettles)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := l.Stop(ctx, lab.LadderScheduler); err != nil {
		return nil, fmt.Errorf("replaying the journals, %w", err)
	}
	fmt.Fprintln(progress, "deciding again what the journals hold")
	r, err := replay.Files(ctx, l.Journal())
	if err != nil {
		return nil, fmt.Errorf("replaying the journals, %w", err)
	}
	fmt.Fprintln(progress, r)
	return r, nil
}
