package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		name, content string
		nodes         int
		err           string
	}{
		{"fleet.yaml", mixed, 27, ""},
		{"openb.csv", someNodes, 5, ""},
		{"2026.CSV", "gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,0\n", 1, ""},
		{"pods.csv", "name,other\n", 0, "line 1: the header is that of no known node list"},
		{"empty.csv", "", 0, "line 1"},
		{"short.csv", someNodes + "x\n", 0, "wrong number of fields"},
		{"bad.yaml", "kind: Node", 0, "kind: Unsupported value"},
	} {
		path := filepath.Join(dir, test.name)
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := ReadFile(path)
		switch {
		case test.err == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.err == "" && f.NodeCount() != test.nodes:
			t.Errorf("%s: got %d nodes, want %d", test.name, f.NodeCount(), test.nodes)
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: got %v, want the path and %q in it", test.name, err, test.err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "absent.yaml")); err == nil || !strings.Contains(err.Error(), "absent.yaml") {
		t.Errorf("got %v for a file that is not there", err)
	}
}
