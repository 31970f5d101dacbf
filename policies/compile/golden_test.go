package compile_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden compiles every testdata/golden/*.policy.yaml and compares the
// class, the revision and the template with the file beside it.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 4 {
		t.Fatalf("found %d policies, want at least 4", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".policy.yaml"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var policy v1alpha1.AcceleratorPolicy
			if err := yaml.UnmarshalStrict(raw, &policy); err != nil {
				t.Fatal(err)
			}
			got := compileAll(t, &policy)
			if again := compileAll(t, policy.DeepCopy()); !bytes.Equal(got, again) {
				t.Error("compiling the same policy twice gave different bytes")
			}
			golden := strings.TrimSuffix(file, ".policy.yaml") + ".golden.yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs; look at it, then run go test -update\n%s", golden, got)
			}
		})
	}
}

// TestTheDocumentedPolicy is one of those above, as it stands there.
func TestTheDocumentedPolicy(t *testing.T) {
	page, err := os.ReadFile("../../docs/sharing.md")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile("testdata/golden/sharing.policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, append([]byte("```yaml\n"), policy...)) {
		t.Error("docs/sharing.md shows another policy than testdata/golden/sharing.policy.yaml")
	}
}

func compileAll(t *testing.T, policy *v1alpha1.AcceleratorPolicy) []byte {
	t.Helper()
	revision, err := compile.Revision(policy, 3)
	if err != nil {
		t.Fatal(err)
	}
	template, err := compile.Template(revision, "team-a")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, obj := range []any{compile.DeviceClass(revision.Spec.PolicySpec.Driver), revision, template} {
		raw, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(raw)
	}
	return out.Bytes()
}
