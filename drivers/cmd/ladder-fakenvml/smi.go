package main

// This file prints what nvidia-smi would.

import (
	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fakenvml"
)

func smiCommand() *cobra.Command {
	var at folder
	cmd := &cobra.Command{
		Use:   "smi",
		Short: "Print what nvidia-smi -q -x would, in part, labelled as a simulation",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := at.find()
			if err != nil {
				return err
			}
			said, err := (fakenvml.Control{Dir: dir}).SMI()
			if err == nil {
				_, err = cmd.OutOrStdout().Write(said)
			}
			if err != nil {
				return &exit.Error{Err: err}
			}
			return nil
		},
	}
	at.addFlags(cmd.Flags())
	return cmd
}
