package exit

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/buildinfo"
)

// tool is a program with a group in a group.
func tool() *cobra.Command {
	do := func(cmd *cobra.Command, _ []string) error { cmd.Print("done"); return nil }
	inner := &cobra.Command{Use: "inner", Short: "A group"}
	inner.AddCommand(&cobra.Command{Use: "leaf", Args: cobra.NoArgs, RunE: do})
	outer := &cobra.Command{Use: "outer", Short: "Another"}
	outer.AddCommand(inner, &cobra.Command{Use: "leaf", Args: cobra.NoArgs, RunE: do})
	root := &cobra.Command{Use: "tool", Short: "A tool", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(outer)
	return root
}

func execute(t *testing.T, cmd *cobra.Command, args string) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.SetArgs(strings.Fields(args))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	code = Execute(t.Context(), cmd, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestUnknownSubcommand: a word that is no command ends with 2 at every level,
// and names the word and where to look.
func TestUnknownSubcommand(t *testing.T) {
	for args, want := range map[string]string{
		"bogus":              `unknown command "bogus" for "tool"; see 'tool --help'`,
		"outer bogus":        `unknown command "bogus" for "tool outer"; see 'tool outer --help'`,
		"outer inner lef":    `unknown command "lef" for "tool outer inner"; did you mean leaf?; see 'tool outer inner --help'`,
		"outer inner leaf x": `unknown command "x" for "tool outer inner leaf"`,
		"completion bogus":   `unknown command "bogus" for "tool completion"; see 'tool completion --help'`,
		"help bogus":         `there is no command "bogus"; see 'tool --help'`,
		"help outer bogus":   `there is no command "outer bogus"; see 'tool --help'`,
	} {
		code, out, said := execute(t, tool(), args)
		if code != Usage || out != "" || said != "tool: "+want+"\n" {
			t.Errorf("%s: got %d, %q and %q, want %q", args, code, out, said, want)
		}
	}
}

// TestGroupsHelp: a group by itself still tells what it has.
func TestGroupsHelp(t *testing.T) {
	for args, want := range map[string]string{
		"": "outer", "outer": "inner", "outer inner": "leaf", "completion": "bash", "help": "outer", "help outer": "inner",
		"outer leaf": "", "completion bash": "tool",
	} {
		if code, out, said := execute(t, tool(), args); code != OK || !strings.Contains(out+said, want) {
			t.Errorf("%q: got %d, %q and %q, want %q", args, code, out, said, want)
		}
	}
}

// TestVersion: every program tells its version by a flag, one with commands by a
// command too, which knows JSON.
func TestVersion(t *testing.T) {
	want := buildinfo.Read()
	for _, args := range []string{"--version", "version", "version -o text"} {
		if code, out, said := execute(t, tool(), args); code != OK || out != want.Text("tool") || said != "" {
			t.Errorf("%s: got %d, %q and %q", args, code, out, said)
		}
	}
	var got buildinfo.Info
	code, out, said := execute(t, tool(), "version --output json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != OK || got != want {
		t.Errorf("as JSON: got %d, %q and %q, %v", code, out, said, err)
	}
	for _, args := range []string{"version -o xml", "version now", "outer --version", "-v"} {
		if code, out, said := execute(t, tool(), args); code != Usage || out != "" || said == "" {
			t.Errorf("%s: got %d, %q and %q", args, code, out, said)
		}
	}
	alone := &cobra.Command{Use: "tool [flags]", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return errors.New("it ran") }}
	if code, out, said := execute(t, alone, "--version"); code != OK || out != want.Text("tool") {
		t.Errorf("without commands: got %d, %q and %q", code, out, said)
	}
}

// TestOneCommand: a program without any below takes no words either.
func TestOneCommand(t *testing.T) {
	for _, args := range []string{"bogus", "completion bogus", "help bogus"} {
		cmd := &cobra.Command{Use: "tool", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
		if code, out, said := execute(t, cmd, args); code != Usage || out != "" || !strings.Contains(said, "unknown command") {
			t.Errorf("%s: got %d, %q and %q", args, code, out, said)
		}
	}
}
