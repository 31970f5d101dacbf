package build

import (
	"bytes"
	"runtime/debug"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	v := read(&debug.BuildInfo{
		Main: debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-11-01T00:00:00Z"},
		},
	})
	if v.Version != "v0.1.0" || v.Revision != "abc" || !v.Modified || v.Time != "2026-11-01T00:00:00Z" {
		t.Errorf("version %+v", v)
	}
	var b bytes.Buffer
	if err := v.text(&b); err != nil || !strings.HasPrefix(b.String(), "ladder v0.1.0 (abc, modified)\n") {
		t.Errorf("text %q, %v", b.String(), err)
	}
	if v := read(nil); v.Version != "(unknown)" || v.EngineVersion == "" {
		t.Errorf("without build information: %+v", v)
	}
}
