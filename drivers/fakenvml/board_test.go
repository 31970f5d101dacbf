package fakenvml

import (
	"os"
	"strings"
	"testing"
)

func TestParsingBoards(t *testing.T) {
	good, err := os.ReadFile("boards/h100-sxm5-80gb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"unknown field":   {"cores: 16896", "coores: 1", `unknown field "coores"`},
		"architecture":    {"architecture: Hopper", "architecture: Kepler", `architecture: there is no "Kepler"`},
		"name of lines":   {"name: NVIDIA H100 80GB HBM3", `name: "a\nmemory 1"`, "name: must be a line"},
		"driver":          {"driverVersion: 580.105.08", "driverVersion: latest", "driverVersion: must be two or three numbers"},
		"memory":          {"memoryMiB: 81559", "memoryMiB: 0", "memoryMiB: must be 1"},
		"reserved":        {"reservedMiB: 480", "reservedMiB: 81560", "reservedMiB: must be at most"},
		"links":           {"links: 18", "links: 37", "nvlink.links: must be at most 36"},
		"power":           {"limit: 700", "limit: 701", "power.limit: must be min to max"},
		"both":            {"rowRemap: true", "rowRemap: true\npageRetirement: true", "pageRetirement: a board has this or rowRemap"},
		"profile name":    {"name: 1g.20gb", `name: "1g 20gb"`, "mig[2].name: must be a word"},
		"profile's place": {"starts: [0, 2, 4, 6]", "starts: [0, 7]", "mig[2].starts: must leave room"},
		"profile's index": {"index: 9,", "index: 18,", "mig[2].index: must be below 18"},
	} {
		if !strings.Contains(string(good), test.old) {
			t.Fatalf("%s: the board has no %q", name, test.old)
		}
		_, err := ParseBoard([]byte(strings.Replace(string(good), test.old, test.new, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	if _, err := Tier("h200"); err == nil || !strings.Contains(err.Error(), "a100-40-mig") {
		t.Errorf("a tier that is not there: %v", err)
	}
	if _, err := Tier("t4-mig"); err == nil || !strings.Contains(err.Error(), "can't be split") {
		t.Errorf("a T4 in MIG mode: %v", err)
	}
}

func TestInstallRefuses(t *testing.T) {
	board, err := Tier("l4")
	if err != nil {
		t.Fatal(err)
	}
	for want, machine := range map[string]Machine{
		"1 to 16 GPUs, not 0":  {Name: "m"},
		"1 to 16 GPUs, not 17": {Name: "m", GPUs: 17},
		"on 3 NUMA nodes":      {Name: "m", GPUs: 2, NUMANodes: 3},
	} {
		if err := Install(t.TempDir(), board, machine); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestPlacesAreAddresses: buses have two digits, however GPUs are spread.
func TestPlacesAreAddresses(t *testing.T) {
	for gpus := 1; gpus <= MaxGPUs; gpus++ {
		for nodes := 1; nodes <= gpus; nodes++ {
			seen := map[string]bool{}
			for _, g := range (Machine{Name: "m", GPUs: gpus, NUMANodes: nodes}).Places() {
				if seen[g.BusID()] || g.Bus > 0xff || g.Root > 0xff {
					t.Fatalf("%d GPUs on %d NUMA nodes: address %s below root %02x", gpus, nodes, g.BusID(), g.Root)
				}
				seen[g.BusID()] = true
			}
		}
	}
}
