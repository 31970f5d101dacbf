package ociruntime

// Reading runc's command line as far as is needed to find the file that says
// what a process shall be allowed.

import (
	"path/filepath"
	"slices"
	"strings"
)

// What stands in front of the subcommand and takes a value of its own.
var globalValues = []string{"log", "log-format", "root", "criu", "rootless"}

// What stands behind it and takes a value of its own, by subcommand.
var commandValues = map[string][]string{
	"create":  {"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"},
	"run":     {"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"},
	"restore": {"bundle", "b", "console-socket", "image-path", "work-path", "manage-cgroups-mode", "empty-ns", "pid-file", "lsm-profile", "lsm-mount-context"},
	"exec": {
		"console-socket", "pidfd-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g", "process", "p", "pid-file",
		"process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	},
}

// request is what a command line asks for: where the process is described, and
// how. The zero value means that there is nothing to be changed.
type request struct {
	// path is the file; "" if there is none.
	path string
	// bundle says that the file is a bundle's config.json, in which the process
	// is one part of many; otherwise it describes a process and nothing else.
	bundle bool
}

// parse reads the arguments behind the program's name.
func parse(args []string) request {
	command, rest := subcommand(args)
	takesValue, known := commandValues[command]
	if !known {
		return request{}
	}
	options := optionsOf(rest, takesValue, command == "exec")
	if command == "exec" {
		return request{path: last(options, "process", "p")}
	}
	bundle := last(options, "bundle", "b")
	return request{path: filepath.Join(bundle, "config.json"), bundle: true}
}

// subcommand returns the first argument that is neither an option nor the
// value of one, and what follows it.
func subcommand(args []string) (string, []string) {
	for i := 0; i < len(args); i++ {
		name, _, assigned := option(args[i])
		switch {
		case name == "":
			return args[i], args[i+1:]
		case !assigned && slices.Contains(globalValues, name):
			i++
		}
	}
	return "", nil
}

type assignment struct{ name, value string }

// optionsOf collects the options that take a value. Behind "--" there are none;
// behind the container's name there are none either where a program's own
// arguments follow it.
func optionsOf(args, takesValue []string, stopAtName bool) []assignment {
	var found []assignment
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			break
		}
		name, value, assigned := option(args[i])
		switch {
		case name == "":
			if stopAtName {
				return found
			}
		case !slices.Contains(takesValue, name):
		case assigned:
			found = append(found, assignment{name, value})
		case i+1 < len(args):
			i++
			found = append(found, assignment{name, args[i]})
		}
	}
	return found
}

// option splits -name, --name, -name=value and --name=value. The name is empty
// for anything else.
func option(arg string) (name, value string, assigned bool) {
	if len(arg) < 2 || arg[0] != '-' {
		return "", "", false
	}
	name = strings.TrimPrefix(arg[1:], "-")
	name, value, assigned = strings.Cut(name, "=")
	return name, value, assigned
}

// last returns the value that counts: the one that is given last.
func last(options []assignment, names ...string) string {
	for _, o := range slices.Backward(options) {
		if slices.Contains(names, o.name) {
			return o.value
		}
	}
	return ""
}
