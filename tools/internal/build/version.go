// Package build says what this program was built from.
package build

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/tools/internal/command"
)

// Version is what `ladder version` prints.
type Version struct {
	// Version is the module's, "(devel)" for a build from a work tree.
	Version string `json:"version"`
	// Revision is the commit, empty where the build does not know it.
	Revision string `json:"revision,omitempty"`
	// Modified says that the work tree differed from the commit.
	Modified bool `json:"modified,omitempty"`
	// Time is the commit's, in RFC 3339.
	Time string `json:"time,omitempty"`
	// EngineVersion names the rules of the decision engine.
	EngineVersion string `json:"engineVersion"`
	Go            string `json:"go"`
	Platform      string `json:"platform"`
}

// read makes a Version of what the linker left in the program.
func read(info *debug.BuildInfo) Version {
	v := Version{
		Version: "(unknown)", EngineVersion: decide.EngineVersion,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "vcs.time":
			v.Time = s.Value
		}
	}
	return v
}

// NewVersionCommand returns `ladder version`.
func NewVersionCommand(s command.Streams) *cobra.Command {
	format := command.Text
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and of its decision engine",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v := read(info)
			return command.Printed(format.Write(s.Out, v, v.text))
		},
	}
	format.Flag(cmd)
	return cmd
}

func (v Version) text(w io.Writer) error {
	source := v.Revision
	if v.Modified {
		source += ", modified"
	}
	if source != "" {
		source = " (" + source + ")"
	}
	_, err := fmt.Fprintf(w, "ladder %s%s\ndecision engine %s\n%s %s\n", v.Version, source, v.EngineVersion, v.Go, v.Platform)
	return err
}
