// Package doctor is `ladder doctor`: it looks a cluster over through its API
// and says what keeps Ladder from working there, or from keeping its promises.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"gpuladder.dev/ladder/tools/internal/cluster"
	"gpuladder.dev/ladder/tools/internal/command"
)

// Severity says how bad a finding is.
type Severity string

// Severities.
const (
	// Error: something does not work, or a promise does not hold.
	Error Severity = "error"
	// Warning: something is probably not as it was meant.
	Warning Severity = "warning"
	// Unknown: what a check needs could not be read.
	Unknown Severity = "unknown"
)

// Finding is one thing that a check found.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is what it is about, as "Kind name" or "Kind namespace/name".
	Object string `json:"object,omitempty"`
	// Summary says what was found, Meaning what follows from it, Action what to
	// do about it.
	Summary string `json:"summary"`
	Meaning string `json:"meaning,omitempty"`
	Action  string `json:"action,omitempty"`
}

// Report is what doctor prints. Checks are in the order in which they ran.
type Report struct {
	Server   string    `json:"server"`
	Checks   []string  `json:"checks"`
	Findings []Finding `json:"findings"`
}

// NewCommand returns `ladder doctor`.
func NewCommand(s command.Streams) *cobra.Command {
	var flags cluster.Flags
	var format command.Format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look a cluster over: what keeps Ladder from its promises there",
		Long: `Doctor reads a cluster and prints what it found, with what it means and what to
do. It changes nothing: what it creates to see which fields the API server keeps
is created as a dry run.

It looks at the server's version and APIs, feature gates as far as they can be
told, the kinds and whether they are this version's, the components and their
leases, two schedulers over the same devices and the guard between them, GPUs
that a node offers twice, device classes and taint rules that reach further than
they seem to, policies that are not ready, namespaces of two tenants, and
migrations, which nothing acts on yet. Leases, workloads and Pods of Ladder are
those of the namespaces that its admission policies name: anybody may give
objects of his own the same names.

Exit codes: 0 nothing bad, 1 findings of severity error, 2 something could not be
checked.`,
		Example: `  {{ladder}} doctor
  {{ladder}} doctor --context prod -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := flags.Config()
			if err != nil {
				return command.BadInput(err)
			}
			d, err := dynamic.NewForConfig(config)
			if err != nil {
				return command.BadInput(fmt.Errorf("connecting to the cluster, %w", err))
			}
			served, err := discovery.NewDiscoveryClientForConfig(config)
			if err != nil {
				return command.BadInput(fmt.Errorf("connecting to the cluster, %w", err))
			}
			report, err := Examine(cmd.Context(), d, served, time.Now())
			if err != nil {
				return command.BadInput(err)
			}
			if err := format.Write(s.Out, report, func(w io.Writer) error { return printText(w, s, report) }); err != nil {
				return command.Printed(err)
			}
			return report.exit()
		},
	}
	flags.Flags(cmd)
	format.Flag(cmd)
	return cmd
}

// check is one thing to look at.
type check struct {
	name string
	run  func(*facts) []Finding
}

// checks are all of them, in the order in which they are told.
func checks() []check {
	return []check{
		{"version", checkVersion},
		{"apis", checkAPIs},
		{"gates", checkGates},
		{"kinds", checkKinds},
		{"components", checkComponents},
		{"driver", checkDriver},
		{"schedulers", checkSchedulers},
		{"classes", checkClasses},
		{"advertisement", checkAdvertisement},
		{"taint-rules", checkTaintRules},
		{"policies", checkPolicies},
		{"quotas", checkQuotas},
		{"migrations", checkMigrations},
	}
}

// Examine reads a cluster and makes every check. now is when. An error means
// that the API server can't be reached at all.
func Examine(ctx context.Context, d dynamic.Interface, served discovery.DiscoveryInterface, now time.Time) (*Report, error) {
	f, err := gather(ctx, d, served, now)
	if err != nil {
		return nil, err
	}
	report := &Report{Server: f.version.GitVersion, Findings: []Finding{}}
	for _, c := range checks() {
		report.Checks = append(report.Checks, c.name)
		for _, finding := range c.run(f) {
			finding.Check = c.name
			report.Findings = append(report.Findings, finding)
		}
	}
	for _, u := range f.unread {
		report.Findings = append(report.Findings, Finding{
			Check: "access", Severity: Unknown, Summary: fmt.Sprintf("%s could not be read: %v", u.what, u.err),
			Meaning: "What depends on it was not checked.", Action: "Run doctor as somebody who may list it.",
		})
	}
	return report, nil
}

// exit is the command's end: findings of severity error before what could not
// be checked.
func (r *Report) exit() error {
	has := func(s Severity) bool {
		return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == s })
	}
	switch {
	case has(Error):
		return &command.Exit{Code: command.CodeFailed}
	case has(Unknown):
		return &command.Exit{Code: command.CodeBadInput, Err: errors.New("not everything could be checked")}
	}
	return nil
}

// printText prints the findings, the worst first, and then which checks found
// nothing.
func printText(w io.Writer, s command.Streams, r *Report) error {
	styles := map[Severity]command.Style{Error: command.Bad, Warning: command.Notice, Unknown: command.Faint}
	var b strings.Builder
	for _, severity := range []Severity{Error, Warning, Unknown} {
		for _, f := range r.Findings {
			if f.Severity != severity {
				continue
			}
			subject := f.Check
			if f.Object != "" {
				subject += ", " + f.Object
			}
			fmt.Fprintf(&b, "%s  %s: %s\n", s.Paint(styles[severity], fmt.Sprintf("%-7s", strings.ToUpper(string(severity)))), s.Paint(command.Strong, subject), f.Summary)
			if f.Meaning != "" {
				fmt.Fprintf(&b, "         %s\n", f.Meaning)
			}
			if f.Action != "" {
				fmt.Fprintf(&b, "         To do: %s\n", f.Action)
			}
		}
	}
	var fine []string
	for _, name := range r.Checks {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == name }) {
			fine = append(fine, name)
		}
	}
	if len(fine) > 0 {
		fmt.Fprintf(&b, "%s  %s\n", s.Paint(command.Good, "FINE   "), strings.Join(fine, ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
