package main

// This file holds the commands that need no cluster.

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/fleet"
)

func fleetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "fleet FLEET",
		Short:   "Print a fleet as a fleet file, with all defaults",
		Example: "  ladder-fake-driver fleet openb_node_list_gpu_node.csv > openb.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := fleet.ReadFile(args[0])
			if err != nil {
				return err
			}
			return printed(f.Write(cmd.OutOrStdout()))
		},
	}
}

func manifestsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "manifests FLEET",
		Short:   "Print the Nodes and ResourceSlices of a fleet as YAML documents",
		Example: "  ladder-fake-driver manifests fleet.yaml | ladder decide -f - -f pods.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := fleet.ReadFile(args[0])
			if err != nil {
				return err
			}
			return printed(f.WriteManifests(cmd.OutOrStdout()))
		},
	}
}

func workloadCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "workload PODS.csv",
		Short: "Print the Pods of a trace and their policies as YAML documents",
		Long: "Print the Pods of a trace that ask for GPUs, and an AcceleratorPolicy for each list of alternatives, as\n" +
			"YAML documents. The trace is a Pod list of alibaba/clusterdata, cluster-trace-gpu-v2023.",
		Example: "  ladder-fake-driver workload openb_pod_list_gpuspec33.csv --limit 500 > pods.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("opening pods, %w", err)
			}
			defer func() { _ = file.Close() }()
			workload, err := fleet.OpenBPods(file, limit)
			if err != nil {
				return fmt.Errorf("reading pods %s, %w", args[0], err)
			}
			return printed(workload.WriteManifests(cmd.OutOrStdout()))
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "how many Pods, from the first; 0 for all")
	return cmd
}

// printed is for output that could not be written.
func printed(err error) error {
	if err != nil {
		return &runtimeError{err}
	}
	return nil
}
