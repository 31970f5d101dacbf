package nodeimage

import (
	"compress/gzip"
	"os"
	"strings"
	"testing"
)

// A root file system by the real debootstrap takes a minute and the packages of
// a mirror, so this runs only where LADDER_KIND is set.
func TestARealRootFileSystem(t *testing.T) {
	if os.Getenv("LADDER_KIND") == "" {
		t.Skip("LADDER_KIND is not set")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can run debootstrap")
	}
	r, err := currentRecipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	m := &maker{Options: Options{Progress: &said}, recipe: r, cache: t.TempDir()}
	path, err := m.root(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := contents(t, unzipped)
	// What kind's entry point, kubelet and kube-proxy call.
	for _, name := range []string{
		"usr/lib/systemd/systemd", "usr/sbin/iptables", "usr/sbin/conntrack", "usr/sbin/nft", "usr/sbin/ip", "usr/bin/findmnt", "usr/bin/jq",
		"usr/bin/hostname", "usr/bin/curl", "usr/bin/pgrep",
	} {
		alternative := strings.TrimPrefix(name, "usr/")
		_, here := files[name]
		_, there := files[alternative]
		if !here && !there {
			t.Errorf("%s is missing", name)
		}
	}
	left, err := os.ReadDir(m.cache)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, %v, want the archive alone", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), m.cache) {
		t.Errorf("mounts are left below %s, %v", m.cache, err)
	}
}
