// Package build is the command that says what this program was built from.
package build

import (
	"io"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/buildinfo"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/tools/internal/command"
)

// Version is what `ladder version` prints.
type Version struct {
	buildinfo.Info
	// EngineVersion names the rules of the decision engine.
	EngineVersion string `json:"engineVersion"`
}

// NewVersionCommand returns `ladder version`.
func NewVersionCommand(s command.Streams) *cobra.Command {
	format := command.Text
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and of its decision engine",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := Version{Info: buildinfo.Read(), EngineVersion: decide.EngineVersion}
			return command.Printed(format.Write(s.Out, v, v.text))
		},
	}
	format.Flag(cmd)
	return cmd
}

func (v Version) text(w io.Writer) error {
	_, err := io.WriteString(w, v.Text("ladder", "decision engine "+v.EngineVersion))
	return err
}
