package docker

// What a Docker daemon does to the network of the machine, and how it is undone:
// it adds bridges and packet filter rules, may turn forwarding on, and leaves
// all that when it ends.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// network is the state of the machine's network before the daemon's start.
type network struct {
	// Links are the names of the network interfaces.
	Links []string `json:"links"`
	// Rules are the packet filter rules by table, as iptables -S prints them.
	Rules map[string][]string `json:"rules"`
	// Forwarding are the kernel's settings that say whether packets are forwarded.
	Forwarding map[string]string `json:"forwarding"`
}

const dockerBridge = "docker0"

// filters are the programs and tables in which a daemon writes rules.
var filters = []struct{ program, table string }{
	{"iptables", "filter"},
	{"iptables", "nat"},
	{"iptables", "raw"},
	{"ip6tables", "filter"},
	{"ip6tables", "nat"},
	{"ip6tables", "raw"},
}

var forwardingFiles = []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding", "/proc/sys/net/ipv6/conf/default/forwarding"}

func inspectNetwork(ctx context.Context) (network, error) {
	n := network{Rules: map[string][]string{}, Forwarding: map[string]string{}}
	links, err := net.Interfaces()
	if err != nil {
		return n, fmt.Errorf("listing network interfaces, %w", err)
	}
	for _, link := range links {
		n.Links = append(n.Links, link.Name)
	}
	for _, f := range filters {
		// A table that can't be listed can't be written to either.
		if rules, err := listRules(ctx, f.program, f.table); err == nil {
			n.Rules[f.program+" "+f.table] = rules
		}
	}
	for _, path := range forwardingFiles {
		if content, err := os.ReadFile(path); err == nil {
			n.Forwarding[path] = strings.TrimSpace(string(content))
		}
	}
	return n, nil
}

func listRules(ctx context.Context, program, table string) ([]string, error) {
	path, err := lookPath(program)
	if err != nil {
		return nil, err
	}
	out, err := output(exec.CommandContext(ctx, path, "--wait", "10", "-t", table, "-S"))
	if err != nil {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}

// restore removes what has been added since by Docker, and nothing else: rules
// that speak of its chains and bridges, its bridges, and forwarding where it
// was off. Nothing is removed while a daemon of the system runs, whose rules
// have the same names.
func (n network) restore(ctx context.Context, progress io.Writer) error {
	if ping(ctx, "/var/run/docker.sock") == nil {
		fmt.Fprintln(progress, "another Docker daemon runs now: its rules and bridges share names with the private one's, so they stay")
		return nil
	}
	bridges := n.newBridges()
	var errs []error
	for _, f := range filters {
		before, looked := n.Rules[f.program+" "+f.table]
		if !looked {
			continue
		}
		now, err := listRules(ctx, f.program, f.table)
		if err != nil {
			errs = append(errs, fmt.Errorf("listing packet filter rules, %w", err))
			continue
		}
		path, err := lookPath(f.program)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, undo := range undoRules(before, now, bridges) {
			args := append([]string{"--wait", "10", "-t", f.table}, undo...)
			if _, err := output(exec.CommandContext(ctx, path, args...)); err != nil {
				errs = append(errs, fmt.Errorf("removing a packet filter rule, %w", err))
			}
		}
	}
	for _, bridge := range bridges {
		path, err := lookPath("ip")
		if err != nil {
			fmt.Fprintf(progress, "no program ip: the bridge %s stays\n", bridge)
			continue
		}
		if _, err := output(exec.CommandContext(ctx, path, "link", "delete", bridge)); err != nil {
			errs = append(errs, fmt.Errorf("removing the bridge %s, %w", bridge, err))
		}
	}
	for path, before := range n.Forwarding {
		if content, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(content)) == before {
			continue
		}
		if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("restoring %s, %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// newBridges are the bridges with Docker's names that were not there before.
func (n network) newBridges() []string {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var found []string
	for _, link := range links {
		if !slices.Contains(n.Links, link.Name) && (link.Name == dockerBridge || isUserBridge(link.Name)) {
			found = append(found, link.Name)
		}
	}
	return found
}

// isUserBridge says whether the name is one that Docker gives to the bridge of
// a network: br- and twelve hexadecimal digits.
func isUserBridge(name string) bool {
	id, found := strings.CutPrefix(name, "br-")
	return found && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == ""
}

// undoRules returns the arguments of iptables that turn now into before as far
// as Docker's rules go: first rules, then chains, then policies.
func undoRules(before, now, bridges []string) [][]string {
	var rules, flushes, chains, policies [][]string
	for _, line := range now {
		fields := splitRule(line)
		if len(fields) < 2 || slices.Contains(before, line) {
			continue
		}
		switch fields[0] {
		case "-A":
			if speaksOfDocker(fields[1:], bridges) || isHairpin(fields[1:]) {
				rules = append(rules, append([]string{"-D"}, fields[1:]...))
			}
		case "-N":
			if isDockerChain(fields[1]) {
				flushes = append(flushes, []string{"-F", fields[1]})
				chains = append(chains, []string{"-X", fields[1]})
			}
		case "-P":
			// Docker lets nothing be forwarded by others once it turned forwarding on.
			if i := slices.IndexFunc(before, func(l string) bool { return strings.HasPrefix(l, "-P "+fields[1]+" ") }); i >= 0 && fields[1] == "FORWARD" {
				policies = append(policies, splitRule(before[i]))
			}
		}
	}
	return slices.Concat(rules, flushes, chains, policies)
}

func isDockerChain(name string) bool { return name == "DOCKER" || strings.HasPrefix(name, "DOCKER-") }

// speaksOfDocker says whether one of the words is one of Docker's chains or
// bridges.
func speaksOfDocker(words, bridges []string) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		return isDockerChain(w) || slices.Contains(bridges, w)
	})
}

// isHairpin says whether it is the rule by which a container reaches itself
// through a port that it publishes. It names neither chain nor bridge; a daemon
// that is killed leaves it.
func isHairpin(words []string) bool {
	return len(words) == 13 && words[0] == "POSTROUTING" && words[1] == "-s" && words[3] == "-d" && words[2] == words[4] &&
		(strings.HasSuffix(words[2], "/32") || strings.HasSuffix(words[2], "/128")) && words[9] == "--dport" && words[12] == "MASQUERADE"
}

// splitRule splits a line of iptables -S into words; a word with spaces stands
// in double quotes.
func splitRule(line string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped, started := false, false, false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quoted:
			escaped = true
		case r == '"':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words
}
