package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/buildinfo"
)

// groups are the words of all commands that have others below them.
func groups(cmd *cobra.Command, path []string) (all [][]string) {
	if cmd.HasSubCommands() {
		all = append(all, path)
	}
	for _, below := range cmd.Commands() {
		all = append(all, groups(below, append(path[:len(path):len(path)], below.Name()))...)
	}
	return all
}

// Every group, those of cobra too, refuses a word that is no command, names it
// and says where to look; alone it prints what it has.
func TestEveryGroupRefusesWhatIsNoCommand(t *testing.T) {
	root := New()
	root.InitDefaultCompletionCmd()
	found := groups(root, nil)
	if len(found) < 6 { // the root, kind, images, e2e, convert, completion
		t.Fatalf("there are only %v", found)
	}
	for _, group := range found {
		where := strings.Join(append([]string{"ladder-lab"}, group...), " ")
		code, stdout, stderr := run(t, "", append(group[:len(group):len(group)], "bogus")...)
		if want := "ladder-lab: unknown command \"bogus\" for \"" + where + "\"; see '" + where + " --help'\n"; code != ExitUsage || stdout != "" || stderr != want {
			t.Errorf("%s: code %d, stdout %q, stderr %q, want %q", where, code, stdout, stderr, want)
		}
		if code, stdout, _ := run(t, "", group...); code != ExitOK || !strings.Contains(stdout, "Available Commands:") {
			t.Errorf("%s alone: code %d, %q", where, code, stdout)
		}
	}
}

func TestVersion(t *testing.T) {
	want := buildinfo.Read()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if code, stdout, stderr := run(t, "", args...); code != ExitOK || stdout != want.Text("ladder-lab") || stderr != "" {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	var got buildinfo.Info
	code, stdout, _ := run(t, "", "version", "--output", "json")
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != ExitOK || got != want {
		t.Errorf("as JSON: code %d, %q, %v", code, stdout, err)
	}
	for _, args := range [][]string{{"version", "-o", "xml"}, {"version", "now"}} {
		if code, stdout, stderr := run(t, "", args...); code != ExitUsage || stdout != "" || strings.Count(stderr, "ladder-lab: ") != 1 {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestNearestCommandIsTold(t *testing.T) {
	if code, _, stderr := run(t, "", "kind", "staus"); code != ExitUsage || !strings.Contains(stderr, "did you mean status?") {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	if code, stdout, stderr := run(t, "", "help", "kind", "bogus"); code != ExitUsage || stdout != "" || !strings.Contains(stderr, `there is no command "kind bogus"`) {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
