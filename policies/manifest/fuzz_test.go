package manifest

import (
	"errors"
	"strings"
	"testing"
)

// Whatever the input, reading ends in objects or in one line, never in a panic.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		nodeText, join(policyText, podText), "{}", "---", "...", "a: &a [*a]", "? a", "\xef\xbb\xbf{", "{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[{}]}",
		"apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]", "!!binary aGk=", "a: !!float .nan", "<<: {a: b}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse("f", data)
		if err == nil {
			set.Newest()
			set.Warnings()
			return
		}
		var e *Error
		if !errors.As(err, &e) || e.Document < 1 || e.Msg == "" {
			t.Fatalf("error without a place or words: %#v", err)
		}
		if line := err.Error(); strings.ContainsAny(line, "\n\r\x1b") {
			t.Fatalf("not one line: %q", line)
		}
	})
}
