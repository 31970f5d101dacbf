package upstream

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	reference "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestSubstitutesAreChosenByName(t *testing.T) {
	names := []string{
		"r.test/a/busybox:1", "r.test/busybox:2", "r.test/a/busybox:1", "r.test/pause:3", "r.test/hostpathplugin:v1.17.1",
		"r.test/sample-device-plugin:1.8.0", "r.test/notbusybox:1",
	}
	chosen, err := substitutes(names)
	if err != nil || len(chosen) != 3 || !slices.Equal(chosen["busybox"], names[:2]) || len(chosen["hostpathplugin"]) != 1 {
		t.Errorf("substitutes = %v, %v", chosen, err)
	}
	if _, err := substitutes(names[:4]); err == nil || !strings.Contains(err.Error(), "hostpathplugin") {
		t.Errorf("without hostpathplugin: %v", err)
	}
}

// fakeBusyBox is a program that only lists programs.
func fakeBusyBox(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nprintf 'bin/sh\\nbin/busybox\\nusr/bin/env\\n../out\\n'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTreeOfBusyBox(t *testing.T) {
	tree, err := busyboxTree(t.Context(), fakeBusyBox(t))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]tar.Header{}
	for i, h := range tree.headers {
		if dir := path.Dir(h.Name); dir != "." && found[dir].Typeflag != tar.TypeDir {
			t.Errorf("%s comes before its folder", h.Name)
		}
		if int64(len(tree.content[i])) != h.Size {
			t.Errorf("%s: size %d of %d bytes", h.Name, h.Size, len(tree.content[i]))
		}
		found[h.Name] = h
	}
	for _, link := range []string{"bin/sh", "usr/bin/env", "out"} {
		if h := found[link]; h.Typeflag != tar.TypeSymlink || h.Linkname != "/bin/busybox" {
			t.Errorf("%s is %+v", link, h)
		}
	}
	if h := found["bin/busybox"]; h.Typeflag != tar.TypeReg || h.Mode != 0o755 {
		t.Errorf("bin/busybox is %+v", h)
	}
	if h := found["tmp"]; h.Typeflag != tar.TypeDir || h.Mode != 0o1777 {
		t.Errorf("tmp is %+v", h)
	}
}

func TestStaticPrograms(t *testing.T) {
	shell, err := exec.LookPath("ls")
	if err != nil {
		t.Skip(err)
	}
	if static(shell) {
		t.Errorf("%s is taken for a static program", shell)
	}
	if static(fakeBusyBox(t)) {
		t.Error("a script is taken for a program")
	}
	if static(filepath.Join(t.TempDir(), "none")) {
		t.Error("nothing is taken for a program")
	}
}

func TestPackedImages(t *testing.T) {
	busybox := fakeBusyBox(t)
	names := []string{"r.test/busybox:1", "r.test/busybox:2", "r.test/hostpathplugin:v1", "r.test/sample-device-plugin:1.7"}
	chosen, err := substitutes(names)
	if err != nil {
		t.Fatal(err)
	}
	files, err := busyboxTree(t.Context(), busybox)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "images.tar")
	made, err := pack(chosen, files, func(string) string { return busybox }, archive)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 4 || !strings.HasPrefix(made[0].String(), "`busybox:1`: ") {
		t.Errorf("made %v", made)
	}
	for name, want := range map[string]struct {
		layers     int
		entrypoint []string
	}{
		names[0]: {1, nil}, names[1]: {1, nil}, names[2]: {2, []string{"/hostpathplugin"}},
		names[3]: {2, []string{"/sampledeviceplugin", "-alsologtostderr"}},
	} {
		tag, err := reference.NewTag(name)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != want.layers {
			t.Errorf("%s: %d layers, %v", name, len(layers), err)
		}
		config, err := image.ConfigFile()
		if err != nil || !slices.Equal(config.Config.Entrypoint, want.entrypoint) || config.OS != "linux" || config.Architecture == "" {
			t.Errorf("%s: config %+v, %v", name, config, err)
		}
	}
	if _, err := pack(chosen, files, func(string) string { return "/none" }, archive); err == nil {
		t.Error("a program that is missing does not matter")
	}
}

// The package of the distribution is used where it can be had.
func TestFindBusyBox(t *testing.T) {
	if testing.Short() {
		t.Skip("it may fetch a package")
	}
	var told bytes.Buffer
	path, err := findBusyBox(t.Context(), t.TempDir(), &told)
	if errors.Is(err, ErrNoBusyBox) {
		t.Skip(err)
	}
	if err != nil || !static(path) {
		t.Fatalf("findBusyBox = %s, %v", path, err)
	}
	files, err := busyboxTree(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	// What the suite's Pods and its driver call.
	for _, name := range []string{"sh", "sleep", "cat", "base64", "mv", "rm", "ls", "mkdir", "env", "true", "false"} {
		if !slices.ContainsFunc([]string{"bin/", "usr/bin/", "sbin/", "usr/sbin/"}, func(dir string) bool { return files.seen[dir+name] }) {
			t.Errorf("%s is missing", name)
		}
	}
	if _, err := findBusyBox(t.Context(), filepath.Join(t.TempDir(), "none"), io.Discard); err == nil && told.Len() > 0 {
		t.Error("a folder that is not there does not matter")
	}
}
