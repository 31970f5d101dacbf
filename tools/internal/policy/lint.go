package policy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/command"
)

// severity says how bad a finding is.
type severity string

const (
	severityError   severity = "error"
	severityWarning severity = "warning"
)

// finding is one thing that lint has to say.
type finding struct {
	File     string   `json:"file"`
	Document int      `json:"document"`
	Object   string   `json:"object"`
	Severity severity `json:"severity"`
	Field    string   `json:"field"`
	Message  string   `json:"message"`
}

func newLintCommand(s command.Streams) *cobra.Command {
	format := command.Text
	var files command.Files
	var strict bool
	cmd := &cobra.Command{
		Use:   "lint FILE|DIR|-...",
		Short: "Look for mistakes in policies",
		Long: `Lint prints every mistake of the first policy or quota that would be refused,
and warns of what is allowed and probably not meant: selectors that fail on a
device without an attribute, tiers that nothing reaches, waiting times in a
surprising order, tenants whose quota fits no tier.

Exit code 0: no mistake; 1: a mistake, or with --strict a warning; 2: a file
can't be read.`,
		Example: `  {{ladder}} policy lint my-policies/
  {{ladder}} policy lint h100-first.yaml --strict -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			files.Paths = paths
			findings, err := lint(cmd.Context(), files, s)
			if err != nil {
				return err
			}
			err = format.Write(s.Out, struct {
				Findings []finding `json:"findings"`
			}{findings}, func(w io.Writer) error { return printFindings(w, s, findings) })
			if err != nil {
				return command.Printed(err)
			}
			for _, f := range findings {
				if f.Severity == severityError || strict {
					return &command.Exit{Code: command.CodeFailed}
				}
			}
			return nil
		},
	}
	files.LimitFlags(cmd)
	format.Flag(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "end with 1 on warnings too")
	return cmd
}

func lint(ctx context.Context, files command.Files, s command.Streams) ([]finding, error) {
	set, err := files.Read(ctx, s)
	var wrong *manifest.Error
	if errors.As(err, &wrong) && len(wrong.All) > 0 {
		return mistakes(wrong), nil
	}
	if err != nil {
		return nil, err
	}
	findings := []finding{}
	for _, wrong := range set.Uncompiled() {
		findings = append(findings, mistakes(wrong)...)
	}
	found := 0
	for p, o := range manifest.All[*v1alpha1.AcceleratorPolicy](set) {
		found++
		at := func(sev severity, field, message string) {
			findings = append(findings, finding{
				File: o.Source.File, Document: o.Source.Document, Object: o.String(),
				Severity: sev, Field: field, Message: message,
			})
		}
		for _, w := range compile.Lint(&p.Spec) {
			at(severityWarning, w.Field, w.Message)
		}
		for _, w := range waits(&p.Spec) {
			at(severityWarning, w.Field, w.Message)
		}
		for _, w := range covered(&p.Spec) {
			at(severityWarning, w.Field, w.Message)
		}
		for q := range manifest.All[*v1alpha1.TenantQuota](set) {
			if w, ok := outOfQuota(&p.Spec, q); ok {
				at(severityWarning, w.Field, w.Message)
			}
		}
	}
	if found == 0 {
		s.Warn("there is no AcceleratorPolicy in the input")
	}
	return findings, nil
}

// mistakes are all that is wrong with an object that would be refused.
func mistakes(wrong *manifest.Error) []finding {
	findings := []finding{}
	for _, e := range wrong.All {
		msg := e.ErrorBody()
		if e.BadValue == nil && e.Detail != "" {
			msg = e.Detail
		}
		findings = append(findings, finding{
			File: wrong.File, Document: wrong.Document, Object: wrong.Object,
			Severity: severityError, Field: e.Field, Message: msg,
		})
	}
	return findings
}

func printFindings(w io.Writer, s command.Streams, findings []finding) error {
	for _, f := range findings {
		style := command.Notice
		if f.Severity == severityError {
			style = command.Bad
		}
		if _, err := fmt.Fprintf(w, "%s: document %d (%s): %s: %s: %s\n", f.File, f.Document, f.Object, s.Paint(style, string(f.Severity)), f.Field, f.Message); err != nil {
			return err
		}
	}
	if len(findings) > 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, s.Paint(command.Good, "nothing found"))
	return err
}
