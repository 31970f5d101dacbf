package exit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestExecute(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		err   error
		want  int
		tells string
	}{
		"done":         {want: OK},
		"failed":       {err: fmt.Errorf("serving, %w", &Error{errors.New("it went away")}), want: Failed, tells: "some: serving, it went away\n"},
		"bad value":    {err: errors.New("--node is empty"), want: Usage, tells: "some: --node is empty\n"},
		"unknown flag": {args: []string{"--fast"}, want: Usage, tells: "some: unknown flag: --fast\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := &cobra.Command{
				Use: "some [flags]", SilenceErrors: true, SilenceUsage: true,
				RunE: func(*cobra.Command, []string) error { return test.err },
			}
			cmd.SetArgs(append([]string{}, test.args...))
			var stderr strings.Builder
			if code := Execute(t.Context(), cmd, &stderr); code != test.want || stderr.String() != test.tells {
				t.Errorf("got %d and %q, want %d and %q", code, stderr.String(), test.want, test.tells)
			}
		})
	}
}
