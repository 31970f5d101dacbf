package xid

import (
	"strings"
	"testing"

	"gpuladder.dev/ladder/drivers/inventory"
)

func TestCatalogIsInOrder(t *testing.T) {
	for i, s := range catalog {
		if s.first > s.last || i > 0 && catalog[i-1].last >= s.first {
			t.Errorf("%+v comes after %+v", s, catalog[max(i-1, 0)])
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
	} {
		if got := SeverityOf(code); got != want {
			t.Errorf("XID %d is %v, want %v", code, got, want)
		}
	}
}

func TestWordsAreOfKnownCodes(t *testing.T) {
	for code := range words {
		if ActionOf(code) == Unknown {
			t.Errorf("XID %d has words and no action", code)
		}
	}
	if got := Describe(79); got != "GPU has fallen off the bus; NVIDIA recommends: restart the node" {
		t.Errorf("got %q", got)
	}
	if got := Describe(999); !strings.HasPrefix(got, "XID 999; ") {
		t.Errorf("got %q", got)
	}
}
