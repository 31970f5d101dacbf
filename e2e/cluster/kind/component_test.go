package kind

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func testCluster() *Cluster {
	return &Cluster{
		state:   State{Name: "lab", Nodes: statesOf(Options{Name: "lab", Nodes: DefaultNodes()[:2]})},
		stopped: map[string]bool{},
	}
}

func TestComponents(t *testing.T) {
	want := []string{
		"containerd@lab-control-plane", "containerd@lab-worker", "etcd@lab-control-plane", "kube-apiserver@lab-control-plane",
		"kube-controller-manager@lab-control-plane", "kube-scheduler@lab-control-plane", "kubelet@lab-control-plane",
		"kubelet@lab-worker", "node@lab-control-plane", "node@lab-worker",
	}
	if got := testCluster().Components(); !slices.Equal(got, want) {
		t.Errorf("components = %q, want %q", got, want)
	}
	for _, name := range want {
		part, _, _ := strings.Cut(name, "@")
		if _, probed := probes[part]; !probed && part != whole {
			t.Errorf("%s has no probe", name)
		}
	}
}

func TestUnknownComponentsAreRefused(t *testing.T) {
	c := testCluster()
	for _, name := range []string{"", "kubelet", "kubelet@other", "etcd@lab-worker"} {
		for what, err := range map[string]error{"Kill": c.Kill(t.Context(), name), "Restart": c.Restart(t.Context(), name)} {
			if err == nil || !strings.Contains(err.Error(), "not known") {
				t.Errorf("%s(%q) = %v", what, name, err)
			}
		}
	}
	if _, err := c.Exec(t.Context(), "other", "true"); err == nil || !strings.Contains(err.Error(), "no node other") {
		t.Errorf("Exec on another node: %v", err)
	}
	if _, err := c.Exec(t.Context(), "lab-worker"); err == nil {
		t.Error("Exec of nothing succeeds")
	}
}

// The scripts are run as they are, with folders and programs of the test in
// place of the node's.
func runScript(t *testing.T, dir, script string) string {
	t.Helper()
	for _, path := range []string{manifests, parked, "/run/systemd/"} {
		script = strings.ReplaceAll(script, path, filepath.Join(dir, path)+"/")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "DIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, script)
	}
	called, err := os.ReadFile(filepath.Join(dir, "called"))
	if err != nil {
		return ""
	}
	return string(called)
}

func fake(t *testing.T, dir, program, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	content := "#!/bin/sh\necho " + program + " \"$@\" >>$DIR/called\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "bin", program), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestKillingAndRestartingAUnit(t *testing.T) {
	dir := t.TempDir()
	fake(t, dir, "systemctl", `[ "$1" != is-active ]`)
	called := runScript(t, dir, killUnit(kubelet))
	drop := filepath.Join(dir, dropIn(kubelet))
	content, err := os.ReadFile(drop)
	if err != nil || string(content) != "[Service]\nRestart=no\n" {
		t.Errorf("the drop-in is %q, %v", content, err)
	}
	if !strings.Contains(called, "systemctl kill --kill-whom=main --signal=KILL kubelet.service") ||
		strings.Index(called, "daemon-reload") > strings.Index(called, "kill") {
		t.Errorf("calls:\n%s", called)
	}
	called = runScript(t, dir, restartUnit(kubelet))
	if _, err := os.Stat(drop); err == nil {
		t.Error("the drop-in is still there")
	}
	if !strings.HasSuffix(called, "systemctl daemon-reload\nsystemctl restart kubelet.service\n") {
		t.Errorf("calls:\n%s", called)
	}
}

func TestKillingAndRestartingAStaticPod(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, manifests), 0o755); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(dir, manifests, "kube-scheduler.yaml")
	if err := os.WriteFile(manifest, []byte("pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	fake(t, dir, "crictl", `case $1 in ps) [ -e $DIR/running ] && echo container;; inspect) echo `+strconv.Itoa(victim.Process.Pid)+`;; esac; true`)
	if err := os.WriteFile(filepath.Join(dir, "running"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	called := runScript(t, dir, killStaticPod("kube-scheduler"))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v", err)
	}
	if _, err := os.Stat(manifest); err == nil {
		t.Error("kubelet would start it again: its file is still there")
	}
	if !strings.Contains(called, "--name=^kube-scheduler$") {
		t.Errorf("calls:\n%s", called)
	}
	if err := os.Remove(filepath.Join(dir, "running")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // from down, and from running
		runScript(t, dir, restartStaticPod("kube-scheduler"))
		if content, err := os.ReadFile(manifest); err != nil || string(content) != "pod" {
			t.Errorf("the file is %q, %v", content, err)
		}
	}
}
