package build

import (
	"bytes"
	"encoding/json"
	"testing"

	"gpuladder.dev/ladder/policies/buildinfo"
)

func TestVersion(t *testing.T) {
	v := Version{Info: buildinfo.Info{Version: "v0.1.0", Revision: "abc", Go: "go1.26", Platform: "linux/amd64"}, EngineVersion: "7"}
	var b bytes.Buffer
	if err := v.text(&b); err != nil || b.String() != "ladder v0.1.0 (abc)\ndecision engine 7\ngo1.26 linux/amd64\n" {
		t.Errorf("text %q, %v", b.String(), err)
	}
	// The names that scripts read lie side by side.
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"version":"v0.1.0","revision":"abc","go":"go1.26","platform":"linux/amd64","engineVersion":"7"}`; string(content) != want {
		t.Errorf("JSON %s, want %s", content, want)
	}
}
