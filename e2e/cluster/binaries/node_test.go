package binaries

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNodeNamesKnownPrograms(t *testing.T) {
	for _, name := range Node() {
		if _, err := lookup(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range ControlPlane() {
		if slices.ContainsFunc(node, func(p program) bool { return p.name == name }) {
			t.Errorf("a test against a bare API server would build %s", name)
		}
	}
}

func TestWhatCNeedsIsInstalledFirst(t *testing.T) {
	p := fakeProgram
	p.cgo, p.packages = true, []string{"libseccomp-dev"}
	f := &fakeGo{content: "program"}
	b := newBuilder(t, f)
	var asked []string
	b.install = func(_ context.Context, packages ...string) error {
		asked = append(asked, packages...)
		if f.builds.Load() != 0 {
			t.Error("the packages come after the build")
		}
		return nil
	}
	if _, err := b.cached(t.Context(), p); err != nil || !slices.Equal(asked, []string{"libseccomp-dev"}) {
		t.Errorf("asked for %v, %v", asked, err)
	}
	if _, err := b.cached(t.Context(), p); err != nil || len(asked) != 1 {
		t.Errorf("asked for %v, %v although the program is there", asked, err)
	}
}

func TestWithoutTheLibraryNothingIsBuilt(t *testing.T) {
	p := fakeProgram
	p.cgo, p.packages = true, []string{"libseccomp-dev"}
	f := &fakeGo{content: "program"}
	b := newBuilder(t, f)
	missing := errors.New("only root can install it")
	b.install = func(context.Context, ...string) error { return missing }
	if _, err := b.cached(t.Context(), p); !errors.Is(err, missing) || f.builds.Load() != 0 {
		t.Errorf("error = %v after %d builds", err, f.builds.Load())
	}
}

func TestEnvironmentOfABuild(t *testing.T) {
	t.Setenv("CGO_ENABLED", "1")
	t.Setenv("GOFLAGS", "-mod=vendor")
	for cgo, want := range map[bool]string{false: "CGO_ENABLED=0", true: "CGO_ENABLED=1"} {
		env := moduleEnv(cgo)
		// The last one of a name counts.
		last := map[string]string{}
		for _, v := range env {
			name, _, _ := strings.Cut(v, "=")
			last[name] = v
		}
		if last["CGO_ENABLED"] != want || last["GOFLAGS"] != "GOFLAGS=" || last["GOWORK"] != "GOWORK=off" {
			t.Errorf("cgo %t: %q %q %q", cgo, last["CGO_ENABLED"], last["GOFLAGS"], last["GOWORK"])
		}
	}
}

func TestKeysTellProgramsOfModulesApart(t *testing.T) {
	keys, err := Keys(t.Context(), Kubelet, Kubeadm, Runc, Ctr, Pause)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 4 || keys[Kubelet] != keys[Kubeadm] || keys[Runc] == keys[Ctr] || !strings.Contains(keys[Kubelet], KubernetesVersion) {
		t.Errorf("keys = %v", keys)
	}
	if _, err := Keys(t.Context(), "no-such-program"); err == nil {
		t.Error("an unknown program has a key")
	}
}

func TestModuleSum(t *testing.T) {
	sum, err := ModuleSum(KindModule, KindVersion)
	if err != nil || !strings.HasPrefix(sum, "h1:") {
		t.Errorf("sum = %q, %v", sum, err)
	}
	if sum, err := ModuleSum(KindModule, "v0.0.1"); err == nil {
		t.Errorf("a version that is not pinned has the sum %q", sum)
	}
}

func TestModuleDirHoldsTheFilesOfANode(t *testing.T) {
	dir, err := ModuleDir(t.Context(), KindModule)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "images", "base", "files", "usr", "local", "bin", "entrypoint")); err != nil {
		t.Error(err)
	}
	if _, err := ModuleDir(t.Context(), "example.invalid/no/such/module"); err == nil {
		t.Error("a module that is not pinned is downloaded")
	}
}
