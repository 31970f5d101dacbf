package tenants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/fair"
)

func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`
costs: {H100: 100, "Z9": 3}
aging: 2h
reserveAfter: 0s
priorityAging: -1s
notice: 0s
lendFirmly: true
keepAfter: 1h
cooldown: 0s
holdFor: 2h
lendAfter: 1m
`))
	if err != nil {
		t.Fatal(err)
	}
	f := c.fair()
	costs := map[string]int64{}
	for _, m := range f.Models {
		costs[m.Name] = m.Cost
	}
	if costs["H100"] != 100 || costs["Z9"] != 3 || costs["T4"] != DefaultCosts()["T4"] {
		t.Errorf("got costs %v", costs)
	}
	// Nothing at all is not the engine's zero, which is its default.
	if f.Aging != 2*time.Hour || f.ReserveAfter != 1 || f.KeepAfter != time.Hour || f.PriorityAging >= 0 || f.Cooldown >= 0 || f.HoldFor != 2*time.Hour || f.LendAfter != time.Minute || f.Notice >= 0 || !f.LendFirmly || f.Mode != fair.Ladder {
		t.Errorf("got %+v", f)
	}
}

func TestConfigDefaults(t *testing.T) {
	c, err := ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	f := c.fair()
	if f.Aging != 0 || f.ReserveAfter != 0 || f.PriorityAging != 0 || f.Notice != 0 || f.KeepAfter != 0 || f.Cooldown != 0 || f.HoldFor != 0 || f.LendAfter != 0 || len(f.Models) != len(DefaultCosts()) {
		t.Errorf("got %+v, want the engine's defaults", f)
	}
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("notice: 5m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = ReadConfig(file); err != nil || c.Notice.Duration != 5*time.Minute {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestConfigHoldFor(t *testing.T) {
	for text, want := range map[string]time.Duration{"holdFor: 0s": 1, "holdFor: -1s": -time.Second, "{}": 0} {
		c, err := ParseConfig([]byte(text))
		if f := c.fair(); err != nil || f.HoldFor != want {
			t.Errorf("%s: got %v, %v, want %v", text, f.HoldFor, err, want)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"cost: {H100: 1}":     "unknown field",
		"costs: {H100: 0}":    "cost 0 of model H100",
		"costs: {H100: -3}":   "cost -3 of model H100",
		"aging: -1h":          "aging",
		"notice: soon":        "invalid duration",
		"costs: {H100: 1e12}": "H100",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := ReadConfig(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is read")
	}
}
