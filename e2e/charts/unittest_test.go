package charts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// The unit tests that lie beside the chart.
func TestChartsOwnTests(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm-unittest")
	}
	set, err := binaries.Ensure(t.Context(), os.Stderr, binaries.HelmUnittest)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), set.Path(binaries.HelmUnittest), "--strict", chartDir(t))
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+filepath.Join(t.TempDir(), "cache"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
}
