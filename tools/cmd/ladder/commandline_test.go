package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/tools/internal/build"
)

// What the command line can't mean ends with 2, one line and a hint.
func TestBadCommandLine(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":       {[]string{"decid"}, `unknown command "decid" for "ladder" Did you mean this? decide; see 'ladder --help'`},
		"unknown flag":          {[]string{"decide", "--fast"}, "unknown flag: --fast; see 'ladder decide --help'"},
		"unknown short flag":    {[]string{"decide", "-z"}, "unknown shorthand flag: 'z' in -z; see 'ladder decide --help'"},
		"unknown subcommand":    {[]string{"policy", "lnt"}, `unknown command "lnt" for "ladder policy"; did you mean lint?; see 'ladder policy --help'`},
		"unknown shell":         {[]string{"completion", "foo"}, `unknown command "foo" for "ladder completion"; see 'ladder completion --help'`},
		"unknown topic":         {[]string{"help", "policy", "foo"}, `there is no command "policy foo"; see 'ladder help --help'`},
		"unknown output":        {[]string{"decide", "-f", "x", "-o", "wide"}, `invalid argument "wide" for "-o, --output" flag: must be text, json or yaml`},
		"no files":              {[]string{"decide"}, "decide needs -f FILE, DIR or -"},
		"arguments for decide":  {[]string{"decide", "file.yaml"}, "; see 'ladder decide --help'"},
		"no bundle":             {[]string{"replay"}, "requires at least 1 arg(s)"},
		"no pod":                {[]string{"explain"}, "accepts 1 arg(s), received 0; see 'ladder explain --help'"},
		"an empty pod":          {[]string{"explain", "team/"}, "explain needs the name of a Pod"},
		"a bad limit":           {[]string{"decide", "-f", "-", "--max-input", "much"}, `--max-input "much" is no size; write it like 32Mi`},
		"revision 0":            {[]string{"policy", "compile", "-", "--revision", "0"}, "--revision 0 is no revision"},
		"one side of a diff":    {[]string{"policy", "diff", "a"}, "accepts 2 arg(s), received 1"},
		"arguments for version": {[]string{"version", "now"}, "see 'ladder version --help'"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ladder(t, tc.args...).want(t, 2)
			if r.stdout != "" || !strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("stdout %q, stderr %q; want %q", r.stdout, r.stderr, tc.want)
			}
		})
	}
}

// A word that is no command ends with 2 below every command that has others.
func TestEveryGroupRefusesWhatIsNoCommand(t *testing.T) {
	for _, group := range []string{"", "policy", "fault", "completion"} {
		r := ladder(t, append(strings.Fields(group), "bogus")...).want(t, 2)
		where := strings.TrimSpace("ladder " + group)
		if r.stdout != "" || r.stderr != `error: unknown command "bogus" for "`+where+`"; see '`+where+" --help'\n" {
			t.Errorf("%s: stdout %q, stderr %q", where, r.stdout, r.stderr)
		}
		if group != "" {
			if r := ladder(t, group).want(t, 0); !strings.Contains(r.stdout, "Available Commands:") {
				t.Errorf("%s: %q", where, r.stdout)
			}
		}
	}
}

// As a plugin of kubectl it calls itself so, in help and in hints.
func TestKubectlPlugin(t *testing.T) {
	r := ladderAs(t, "/usr/local/bin/kubectl-ladder", "", "decide", "--help").want(t, 0)
	if !strings.Contains(r.stdout, "kubectl ladder decide -f FILE") || !strings.Contains(r.stdout, "| kubectl ladder decide -f -") {
		t.Errorf("help:\n%s", r.stdout)
	}
	r = ladderAs(t, "kubectl-ladder", "", "decide", "--fast").want(t, 2)
	if !strings.Contains(r.stderr, "see 'kubectl ladder decide --help'") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// Every command says what it does and gives examples, none with a gap left open.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{
		{}, {"decide"}, {"explain"}, {"replay"}, {"policy", "lint"}, {"policy", "compile"}, {"policy", "diff"}, {"policy", "show"},
	} {
		r := ladder(t, append(args, "--help")...).want(t, 0)
		if strings.Contains(r.stdout, "{{") || !strings.Contains(r.stdout, "Usage:") {
			t.Errorf("help of %v:\n%s", args, r.stdout)
		}
		if len(args) > 0 && !strings.Contains(r.stdout, "  ladder "+strings.Join(args, " ")) {
			t.Errorf("help of %v has no example:\n%s", args, r.stdout)
		}
	}
	if r := ladder(t, "policy").want(t, 0); !strings.Contains(r.stdout, "ladder policy [command]") {
		t.Errorf("ladder policy:\n%s", r.stdout)
	}
}

func TestVersion(t *testing.T) {
	r := ladder(t, "version").want(t, 0)
	if !strings.Contains(r.stdout, "decision engine "+decide.EngineVersion+"\n") || !strings.Contains(r.stdout, runtime.Version()) {
		t.Errorf("version:\n%s", r.stdout)
	}
	var v build.Version
	if err := json.Unmarshal([]byte(ladder(t, "version", "-o", "json").want(t, 0).stdout), &v); err != nil {
		t.Fatal(err)
	}
	if v.EngineVersion != decide.EngineVersion || v.Go != runtime.Version() || v.Version == "" {
		t.Errorf("version %+v", v)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := ladder(t, "completion", shell).want(t, 0); !strings.Contains(r.stdout, "ladder") {
			t.Errorf("%s: nothing about ladder", shell)
		}
	}
	if r := ladder(t, "__complete", "decide", "-o", "").want(t, 0); !strings.HasPrefix(r.stdout, "text\njson\nyaml\n") {
		t.Errorf("completing -o: %s", r.stdout)
	}
}
