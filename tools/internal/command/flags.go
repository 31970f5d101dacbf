package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/manifest"
)

// Format is how a result is printed: the flag -o.
type Format string

// Formats.
const (
	Text Format = "text"
	JSON Format = "json"
	YAML Format = "yaml"
)

// String, Set and Type make it a flag.
func (f *Format) String() string { return string(*f) }

// Set takes one of the formats.
func (f *Format) Set(v string) error {
	switch Format(v) {
	case Text, JSON, YAML:
		*f = Format(v)
		return nil
	}
	return errors.New("must be text, json or yaml")
}

// Type names the flag's values in help texts.
func (f *Format) Type() string { return "text|json|yaml" }

// Flag adds -o to a command.
func (f *Format) Flag(cmd *cobra.Command) {
	if *f == "" {
		*f = Text
	}
	cmd.Flags().VarP(f, "output", "o", "how to print the result")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// Write prints v as JSON or YAML, or calls text. The bytes depend on v alone.
func (f Format) Write(out io.Writer, v any, text func(io.Writer) error) error {
	switch f {
	case JSON:
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case YAML:
		raw, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = out.Write(raw)
		return err
	}
	return text(out)
}

// Files are what -f, -R and --max-input say.
type Files struct {
	Paths     []string
	Recursive bool
	MaxInput  string
}

// Flags adds -f, -R and --max-input to a command.
func (f *Files) Flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.Paths, "filename", "f", nil, "file or folder of Kubernetes YAML or JSON, or - for stdin; may be repeated")
	f.LimitFlags(cmd)
}

// LimitFlags adds -R and --max-input to a command that takes files as arguments.
func (f *Files) LimitFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.Recursive, "recursive", "R", false, "also read the folders inside a folder")
	cmd.Flags().StringVar(&f.MaxInput, "max-input", "32Mi", "most bytes to read in all")
}

// Read reads the files and prints the warnings. Errors end the command with 2.
func (f *Files) Read(ctx context.Context, s Streams) (*manifest.Set, error) {
	limit, err := resource.ParseQuantity(f.MaxInput)
	if err != nil || limit.Value() <= 0 {
		return nil, BadInput(fmt.Errorf("--max-input %q is no size; write it like 32Mi", f.MaxInput))
	}
	set, err := manifest.Read(ctx, f.Paths, manifest.Options{Stdin: s.In, Recursive: f.Recursive, MaxBytes: limit.Value()})
	if errors.Is(err, manifest.ErrTooLarge) {
		return nil, BadInput(fmt.Errorf("%w (--max-input)", err))
	}
	if err != nil {
		return nil, BadInput(err)
	}
	for _, w := range set.Warnings() {
		fmt.Fprintln(s.Err, s.warning()+w)
	}
	return set, nil
}

// Warn prints one line on stderr.
func (s Streams) Warn(format string, args ...any) {
	fmt.Fprintln(s.Err, s.warning()+fmt.Sprintf(format, args...))
}

func (s Streams) warning() string { return "warning: " }
