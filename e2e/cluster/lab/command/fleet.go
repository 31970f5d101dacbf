package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/fleet"
)

// printer prints what a converter made.
type printer func(w io.Writer) error

func newConvert() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert",
		Short: "Turn public traces into fleets and workloads",
	}
	var limit int
	pods := conversion("openb-pods", "Pods, claims and policies from a Pod list of Alibaba's trace of 2023",
		func(r io.Reader) (printer, error) {
			workload, err := fleet.OpenBPods(r, limit)
			if err != nil {
				return nil, err
			}
			return workload.WriteManifests, nil
		})
	pods.Flags().IntVar(&limit, "limit", 0, "take only the first Pods that ask for GPUs (0: all)")
	cmd.AddCommand(
		conversion("openb-nodes", "A fleet file from the node list of Alibaba's trace of 2023",
			printFleet(fleet.FromOpenBNodes)),
		pods,
		conversion("nodes", "A fleet file from the node list of Alibaba's trace of 2026",
			printFleet(fleet.FromNodesCSV)),
	)
	return cmd
}

func printFleet(read func(io.Reader) (*fleet.Fleet, error)) func(io.Reader) (printer, error) {
	return func(r io.Reader) (printer, error) {
		f, err := read(r)
		if err != nil {
			return nil, err
		}
		return f.Write, nil
	}
}

func conversion(name, short string, convert func(io.Reader) (printer, error)) *cobra.Command {
	return &cobra.Command{
		Use:   name + " CSV",
		Short: short,
		Long:  short + `. The file "-" is standard input; the result goes to standard output.`,
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usage(fmt.Errorf("opening the list, %w", err))
				}
				defer f.Close()
				in = f
			}
			printResult, err := convert(in)
			if err != nil {
				return usage(fmt.Errorf("converting %s, %w", args[0], err))
			}
			return writeWhole(cmd.OutOrStdout(), printResult)
		},
	}
}

func newRender() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "render --fleet FILE",
		Short:   "Print the nodes and slices of a fleet as manifests",
		Long:    `Print the Nodes and ResourceSlices of a fleet as YAML, for ladder decide and kubectl apply.`,
		Example: `  ladder-lab render --fleet fleet.yaml > cluster.yaml && ladder decide -f cluster.yaml -f pods.yaml`,
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage(errors.New("--fleet is needed"))
			}
			f, err := fleet.ReadFile(file)
			if err != nil {
				return usage(err)
			}
			return writeWhole(cmd.OutOrStdout(), f.WriteManifests)
		},
	}
	cmd.Flags().StringVarP(&file, "fleet", "f", "", "fleet file, or a node list in CSV")
	_ = cmd.MarkFlagFilename("fleet", "yaml", "yml", "csv")
	return cmd
}

// writeWhole prints everything or nothing.
func writeWhole(w io.Writer, write func(io.Writer) error) error {
	var buf bytes.Buffer
	if err := write(&buf); err != nil {
		return fmt.Errorf("encoding the result, %w", err)
	}
	_, err := buf.WriteTo(w)
	return err
}
