package nodeimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

func testRecipe() recipe {
	return recipe{
		distribution: "debian", suite: "bookworm", arch: "amd64",
		programs: map[string]string{"kubelet": "k1", "runc": "r1"},
		kind:     "h1:kind", pause: "p", setup: []byte("setup"),
	}
}

func TestTagCoversEverything(t *testing.T) {
	base := testRecipe()
	if base.image() != testRecipe().image() || !strings.HasPrefix(base.image(), "ladder/node:"+binaries.KubernetesVersion+"-") {
		t.Fatalf("image = %s", base.image())
	}
	for name, change := range map[string]func(*recipe){
		"distribution": func(r *recipe) { r.distribution = "ubuntu" },
		"suite":        func(r *recipe) { r.suite = "trixie" },
		"arch":         func(r *recipe) { r.arch = "arm64" },
		"program":      func(r *recipe) { r.programs = map[string]string{"kubelet": "k1", "runc": "r2"} },
		"kind":         func(r *recipe) { r.kind = "h1:other" },
		"pause":        func(r *recipe) { r.pause = "q" },
		"setup":        func(r *recipe) { r.setup = []byte("setup2") },
	} {
		r := testRecipe()
		change(&r)
		if r.image() == base.image() || r.base() == base.base() {
			t.Errorf("%s makes no other image", name)
		}
		// The root file system depends on the distribution alone.
		if same := r.rootArchive() == base.rootArchive(); same != slices.Contains([]string{"program", "kind", "pause", "setup"}, name) {
			t.Errorf("%s: the same root file system is %t", name, same)
		}
	}
}

func TestParseRelease(t *testing.T) {
	distribution, suite := parseRelease([]byte("PRETTY_NAME=\"Ubuntu 24.04\"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=\"noble\"\n"))
	if distribution != "ubuntu" || suite != "noble" {
		t.Errorf("got %q, %q", distribution, suite)
	}
}

func TestBootstrapArgs(t *testing.T) {
	r := testRecipe()
	args := bootstrapArgs(r, "/x", "")
	if !slices.Equal(args[len(args)-2:], []string{"bookworm", "/x"}) || !strings.Contains(args[1], "systemd,conntrack") {
		t.Errorf("args = %q", args)
	}
	r.distribution, r.suite = "ubuntu", "noble"
	args = bootstrapArgs(r, "/x", "http://mirror.example/ubuntu")
	if !slices.Contains(args, "--components=main,universe") || args[len(args)-1] != "http://mirror.example/ubuntu" {
		t.Errorf("args = %q", args)
	}
}

func TestRootOfAnotherDistribution(t *testing.T) {
	m := &maker{Options: Options{Progress: io.Discard}, recipe: testRecipe(), cache: t.TempDir()}
	m.recipe.distribution = "fedora"
	if _, err := m.root(t.Context()); !errors.Is(err, errNoSuite) {
		t.Errorf("root = %v", err)
	}
	path := filepath.Join(m.cache, m.recipe.rootArchive())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := m.root(t.Context()); err != nil || got != path {
		t.Errorf("root = %s, %v although the cache has it", got, err)
	}
}

// rootTar packs a small root file system by the real tar.
func rootTar(t *testing.T) string {
	t.Helper()
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "root.tar.gz")
	for path, content := range map[string]string{
		"etc/os-release": "ID=debian", "usr/bin/iptables": "#!", "usr/share/doc/x/copyright": "long",
		"proc/1/status": "x", "etc/containerd/config.toml": "of the distribution", "var/log/old.log": "x", "srv/var/log/kept": "x",
	} {
		at := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "tar", archiveArgs(dir, target)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return target
}

// contents reads a tar; of files that appear twice the last counts.
func contents(t *testing.T, r io.Reader) (files map[string]string, modes map[string]int64) {
	t.Helper()
	files, modes = map[string]string{}, map[string]int64{}
	for tr := tar.NewReader(r); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(header.Name, "./")
		files[name], modes[name] = string(content), header.Mode
	}
}

func TestArchiveLeavesOutWhatANodeDoesWithout(t *testing.T) {
	f, err := os.Open(rootTar(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := contents(t, unzipped)
	for _, name := range []string{"proc/", "var/log/", "usr/share/doc/", "etc/os-release", "srv/var/log/kept"} {
		if _, found := files[name]; !found {
			t.Errorf("%s is missing", name)
		}
	}
	for _, name := range []string{"proc/1/status", "var/log/old.log", "usr/share/doc/x/copyright"} {
		if _, found := files[name]; found {
			t.Errorf("%s is there", name)
		}
	}
}

func TestFilesLieOnTheRootFileSystem(t *testing.T) {
	kind := t.TempDir()
	for path, content := range map[string]string{
		"etc/containerd/config.toml": "a = 1\n  sandbox_image = \"old/pause:1\"\n", "usr/local/bin/entrypoint": "#!", "kind/bin/hook.sh": "#!", "kind/README": "x",
	} {
		at := filepath.Join(kind, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := nodeFiles(kind, &binaries.Set{}, "new/pause:2")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("elf"), 0o600); err != nil {
		t.Fatal(err)
	}
	placed := 0
	for i := range files {
		if files[i].content == nil && files[i].source == "" && !strings.HasSuffix(files[i].path, "/") {
			files[i].source = program // the set of the test has no programs
			placed++
		}
	}
	if placed != len(places) {
		t.Errorf("%d programs are placed, %d have a place", placed, len(places))
	}
	var b bytes.Buffer
	if err := writeFileSystem(&b, rootTar(t), files); err != nil {
		t.Fatal(err)
	}
	found, modes := contents(t, &b)
	for name, want := range map[string]string{
		"etc/os-release":             "ID=debian",
		"etc/containerd/config.toml": "a = 1\n  sandbox_image = \"new/pause:2\"\n",
		"usr/bin/kubelet":            "elf", "opt/cni/bin/ptp": "elf", "usr/local/sbin/runc": "elf",
		"kind/version":    binaries.KubernetesVersion,
		"kind/manifests/": "", setupPath: string(setupScript),
	} {
		if got, ok := found[name]; !ok || got != want {
			t.Errorf("%s = %q, %t", name, got, ok)
		}
	}
	for name, want := range map[string]int64{"usr/local/bin/entrypoint": 0o755, "kind/bin/hook.sh": 0o755, "kind/README": 0o644, "usr/bin/kubelet": 0o755} {
		if modes[name] != want {
			t.Errorf("%s has mode %o, want %o", name, modes[name], want)
		}
	}
	files = append(files, file{path: "missing", source: "/no/such/file"})
	if err := writeFileSystem(io.Discard, rootTar(t), files); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestSandboxMustBeNamedOnce(t *testing.T) {
	for _, config := range []string{"", "sandbox_image = \"a\"\nsandbox_image = \"b\"\n"} {
		if got, err := withSandbox([]byte(config), "x"); err == nil {
			t.Errorf("%q became %q", config, got)
		}
	}
}

// What the pinned module of kind says is what the recipe relies on.
func TestKindsFilesAreWhatTheRecipeExpects(t *testing.T) {
	dir, err := kindDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, err := nodeFiles(dir, &binaries.Set{}, "x/pause:1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"usr/local/bin/entrypoint", "kind/bin/mount-product-files.sh", "etc/containerd/config.toml", "etc/crictl.yaml",
		"etc/systemd/system/kubelet.service", "etc/systemd/system/containerd.service", "etc/systemd/system/undo-mount-hacks.service",
	}
	for _, path := range want {
		if !slices.ContainsFunc(files, func(f file) bool { return f.path == path }) {
			t.Errorf("%s is missing", path)
		}
	}
}

const kubeadmList = `registry.example/kube-apiserver:v1
registry.example/kube-controller-manager:v1
registry.example/kube-scheduler:v1
registry.example/kube-proxy:v1
registry.example/coredns/coredns:v2
registry.example/pause:3
registry.example/etcd:4
`

func TestPodImages(t *testing.T) {
	images, err := podImages(kubeadmList)
	if err != nil || len(images) != 7 {
		t.Fatalf("images = %v, %v", images, err)
	}
	if images[4] != (podImage{"registry.example/coredns/coredns:v2", "coredns"}) || sandbox(images) != "registry.example/pause:3" {
		t.Errorf("images = %v, sandbox %s", images, sandbox(images))
	}
	for name, list := range map[string]string{
		"unknown":      kubeadmList + "registry.example/new-thing:v1\n",
		"none of etcd": strings.ReplaceAll(kubeadmList, "registry.example/etcd:4\n", ""),
		"without tag":  kubeadmList + "registry.example/etcd\n",
	} {
		if _, err := podImages(list); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestImageOfOneProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	for _, size := range []int{0, 511, 512, 70000} {
		if err := os.WriteFile(program, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{binaries.Etcd, binaries.KubeProxy} {
			path, err := podImage{"registry.example/" + name + ":1", name}.write(dir, program, rootTar(t), "arm64")
			if err != nil {
				t.Fatal(err)
			}
			image, err := tarball.ImageFromPath(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigFile()
			if err != nil || config.Architecture != "arm64" || config.Config.Entrypoint[0] != "/usr/local/bin/"+name {
				t.Errorf("config = %+v, %v", config, err)
			}
			layers, err := image.Layers()
			if err != nil || len(layers) != map[string]int{binaries.Etcd: 1, binaries.KubeProxy: 2}[name] {
				t.Fatalf("%s has %d layers, %v", name, len(layers), err)
			}
			content, err := layers[len(layers)-1].Uncompressed()
			if err != nil {
				t.Fatal(err)
			}
			files, modes := contents(t, content)
			if len(files["usr/local/bin/"+name]) != size || modes["usr/local/bin/"+name] != 0o755 {
				t.Errorf("%s holds %d bytes with mode %o", name, len(files["usr/local/bin/"+name]), modes["usr/local/bin/"+name])
			}
		}
	}
}
