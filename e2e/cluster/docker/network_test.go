package docker

import (
	"slices"
	"strings"
	"testing"
)

// What dockerd 20.10 adds to the table filter, one network besides its own.
const dockersRules = `-P INPUT ACCEPT
-P FORWARD DROP
-P OUTPUT ACCEPT
-N DOCKER
-N DOCKER-ISOLATION-STAGE-1
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o br-0123456789ab -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-USER -j RETURN`

func TestUndoRules(t *testing.T) {
	lines := func(s string) []string { return strings.Split(s, "\n") }
	empty := lines("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT")
	bridges := []string{"docker0", "br-0123456789ab"}
	for name, tc := range map[string]struct {
		before, now []string
		want        string
	}{
		"nothing was done": {empty, empty, ""},
		"everything is undone": {empty, lines(dockersRules), `-D FORWARD -j DOCKER-USER
-D FORWARD -j DOCKER-ISOLATION-STAGE-1
-D FORWARD -o br-0123456789ab -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-D FORWARD -i docker0 ! -o docker0 -j ACCEPT
-D DOCKER-USER -j RETURN
-F DOCKER
-F DOCKER-ISOLATION-STAGE-1
-F DOCKER-USER
-X DOCKER
-X DOCKER-ISOLATION-STAGE-1
-X DOCKER-USER
-P FORWARD ACCEPT`},
		"what was there before stays": {lines(dockersRules), append(lines(dockersRules), "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -j ACCEPT"), "-D DOCKER -d 172.17.0.2/32 ! -i docker0 -j ACCEPT"},
		"what others add stays":       {empty, append(slices.Clone(empty), "-N MINE", "-A INPUT -j MINE", "-A FORWARD -i br-lan -j ACCEPT", "-P INPUT DROP"), ""},
		"a comment with spaces": {
			empty, append(slices.Clone(empty), `-A DOCKER -m comment --comment "a \"quoted\" word" -j ACCEPT`),
			`-D DOCKER -m comment --comment|a "quoted" word|-j ACCEPT`,
		},
	} {
		var got []string
		for _, args := range undoRules(tc.before, tc.now, bridges) {
			for i, arg := range args {
				if strings.Contains(arg, " ") {
					args[i] = "|" + arg + "|"
				}
			}
			line := strings.Join(args, " ")
			got = append(got, strings.NewReplacer(" |", "|", "| ", "|").Replace(line))
		}
		if joined := strings.Join(got, "\n"); joined != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, joined, tc.want)
		}
	}
}

// In nat, a rule may name only the addresses of a network besides its bridge.
func TestUndoMasquerading(t *testing.T) {
	got := undoRules(nil, []string{"-A POSTROUTING -s 172.18.0.0/16 ! -o br-0123456789ab -j MASQUERADE", "-A POSTROUTING -s 10.0.0.0/8 -o eth0 -j MASQUERADE"}, []string{"br-0123456789ab"})
	if len(got) != 1 || got[0][0] != "-D" || !slices.Contains(got[0], "172.18.0.0/16") {
		t.Errorf("undoRules = %q", got)
	}
}

// A container that publishes a port has a rule with its address alone.
func TestUndoHairpin(t *testing.T) {
	const rule = "-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 6443 -j MASQUERADE"
	if got := undoRules(nil, []string{rule, "-A POSTROUTING -s 10.0.0.1/32 -d 10.0.0.2/32 -p tcp -m tcp --dport 6443 -j MASQUERADE"}, nil); len(got) != 1 || !slices.Contains(got[0], "172.17.0.2/32") {
		t.Errorf("undoRules = %q", got)
	}
	if got := undoRules([]string{rule}, []string{rule}, nil); len(got) != 0 {
		t.Errorf("undoRules = %q for a rule that was there before", got)
	}
}

func TestIsUserBridge(t *testing.T) {
	for name, want := range map[string]bool{
		"br-0123456789ab": true, "br-lan": false, "br-0123456789ag": false, "br-0123456789abc": false, "docker0": false, "": false,
	} {
		if isUserBridge(name) != want {
			t.Errorf("isUserBridge(%q) = %v", name, !want)
		}
	}
}

func TestSplitRule(t *testing.T) {
	for line, want := range map[string][]string{
		"":                   nil,
		"-P INPUT ACCEPT":    {"-P", "INPUT", "ACCEPT"},
		` a  "b c" `:         {"a", "b c"},
		`--comment "" x`:     {"--comment", "", "x"},
		`"a\\b" c\d "e\"f"`:  {`a\b`, `c\d`, `e"f`},
		`"open`:              {"open"},
		`pre"fix and "suf x`: {"prefix and suf", "x"},
	} {
		if got := splitRule(line); !slices.Equal(got, want) {
			t.Errorf("splitRule(%q) = %q, want %q", line, got, want)
		}
	}
}
