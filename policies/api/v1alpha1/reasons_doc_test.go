package v1alpha1

import (
	"os"
	"regexp"
	"testing"
)

// Every code and class in reasons.go is documented, and nothing else is.
func TestReasonsAreDocumented(t *testing.T) {
	src, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	declared, documented := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s+(?:Reason|Failure)\w+\s+\w+ = "(\w+)"`).FindAllSubmatch(src, -1) {
		declared[string(m[1])] = true
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllSubmatch(doc, -1) {
		documented[string(m[1])] = true
	}
	if len(declared) < 30 {
		t.Fatalf("found only %d codes in reasons.go", len(declared))
	}
	for c := range declared {
		if !documented[c] {
			t.Errorf("docs/reference/reasons.md does not document %s", c)
		}
	}
	for c := range documented {
		if !declared[c] {
			t.Errorf("docs/reference/reasons.md documents %s, which does not exist", c)
		}
	}
}
