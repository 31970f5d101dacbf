package decision

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/tools/internal/command"
)

// allExamples makes the engine name every device.
const allExamples = -1

// List is what `ladder decide` prints in JSON and YAML.
type List struct {
	Decisions []*decide.Decision `json:"decisions"`
	// Gated are the Pods that were not decided, since they stand at a gate.
	Gated []Gated `json:"gated,omitempty"`
}

// decideFlags are the flags of decide.
type decideFlags struct {
	files    command.Files
	format   command.Format
	now      string
	bundle   string
	examples int
	all      bool
}

// NewDecideCommand returns `ladder decide`.
func NewDecideCommand(s command.Streams) *cobra.Command {
	var f decideFlags
	cmd := &cobra.Command{
		Use:   "decide -f FILE|DIR|-",
		Short: "Decide on files which Pod gets which devices",
		Long: `Decide reads Kubernetes objects, takes the Pods that wait for a node and ask
for devices in order of priority (higher first), creation, namespace and name,
and decides them one after another. No cluster is needed or changed.

The same input gives the same bytes, in whatever order its documents stand. A
Pod without a creationTimestamp counts as created at the evaluation time. A Pod
at a scheduling gate, such as that of its tenant, is named and not decided, as
no scheduler looks at it.

A policy that was edited in a dump of a cluster is tried: it counts as the
revision that ladder-controller would make of it next, and the Pods that wait
with the one that was active or newest are decided by that, as those will be that
are made in their place. A warning says so, and each answer names the revision.
The dump has to hold the policyrevisions, and spec.activeRevision must not name
another one.

A Pod of a cluster, one with a UID, that names a policy, revision or claim which
is not there waits with the class PolicyInvalid or ClaimGone; in a Pod that was
written by hand that is bad input.

Exit code 0: every Pod got its devices, or none waits; 3: some did not, or stand
at a gate; 2: bad input.`,
		Example: `  # What would the cluster decide now?
  kubectl get nodes,namespaces,pods,resourceslices,devicetaintrules,deviceclasses,resourceclaims,acceleratorpolicies,policyrevisions,tenantquotas -A -o yaml | {{ladder}} decide -f -

  # The same an hour later, with every device in the evidence, for a program
  {{ladder}} decide -f cluster.yaml --now 2026-11-01T01:00:00Z --all -o json

  # Keep what was decided on, and decide it again elsewhere
  {{ladder}} decide -f fleet/ -f pods.yaml --bundle run.jsonl
  {{ladder}} replay run.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), s) },
	}
	f.files.Flags(cmd)
	f.format.Flag(cmd)
	cmd.Flags().StringVar(&f.now, "now", "", "evaluation time in RFC 3339 (default: the newest time in the input)")
	cmd.Flags().StringVar(&f.bundle, "bundle", "", "also write input and decisions to this file, for replay and explain")
	cmd.Flags().IntVar(&f.examples, "examples", 3, "how many devices to name for each reason")
	cmd.Flags().BoolVar(&f.all, "all", false, "name every device")
	cmd.MarkFlagsMutuallyExclusive("examples", "all")
	return cmd
}

func (f *decideFlags) run(ctx context.Context, s command.Streams) (err error) {
	settings, err := f.settings()
	if err != nil {
		return command.BadInput(err)
	}
	set, err := f.files.Read(ctx, s)
	if err != nil {
		return err
	}
	settings.Warn = s.Warn
	var bundle *bundleFile
	if f.bundle != "" {
		if bundle, err = createBundle(f.bundle); err != nil {
			return command.Failed(err)
		}
		defer bundle.discard()
		settings.Journal = bundle
	}
	decisions, err := Run(ctx, set, settings)
	if err != nil {
		return command.Failed(err)
	}
	if bundle != nil {
		if err := bundle.keep(); err != nil {
			return command.Failed(err)
		}
	}
	held := gated(set)
	if len(decisions)+len(held) == 0 {
		s.Warn("no Pod of the input waits for devices: none is without a node and has the label %s or resourceClaims", v1alpha1.LabelPolicy)
	}
	if err := f.format.Write(s.Out, List{Decisions: decisions, Gated: held}, func(w io.Writer) error {
		p := printer{Streams: s}
		for _, d := range decisions {
			p.short(d)
		}
		for _, g := range held {
			p.gated(g)
		}
		p.line("%s", summary(decisions, held))
		return p.flush(w)
	}); err != nil {
		return command.Failed(fmt.Errorf("printing decisions, %w", err))
	}
	if tally(decisions)[v1alpha1.OutcomeAllocated] < len(decisions)+len(held) {
		return &command.Exit{Code: command.CodeNotAllocated}
	}
	return nil
}

func (f *decideFlags) settings() (Settings, error) {
	if len(f.files.Paths) == 0 {
		return Settings{}, fmt.Errorf("decide needs -f FILE, DIR or -")
	}
	s := Settings{Examples: f.examples}
	if f.all {
		s.Examples = allExamples
	} else if err := checkExamples(f.examples); err != nil {
		return s, err
	}
	var err error
	s.Now, err = parseNow(f.now)
	return s, err
}

func checkExamples(n int) error {
	if n < 1 {
		return fmt.Errorf("--examples %d is below 1; use --all for every device", n)
	}
	return nil
}

// parseNow reads --now; empty gives the zero time.
func parseNow(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("--now %q is no time in RFC 3339; write it like 2026-11-01T00:00:00Z", text)
	}
	return t, nil
}

// bundleFile is written beside its place and moved there when it is whole.
type bundleFile struct {
	*os.File
	path string
}

func createBundle(path string) (*bundleFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("creating the bundle, %w", err)
	}
	return &bundleFile{File: f, path: path}, nil
}

func (b *bundleFile) keep() error {
	if err := b.Chmod(0o644); err != nil {
		return fmt.Errorf("writing the bundle, %w", err)
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("writing the bundle, %w", err)
	}
	if err := os.Rename(b.Name(), b.path); err != nil {
		return fmt.Errorf("writing the bundle, %w", err)
	}
	return nil
}

// discard removes what was not kept.
func (b *bundleFile) discard() {
	_ = b.Close()
	_ = os.Remove(b.Name())
}
