package root

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/tools/internal/command"
)

// Every command line of ladder in the documentation is one: the command is
// there, its flags are, and the number of its arguments is right. A command that
// is named in the text without arguments is only looked up.
func TestDocumentedCommandLines(t *testing.T) {
	const top = "../../.."
	pages := []string{filepath.Join(top, "README.md")}
	err := filepath.WalkDir(filepath.Join(top, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range codeOf(string(raw)) {
			for _, args := range commandLines(code.text) {
				seen++
				if err := parses(args, code.inline); err != nil {
					t.Errorf("%s: line %d: ladder %s: %v", strings.TrimPrefix(page, top+"/"), code.line, strings.Join(args, " "), err)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d command lines were found", seen)
	}
}

func TestCommandLinesOfCode(t *testing.T) {
	for text, want := range map[string]string{
		"$ ladder explain train-6 -n team-train":                                  "[explain train-6 -n team-train]",
		"kubectl get pods -o yaml | bin/ladder decide -f - > out.txt":             "[decide -f -]",
		"kubectl -n ladder-system exec ds/ladder-driver -- /ladder fault list":    "[fault list]",
		"go run ./tools/cmd/ladder decide -f 'a b.yaml' # why":                    "[decide -f a b.yaml]",
		"kubectl ladder doctor; ladder doctor && ladder version":                  "[doctor][doctor][version]",
		"helm install ladder charts/ladder":                                       "",
		"ladder-lab status":                                                       "",
		"ladder simulate --fleet FILE.csv[.gz] [--setups fifo,aging] [-o text|x]": "[simulate --fleet FILE.csv.gz --setups fifo,aging -o text]",
		"  ladder explain POD [flags]":                                            "[explain POD]",
		"  ladder policy [command]":                                               "[policy]",
	} {
		var got strings.Builder
		for _, args := range commandLines(text) {
			fmt.Fprint(&got, args)
		}
		if got.String() != want {
			t.Errorf("%s: found %s, want %s", text, got.String(), want)
		}
	}
	for line, inline := range map[string]bool{
		"policy lint -f FILE": true, "policy lnt": true, "decide -f": true, "decide --fast": false, "policy lint": false, "explain a b": true, "quota": false, "version now": true,
	} {
		err := parses(strings.Fields(line), inline)
		if ok := line == "quota"; (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
	if err := parses([]string{"policy", "lint"}, true); err != nil {
		t.Errorf("a command that is only named: %v", err)
	}
}

// code is a line of a block, or a span inside a line.
type code struct {
	text   string
	line   int
	inline bool
}

var span = regexp.MustCompile("`([^`]+)`")

// codeOf finds the code of a page in Markdown. A line that goes on after a
// backslash is one.
func codeOf(page string) []code {
	var all []code
	inBlock, more := false, ""
	for i, line := range strings.Split(page, "\n") {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			inBlock, more = !inBlock, ""
		case inBlock && strings.HasSuffix(line, "\\"):
			more += strings.TrimSuffix(line, "\\")
		case inBlock:
			all = append(all, code{more + line, i + 1, false})
			more = ""
		default:
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				all = append(all, code{m[1], i + 1, true})
			}
		}
	}
	return all
}

// word is a piece of a command line as a shell takes it apart, near enough.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|&&|[;|>#](?:\s|$)|[^\s;]+`)

// commandLines finds the arguments of each call of ladder in a line of code.
func commandLines(text string) [][]string {
	var found [][]string
	var args []string
	begins, inside := true, false
	end := func() {
		if inside {
			found = append(found, args)
		}
		args, inside = nil, false
	}
	for _, w := range word.FindAllString(text, -1) {
		w = strings.TrimSpace(w)
		switch {
		case w == "#":
			end()
			return found
		case w == "|" || w == "&&" || w == ";" || w == ">":
			end()
			begins = w != ">"
		case inside && (w == "[flags]" || w == "[command]"):
		case inside:
			args = append(args, plainWord(w))
		case begins && (w == "$" || w == "kubectl" || w == "go" || w == "run"):
		case w == "--":
			begins = true // what kubectl exec runs
		default:
			inside = begins && slices.Contains([]string{"ladder", "bin/ladder", "/ladder", "./tools/cmd/ladder"}, w)
			begins = false
		}
	}
	end()
	return found
}

// plainWord takes off what a synopsis has around a word: quotes, brackets, all
// alternatives but the first.
func plainWord(w string) string {
	w = strings.NewReplacer("'", "", `"`, "", "[", "", "]", "").Replace(w)
	first, _, _ := strings.Cut(w, "|")
	return first
}

// parses has the command line parsed as it would be when it is called.
func parses(args []string, inline bool) error {
	cmd, rest, err := newCommand("ladder", command.Streams{}).Find(args)
	if err != nil {
		return err
	}
	if len(rest) == 0 && inline {
		return nil
	}
	if slices.Contains(rest, "--help") {
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	positional := cmd.Flags().Args()
	if len(positional) == 0 && inline {
		return nil
	}
	if err := cmd.ValidateArgs(positional); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}
