package buildinfo

import (
	"runtime"
	"runtime/debug"
	"testing"
)

var platform = runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n"

func TestOf(t *testing.T) {
	full := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.modified", Value: "true"},
			{Key: "vcs.time", Value: "2026-11-01T00:00:00Z"},
			{Key: "CGO_ENABLED", Value: "0"},
		},
	}
	if i := Of(full); i.Revision != "abc" || !i.Modified || i.Time != "2026-11-01T00:00:00Z" || i.Go != runtime.Version() {
		t.Errorf("Of = %+v", i)
	}
	for name, tc := range map[string]struct {
		info *debug.BuildInfo
		more []string
		want string
	}{
		"all is known":     {full, nil, "some v0.1.0 (abc, modified)\n" + platform},
		"not modified":     {&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: full.Settings[:1]}, nil, "some (devel) (abc)\n" + platform},
		"no revision":      {&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, []string{"engine 1"}, "some (devel)\nengine 1\n" + platform},
		"nothing is known": {nil, nil, "some (unknown)\n" + platform},
		"no version":       {&debug.BuildInfo{}, nil, "some (unknown)\n" + platform},
	} {
		if got := Of(tc.info).Text("some", tc.more...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestReadIsOfThisProgram(t *testing.T) {
	if i := Read(); i.Version == "" || i.Go != runtime.Version() {
		t.Errorf("Read = %+v", i)
	}
}

func TestModule(t *testing.T) {
	info := &debug.BuildInfo{Deps: []*debug.Module{
		{Path: "a.test/x", Version: "v1.0.0"},
		{Path: "a.test/forked", Version: "v1.0.0", Replace: &debug.Module{Path: "b.test/forked", Version: "v2.0.0"}},
		{Path: "a.test/local", Version: "v0.0.0", Replace: &debug.Module{Path: "../local"}},
	}}
	for path, want := range map[string]string{"a.test/x": "v1.0.0", "a.test/forked": "v2.0.0", "a.test/local": "v0.0.0", "a.test/none": "(unknown)"} {
		if got := moduleOf(info, path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if got := moduleOf(nil, "a.test/x"); got != "(unknown)" {
		t.Errorf("without build information: %s", got)
	}
}
