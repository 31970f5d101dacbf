package xid

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/drivers/inventory"
)

// refs are the sources that table.go explains.
var refs = []string{"catalog", "catalog*", "unused", "silent", "memory", "flags", "checks", "nvml", "ladder"}

func TestCatalogIsInOrder(t *testing.T) {
	for i, s := range catalog {
		if s.First > s.Last || i > 0 && catalog[i-1].Last >= s.First {
			t.Errorf("%+v comes after %+v", s, catalog[max(i-1, 0)])
		}
	}
}

func TestEveryRowHasItsSource(t *testing.T) {
	for _, row := range Catalog() {
		if !slices.Contains(refs, row.Ref) {
			t.Errorf("%+v has source %q", row, row.Ref)
		}
		if (row.Action == Unknown) != (row.Ref == "unused" || row.Ref == "silent") {
			t.Errorf("%+v: either the catalog recommends something, or the row says why nothing", row)
		}
	}
	for _, row := range Signals() {
		if !slices.Contains(refs, row.Ref) {
			t.Errorf("%+v has source %q", row, row.Ref)
		}
	}
}

// TestSeverities spells out the codes that drivers were seen to get wrong, and
// one of each action.
func TestSeverities(t *testing.T) {
	for code, want := range map[int]inventory.Severity{
		13: inventory.Healthy, 31: inventory.Healthy, 43: inventory.Healthy, 45: inventory.Healthy, 68: inventory.Healthy,
		94:  inventory.Healthy, // contained: only the application is lost
		63:  inventory.Healthy, // a remap was recorded, not that it failed
		109: inventory.Suspect, // needs a reset
		48:  inventory.Suspect, 62: inventory.Suspect, 95: inventory.Suspect, 119: inventory.Suspect, 140: inventory.Suspect,
		74: inventory.Suspect, 145: inventory.Suspect,
		64: inventory.Failed, 79: inventory.Failed, 151: inventory.Failed,
		154: inventory.Suspect, 171: inventory.Suspect, 999: inventory.Suspect, // nobody says that they are harmless
		1: inventory.Suspect, 138: inventory.Suspect,
	} {
		if got := SeverityOf(code); got != want {
			t.Errorf("XID %d is %v, want %v", code, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	for code, want := range map[int]string{
		79:  "GPU has fallen off the bus; NVIDIA recommends: restart the node",
		39:  "XID 39; NVIDIA recommends: restart the application",
		999: "XID 999; NVIDIA's catalog recommends nothing",
		171: "XID 171; NVIDIA's catalog recommends nothing",
	} {
		if got := Describe(code); got != want {
			t.Errorf("XID %d: got %q", code, got)
		}
	}
	for _, row := range catalog {
		if row.Action == Unknown && row.Words != "" {
			t.Errorf("%+v has words and no action", row)
		}
	}
	if Reason(79) != "Xid79" {
		t.Errorf("got %s", Reason(79))
	}
}

// TestSignalsAreUsable: their words go into taints, Events, files and policies.
func TestSignalsAreUsable(t *testing.T) {
	label := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	camel := regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	seen := map[Signal]bool{}
	for _, row := range signals {
		if seen[row.Signal] {
			t.Errorf("%s is there twice", row.Signal)
		}
		seen[row.Signal] = true
		if !label.MatchString(string(row.Signal)) || !label.MatchString(row.Source) || !camel.MatchString(row.Reason) || row.Words == "" {
			t.Errorf("%+v", row)
		}
		if row.Source == Source {
			t.Errorf("%s has the source of XIDs", row.Signal)
		}
		if got, is := RowOf(row.Signal); !is || got != row {
			t.Errorf("%s is not found", row.Signal)
		}
	}
	// What is latched must not share its source with what is read: a reading
	// that is fine would end neither, or both.
	latched := map[string]bool{}
	for _, row := range signals {
		if is, known := latched[row.Source]; known && is != row.Latched {
			t.Errorf("source %s has events and readings", row.Source)
		}
		latched[row.Source] = row.Latched
	}
	if _, is := RowOf("no-such-signal"); is {
		t.Error("found a signal that is not there")
	}
}

func TestRecoveryActions(t *testing.T) {
	want := []Signal{"", "recovery-gpu-reset", "recovery-node-reboot", "recovery-drain-p2p", "recovery-drain-and-reset", "recovery-imex-domain", "recovery-bus-reset", "recovery-system-reboot", "recovery-unknown", "recovery-unknown"}
	for value, signal := range want {
		if got := RecoveryAction(uint64(value)); got != signal {
			t.Errorf("%d is %q, want %q", value, got, signal)
		}
	}
	for _, row := range signals {
		if strings.HasPrefix(string(row.Signal), "recovery-") && row.Severity == inventory.Healthy {
			t.Errorf("%s does not count", row.Signal)
		}
	}
}
