package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/images"
)

func TestImagesWrongUse(t *testing.T) {
	memory(t)
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"bad output":     {[]string{"images", "build", "-o", "xml"}, "xml"},
		"bad list":       {[]string{"images", "list", "-o", "xml"}, "xml"},
		"arguments":      {[]string{"images", "build", "ladder-scheduler"}, "accepts 0 arg"},
		"unknown image":  {[]string{"images", "context", "nginx", t.TempDir()}, "nginx"},
		"no folder":      {[]string{"images", "context", "ladder-scheduler"}, "accepts 2 arg"},
		"no such action": {[]string{"images", "push"}, `unknown command "push"`},
	} {
		code, stdout, stderr := run(t, "", tc.args...)
		if code != ExitUsage || stdout != "" || !strings.Contains(stderr, tc.says) {
			t.Errorf("%s: code %d, stdout %q, stderr %q, want code 2 and %q", name, code, stdout, stderr, tc.says)
		}
	}
}

func TestImagesList(t *testing.T) {
	memory(t)
	var listed struct {
		Images []images.Image
		Saved  []images.Archives
	}
	list := func() string {
		t.Helper()
		code, stdout, stderr := run(t, "", "images", "list", "-o", "json")
		if code != ExitOK || stderr != "" {
			t.Fatalf("code %d, stderr %q", code, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &listed); err != nil {
			t.Fatal(err)
		}
		return stdout
	}
	if stdout := list(); len(listed.Images) != len(images.All()) || !strings.Contains(stdout, `"saved": []`) {
		t.Errorf("an empty cache: %s", stdout)
	}
	archive := filepath.Join(os.Getenv(binaries.EnvCache), "images", "dev-0123456789ab", "ladder-scheduler.tar")
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(archive, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	list()
	if len(listed.Saved) != 1 || listed.Saved[0].Tag != "dev-0123456789ab" || listed.Saved[0].Bytes != 1000 || !slices.Equal(listed.Saved[0].Files, []string{archive}) {
		t.Errorf("saved are %+v", listed.Saved)
	}
	code, stdout, _ := run(t, "", "images", "list")
	for _, want := range []string{"ladder/ladder-driver", "drivers/Dockerfile", "dev-0123456789ab"} {
		if code != ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("code %d, no %q in\n%s", code, want, stdout)
		}
	}
}

func TestImagesContext(t *testing.T) {
	cacheWithPrograms(t)
	dir := filepath.Join(t.TempDir(), "context")
	code, stdout, stderr := run(t, "", "images", "context", "ladder-controller", dir)
	if code != ExitOK || stdout != "" {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	root, err := binaries.Root()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(root, "controllers", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "Dockerfile")); err != nil || string(got) != string(want) {
		t.Errorf("the Dockerfile is %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "ladder-controller")); err != nil || info.Mode() != 0o755 || info.Size() < 1<<20 {
		t.Errorf("the program is %v, %v", info, err)
	}
	if code, _, stderr := run(t, "", "images", "context", "ladder-controller", dir); code != ExitFailed || !strings.Contains(stderr, "not empty") {
		t.Errorf("into a folder in use: code %d, %q", code, stderr)
	}
}

// The plan is told without a change to the machine.
func TestImagesBuildPlan(t *testing.T) {
	memory(t)
	dir := filepath.Join(t.TempDir(), "engine")
	code, stdout, stderr := run(t, "", "images", "build", "--plan", "--private", "--engine-dir", dir)
	if stdout != "" {
		t.Errorf("stdout %q", stdout)
	}
	switch code {
	case ExitOK:
		for _, want := range []string{"what will be done", dir, "ladder-driver"} {
			if !strings.Contains(stderr, want) {
				t.Errorf("no %q in\n%s", want, stderr)
			}
		}
	case ExitFailed: // a machine on which there is no way
		if !strings.Contains(stderr, "What helps") {
			t.Errorf("stderr %q", stderr)
		}
	default:
		t.Errorf("code %d, %q", code, stderr)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder was made")
	}
}
