package dockertest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// script is a docker client whose daemon has nodes of kind as files,
// $FAKE_DOCKER/nodes/CLUSTER/NODE, and does not answer while $FAKE_DOCKER/down
// exists.
const script = `#!/bin/sh
if [ "$1" = --version ]; then echo "Docker version 28.0.0, build x"; exit; fi
echo "$DOCKER_HOST $1" >>"$FAKE_DOCKER/called"
if [ -e "$FAKE_DOCKER/down" ]; then echo "Cannot connect to the Docker daemon" >&2; exit 1; fi
case "$1" in
version) echo 28.0.0 ;;
ps)
	for arg; do
		case "$arg" in label=io.x-k8s.kind.cluster=*) ls "$FAKE_DOCKER/nodes/${arg##*=}" 2>/dev/null ;; esac
	done ;;
rm)
	for arg; do
		case "$arg" in rm|-*) ;; *) rm -f "$FAKE_DOCKER"/nodes/*/"$arg" ;; esac
	done ;;
esac
true
`

// Fake is a Docker daemon that is none: it has names of nodes, and no more.
type Fake struct {
	t   *testing.T
	dir string
}

// NewFake puts the client of such a daemon first on the PATH, with no variable
// that chooses another daemon, until the test ends.
func NewFake(t *testing.T) *Fake {
	t.Helper()
	f := &Fake{t: t, dir: t.TempDir()}
	bin := t.TempDir()
	f.write(filepath.Join(bin, "docker"), script, 0o755)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("FAKE_DOCKER", f.dir)
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(name, "") // puts the value back at the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *Fake) write(path, content string, mode os.FileMode) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		f.t.Fatal(err)
	}
}

// Add gives the daemon nodes of a cluster.
func (f *Fake) Add(cluster string, nodes ...string) {
	f.t.Helper()
	for _, node := range nodes {
		f.write(filepath.Join(f.dir, "nodes", cluster, node), "", 0o600)
	}
}

// Nodes are the nodes that the daemon has, sorted.
func (f *Fake) Nodes() []string {
	f.t.Helper()
	found, err := filepath.Glob(filepath.Join(f.dir, "nodes", "*", "*"))
	if err != nil {
		f.t.Fatal(err)
	}
	names := make([]string, 0, len(found))
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}

// Stop makes the daemon not answer.
func (f *Fake) Stop() { f.t.Helper(); f.write(filepath.Join(f.dir, "down"), "", 0o600) }

// Start makes it answer again.
func (f *Fake) Start() {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, "down")); err != nil {
		f.t.Fatal(err)
	}
}

// Hosts are the values of DOCKER_HOST with which the client was called, in
// order and each once in a row.
func (f *Fake) Hosts() []string {
	f.t.Helper()
	content, err := os.ReadFile(filepath.Join(f.dir, "called"))
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	var hosts []string
	for line := range strings.Lines(string(content)) {
		host, _, _ := strings.Cut(line, " ")
		hosts = append(hosts, host)
	}
	return slices.Compact(hosts)
}
