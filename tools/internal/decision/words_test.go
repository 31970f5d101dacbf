package decision

import (
	"os"
	"regexp"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Every reason code has words for people.
func TestEveryReasonHasWords(t *testing.T) {
	source, err := os.ReadFile("../../../policies/api/v1alpha1/reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`Reason\w+\s+Reason = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(codes) < 20 {
		t.Fatalf("only %d reasons found in the source", len(codes))
	}
	for _, c := range codes {
		if words[v1alpha1.Reason(c[1])] == "" {
			t.Errorf("reason %s has no words", c[1])
		}
	}
	if len(words) != len(codes) {
		t.Errorf("%d words for %d reasons", len(words), len(codes))
	}
}
