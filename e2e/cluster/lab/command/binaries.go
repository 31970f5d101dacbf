package command

import (
	"encoding/json"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/lab"
)

func newBinaries() *cobra.Command {
	var out output
	var onlyDir bool
	cmd := &cobra.Command{
		Use:   "binaries [PROGRAM...]",
		Short: "Build the programs that a lab is made of",
		Long: `Build those programs that are missing, and print where they lie. Without
arguments: what a lab runs. Known programs: ` + fmt.Sprint(binaries.Names()),
		Example:           `  export KUBEBUILDER_ASSETS=$(ladder-lab binaries --dir etcd kube-apiserver kubectl)`,
		ValidArgsFunction: cobra.FixedCompletions(binaries.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = lab.Programs(lab.Options{})
			}
			for _, name := range args {
				if !slices.Contains(binaries.Names(), name) {
					return usage(fmt.Errorf("program %q is not known; known are %v", name, binaries.Names()))
				}
			}
			set, err := binaries.Ensure(ctx, cmd.ErrOrStderr(), args...)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			switch {
			case onlyDir:
				_, err = fmt.Fprintln(w, set.Dir)
				return err
			case asJSON:
				paths := map[string]string{}
				for _, name := range set.Names() {
					paths[name] = set.Path(name)
				}
				encoder := json.NewEncoder(w)
				encoder.SetIndent("", "  ")
				return encoder.Encode(map[string]any{"dir": set.Dir, "programs": paths})
			}
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, name := range set.Names() {
				fmt.Fprintf(table, "%s\t%s\n", name, set.Path(name))
			}
			return table.Flush()
		},
	}
	out.register(cmd)
	cmd.Flags().BoolVar(&onlyDir, "dir", false, "print only a folder that holds them all by their names")
	return cmd
}
