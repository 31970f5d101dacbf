package ociruntime

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const none = ""
	for _, tc := range []struct {
		line   string
		path   string
		bundle bool
	}{
		// As containerd's shim calls it.
		{"--root /r --log /l --log-format json --systemd-cgroup create --bundle /b --pid-file /p c1", "/b/config.json", true},
		{"--root /r --log /l --log-format json exec --process /tmp/p1 --detach --pid-file /p c1", "/tmp/p1", false},
		{"--root /r --log /l --log-format json exec --process /tmp/p1 --console-socket /s --detach --pid-file /p c1", "/tmp/p1", false},
		{"--root /r start c1", none, false},
		{"--root /r --log-format json kill --all c1 9", none, false},
		{"--root /r delete --force c1", none, false},
		{"--root /r update --resources - c1", none, false},

		// The forms of one option.
		{"exec --process=/p c1", "/p", false},
		{"exec -process /p c1", "/p", false},
		{"exec -p /p c1", "/p", false},
		{"exec -p=/p c1", "/p", false},
		{"exec -d -p /p c1", "/p", false},
		{"exec -p /first -p /second c1", "/second", false},
		{"create -b /b c1", "/b/config.json", true},
		{"create -b=/b c1", "/b/config.json", true},
		{"create --bundle=/b c1", "/b/config.json", true},
		{"run --bundle /b c1", "/b/config.json", true},
		{"restore --image-path /i --bundle /b c1", "/b/config.json", true},
		{"create c1 --bundle /b", "/b/config.json", true},
		{"create c1", "config.json", true},
		{"run --keep c1", "config.json", true},
		{"--root=/r create --bundle /b c1", "/b/config.json", true},
		{"-root /r create --bundle /b c1", "/b/config.json", true},
		{"--debug create --bundle /b c1", "/b/config.json", true},

		// Values that look like something else.
		{"--root create --log exec run --bundle /b c1", "/b/config.json", true},
		{"exec --cwd --process --pid-file /f c1", none, false},
		{"exec --env A=--process=/p c1", none, false},
		{"create --pid-file --bundle c1", "config.json", true},

		// What the container's program is given is not for the runtime.
		{"exec c1 tar -p /dir", none, false},
		{"exec -p /p c1 tar -p /dir", "/p", false},
		{"exec -- c1 -p /dir", none, false},
		{"create -- -b", "config.json", true},

		{"", none, false},
		{"--version", none, false},
		{"--root", none, false},
		{"exec", none, false},
		{"exec -p", none, false},
		{"features", none, false},
	} {
		got := parse(strings.Fields(tc.line))
		if got != (request{tc.path, tc.bundle}) {
			t.Errorf("parse(%q) = %+v, want %q, %v", tc.line, got, tc.path, tc.bundle)
		}
	}
}

// Whatever is given, a file that is named is one of the arguments (or in the
// folder that one of them names), and nothing panics.
func FuzzParse(f *testing.F) {
	f.Add("--root\n/r\ncreate\n--bundle\n/b\nc1")
	f.Add("exec\n--process=/p\nc1\n-p\n/x")
	f.Add("-\n--\n=\n--=\n-p=\nexec\n-p")
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\n")
		got := parse(args)
		if got.path == "" {
			return
		}
		named := got.path
		if got.bundle {
			if filepath.Base(got.path) != "config.json" {
				t.Errorf("parse(%q) = %+v", args, got)
			}
			named = filepath.Dir(got.path)
			if named == "." {
				return
			}
		}
		if !slices.ContainsFunc(args, func(arg string) bool {
			if _, value, assigned := strings.Cut(arg, "="); assigned {
				if value == named || got.bundle && filepath.Clean(value) == named {
					return true
				}
			}
			return arg == named || got.bundle && filepath.Clean(arg) == named
		}) {
			t.Errorf("parse(%q) = %+v, which nobody named", args, got)
		}
	})
}
