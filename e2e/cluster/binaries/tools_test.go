package binaries

import (
	"slices"
	"strings"
	"testing"
)

func TestChartToolsAreThePinnedOnes(t *testing.T) {
	for _, p := range chartTools {
		mod, _, err := moduleOf(p)
		if err != nil {
			t.Fatal(err)
		}
		root, _, _ := strings.Cut(p.pkg, "/cmd/")
		if want := root + " " + p.version; !strings.Contains(string(mod), want+"\n") {
			t.Errorf("modules/%s.mod does not require %s", p.module, want)
		}
		if strings.Contains(p.ldflags, "version.version=") && !strings.Contains(p.ldflags, "version.version="+p.version) {
			t.Errorf("%s is told another version than %s: %s", p.name, p.version, p.ldflags)
		}
		if !slices.Contains(Names(), p.name) {
			t.Errorf("Ensure does not know %s", p.name)
		}
	}
}
