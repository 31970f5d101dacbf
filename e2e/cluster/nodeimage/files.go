package nodeimage

// The file system of the image in its first state: the root file system, kind's
// files, the programs.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// file is one file of the image. Either content or source is given.
type file struct {
	path    string
	mode    int64
	content []byte
	source  string
}

// places says in which folder of a node each program lies: where kind, kubelet
// and containerd look for it.
var places = map[string]string{
	binaries.Kubelet: "usr/bin", binaries.Kubeadm: "usr/bin", binaries.Kubectl: "usr/bin",
	binaries.Containerd: "usr/local/bin", binaries.Shim: "usr/local/bin", binaries.Ctr: "usr/local/bin", binaries.Crictl: "usr/local/bin",
	binaries.Runc:      "usr/local/sbin",
	binaries.HostLocal: "opt/cni/bin", binaries.Loopback: "opt/cni/bin", binaries.PTP: "opt/cni/bin", binaries.Portmap: "opt/cni/bin",
}

// setupPath is where the script that completes the image lies while it runs.
const setupPath = "kind/ladder-setup.sh"

// nodeFiles lists the files of a node: programs, kind's files from the given
// folder, and what kind expects to find.
func nodeFiles(kind string, programs *binaries.Set, sandbox string) ([]file, error) {
	files, err := kindFiles(kind)
	if err != nil {
		return nil, err
	}
	for i := range files {
		if files[i].path != "etc/containerd/config.toml" {
			continue
		}
		config, err := os.ReadFile(files[i].source)
		if err != nil {
			return nil, fmt.Errorf("reading kind's files, %w", err)
		}
		if files[i].content, err = withSandbox(config, sandbox); err != nil {
			return nil, err
		}
	}
	for _, name := range binaries.Node() {
		if dir, ok := places[name]; ok {
			files = append(files, file{path: path.Join(dir, name), mode: 0o755, source: programs.Path(name)})
		}
	}
	return append(files,
		file{path: "kind/version", mode: 0o644, content: []byte(binaries.KubernetesVersion)},
		file{path: "kind/manifests/", mode: 0o755},
		file{path: "etc/kubernetes/manifests/", mode: 0o755},
		file{path: setupPath, mode: 0o755, content: setupScript},
	), nil
}

// kindFiles lists the files of the module's folder with the modes that kind
// gives them: programs may be run, all else only read.
func kindFiles(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), mode: 0o644, source: at}
		if strings.HasPrefix(f.path, "usr/local/bin/") || strings.HasPrefix(f.path, "kind/bin/") {
			f.mode = 0o755
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading kind's files, %w", err)
	}
	return files, nil
}

var sandboxPattern = regexp.MustCompile(`(?m)^(\s*sandbox_image\s*=\s*)"[^"]*"`)

// withSandbox makes containerd hold pods with the image that kubeadm asks for,
// which is the one that is baked in.
func withSandbox(config []byte, image string) ([]byte, error) {
	if n := len(sandboxPattern.FindAll(config, -1)); n != 1 {
		return nil, fmt.Errorf("setting the image that holds pods, containerd's config names it %d times and not once", n)
	}
	return sandboxPattern.ReplaceAll(config, []byte(`${1}"`+image+`"`)), nil
}

// writeFileSystem writes a tar of the root file system with the files on top.
func writeFileSystem(w io.Writer, root string, files []file) error {
	archive, err := os.Open(root)
	if err != nil {
		return err
	}
	defer archive.Close()
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("reading %s, %w", root, err)
	}
	from, to := tar.NewReader(unzipped), tar.NewWriter(w)
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading %s, %w", root, err)
		}
		if err := to.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := f.write(to); err != nil {
			return fmt.Errorf("adding %s, %w", f.path, err)
		}
	}
	return to.Close()
}

func (f file) write(to *tar.Writer) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content))}
	if strings.HasSuffix(f.path, "/") {
		header.Typeflag = tar.TypeDir
		return to.WriteHeader(header)
	}
	content := io.Reader(bytes.NewReader(f.content))
	if f.content == nil {
		source, err := os.Open(f.source)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), source
	}
	if err := to.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(to, content)
	return err
}
