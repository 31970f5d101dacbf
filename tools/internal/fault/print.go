package fault

// This file puts faults into words.

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/tools/internal/command"
)

// print says that a fault is in force.
func (f *shared) print(made fault.Fault) error {
	return command.Printed(f.format.Write(f.streams.Out, made, func(w io.Writer) error {
		words := []string{"fault " + made.ID + ":", string(made.Kind)}
		for _, part := range []string{made.Device, detail(made)} {
			if part != "" {
				words = append(words, part)
			}
		}
		_, err := fmt.Fprintln(w, strings.Join(words, " "))
		return err
	}))
}

// printAll prints a table below a heading, or that there is nothing in it.
func (f *shared) printAll(faults []fault.Fault, none, heading string) error {
	if faults == nil {
		faults = []fault.Fault{}
	}
	body := struct {
		Faults []fault.Fault `json:"faults"`
	}{faults}
	return command.Printed(f.format.Write(f.streams.Out, body, func(w io.Writer) error {
		if len(faults) == 0 {
			_, err := fmt.Fprintln(w, none)
			return err
		}
		if heading != "" {
			if _, err := fmt.Fprintln(w, heading); err != nil {
				return err
			}
		}
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tFAULT\tDEVICE\tDETAIL\tSINCE\tFIRED")
		for _, in := range faults {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\n", in.ID, in.Kind, dash(in.Device), dash(detail(in)), in.Since.UTC().Format(time.RFC3339), in.Fired)
		}
		return table.Flush()
	}))
}

// detail is what a fault has beside its kind and device.
func detail(in fault.Fault) string {
	switch in.Kind {
	case fault.XID:
		return fmt.Sprint(in.Code)
	case fault.SlowPrepare:
		return "by " + time.Duration(in.Duration).String()
	case fault.FailPrepare:
		if in.Times > 0 {
			return fmt.Sprintf("%d times: %s", in.Times, in.Message)
		}
		return "always: " + in.Message
	case fault.CrashAt:
		if in.Once {
			return string(in.Point) + ", once"
		}
		return string(in.Point) + ", each time"
	}
	return ""
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
