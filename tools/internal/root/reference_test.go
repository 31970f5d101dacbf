package root

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/tools/internal/command"
)

var update = flag.Bool("update", false, "rewrite docs/reference/cli.md")

const referencePage = "../../../docs/reference/cli.md"

// The page in docs is what the help texts say; -update rewrites it.
func TestReferencePage(t *testing.T) {
	var page bytes.Buffer
	page.WriteString("# The ladder command\n\nMade from the help texts by `go tool mage golden`. Exit codes: 0 done, 1 a difference or finding, or it did not work (a file can't be written, the API server does not answer), 2 bad input or use (`doctor`: or something could not be checked), 3 (`decide`) some Pods got nothing.\n")
	describe(t, &page, newCommand("ladder", command.Streams{}), nil)
	if *update {
		if err := os.WriteFile(referencePage, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, page.Bytes()) {
		t.Error("docs/reference/cli.md is not what the help texts say, run `go tool mage golden`")
	}
}

// describe writes the help of a command and of those below it.
func describe(t *testing.T, page *bytes.Buffer, cmd *cobra.Command, path []string) {
	t.Helper()
	path = append(path, cmd.Name())
	var help, errOut bytes.Buffer
	args := append(append([]string(nil), path...), "--help")
	if code := Main(context.Background(), args, command.Streams{In: strings.NewReader(""), Out: &help, Err: &errOut}); code != 0 {
		t.Fatalf("%v ended with %d: %s", args, code, errOut.String())
	}
	fmt.Fprintf(page, "\n## %s\n\n```\n%s\n```\n", strings.Join(path, " "), strings.TrimSpace(help.String()))
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" {
			describe(t, page, c, path)
		}
	}
}
