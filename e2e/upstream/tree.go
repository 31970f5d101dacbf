package upstream

// Files for an image's layer.

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// platform is what images made here run on.
func platform() (os, arch string) { return "linux", runtime.GOARCH }

// tree is a set of files in the order in which a layer has them: folders first.
type tree struct {
	headers []tar.Header
	content [][]byte
	seen    map[string]bool
}

// add puts a file in, and the folders above it that are missing. What is there
// already stays.
func (t *tree) add(h tar.Header, content []byte) {
	if t.seen == nil {
		t.seen = map[string]bool{".": true}
	}
	if t.seen[h.Name] {
		return
	}
	if dir := path.Dir(h.Name); !t.seen[dir] {
		t.folder(dir, 0o755)
	}
	t.seen[h.Name] = true
	h.Format, h.Size = tar.FormatPAX, int64(len(content))
	t.headers = append(t.headers, h)
	t.content = append(t.content, content)
}

func (t *tree) folder(name string, mode int64) {
	t.add(tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, nil)
}

func (t *tree) file(name string, mode int64, content []byte) {
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

func (t *tree) link(name, to string) {
	t.add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}, nil)
}

// layer packs the files. The same files give the same layer.
func (t *tree) layer() (v1.Layer, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for i := range t.headers {
		if err := w.WriteHeader(&t.headers[i]); err != nil {
			return nil, err
		}
		if _, err := w.Write(t.content[i]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	})
}

// busyboxTree is a root file system: BusyBox, a link to it for each of its
// programs, and what programs expect besides.
func busyboxTree(ctx context.Context, busybox string) (*tree, error) {
	said, err := exec.CommandContext(ctx, busybox, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("asking BusyBox for its programs, %w", explained(err))
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("reading BusyBox, %w", err)
	}
	t := &tree{}
	for _, dir := range []string{"bin", "etc", "root", "var"} {
		t.folder(dir, 0o755)
	}
	t.folder("tmp", 0o1777)
	t.file("bin/busybox", 0o755, program)
	for _, applet := range strings.Fields(string(said)) {
		t.link(strings.TrimPrefix(path.Clean("/"+applet), "/"), "/bin/busybox")
	}
	t.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	t.file("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	return t, nil
}
