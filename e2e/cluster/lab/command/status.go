package command

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/lab"
)

func newStatus() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell which labs run, and how they are",
		Long: `Tell which labs of this user run, with their components. Exit code 3 if there
is none, or one of them is not running.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			memory, err := lab.OpenMemory()
			if err != nil {
				return err
			}
			states, err := memory.List()
			if err != nil {
				return err
			}
			running := len(states) > 0
			for i := range states {
				check(&states[i])
				running = running && states[i].Phase == lab.PhaseRunning
			}
			if err := printStates(cmd.OutOrStdout(), states, asJSON, time.Now()); err != nil {
				return err
			}
			if !running {
				return &exitError{code: ExitNotRunning}
			}
			return nil
		},
	}
	out.register(cmd)
	return cmd
}

// check corrects a state whose keeper is gone without saying so.
func check(s *lab.State) {
	if s.Alive() || s.Phase == lab.PhaseFailed {
		return
	}
	s.Phase, s.Reason = lab.PhaseFailed, fmt.Sprintf("process %d, which kept it, is gone; ladder-lab down cleans up", s.Holder.PID)
	for i := range s.Parts {
		s.Parts[i].PID = 0
	}
}

func printStates(w io.Writer, states []lab.State, asJSON bool, now time.Time) error {
	if asJSON {
		if states == nil {
			states = []lab.State{}
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string]any{"labs": states})
	}
	if len(states) == 0 {
		_, err := fmt.Fprintln(w, "no lab is there")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range states {
		fmt.Fprintf(table, "lab %s\t%s\tfor %s\n", s.Name, s.Phase, now.Sub(s.Started).Round(time.Second))
		if s.Reason != "" {
			fmt.Fprintf(table, "  reason\t%s\n", s.Reason)
		}
		fmt.Fprintf(table, "  fleet\t%d nodes, %d devices\n  scheduler\t%s\n", s.Nodes, s.Devices, s.Scheduler)
		for _, field := range [][2]string{{"kubeconfig", s.Kubeconfig}, {"journal", s.Journal}, {"logs", s.Logs}} {
			if field[1] != "" {
				fmt.Fprintf(table, "  %s\t%s\n", field[0], field[1])
			}
		}
		for _, p := range s.Parts {
			if p.PID == 0 {
				fmt.Fprintf(table, "  %s\tdown\n", p.Name)
				continue
			}
			fmt.Fprintf(table, "  %s\tprocess %d\n", p.Name, p.PID)
		}
	}
	return table.Flush()
}
