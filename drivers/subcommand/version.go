package subcommand

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/buildinfo"
)

// Version gives a program the flag --version and, where it has commands, the
// command version, which prints the same and knows JSON. It is called when all
// others are there. An error about flags goes through wrap, which may give it an
// exit code.
func Version(root *cobra.Command, wrap func(error) error) {
	info := buildinfo.Read()
	root.Version = info.Text(root.Name())
	root.SetVersionTemplate("{{.Version}}")
	// cobra's own flag would take -v, which is the verbosity of logs elsewhere.
	root.Flags().Bool("version", false, "print the version of the program, and end")
	if !root.HasSubCommands() {
		return
	}
	format := "text"
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return wrap(err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			switch format {
			case "text":
				_, err = fmt.Fprint(cmd.OutOrStdout(), root.Version)
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(info)
			default:
				err = wrap(fmt.Errorf("output format %q is not known; text and json are", format))
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "output format: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(cmd)
}
