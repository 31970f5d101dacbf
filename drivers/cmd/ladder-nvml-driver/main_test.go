package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/fakenvml/fakenvmltest"
	"gpuladder.dev/ladder/drivers/nvml"
	"gpuladder.dev/ladder/drivers/publish/publishtest"
)

// machine is a driver root with simulated boards of a tier.
func machine(t *testing.T, tier string, gpus int) (root string, control fakenvml.Control) {
	t.Helper()
	board, err := fakenvml.Tier(tier)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	if _, err := fakenvml.InstallRoot(root, library, board, fakenvml.Machine{Name: "n", GPUs: gpus}); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, fakenvml.LibraryFolder())
	t.Setenv(fakenvml.DirVariable, folder)
	return root, fakenvml.Control{Dir: folder}
}

var library string

func TestMain(m *testing.M) { os.Exit(fakenvmltest.Main(m, &library)) }

func execute(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestList shows devices and troubles of a machine.
func TestList(t *testing.T) {
	root, control := machine(t, "h100", 2)
	if err := control.Remap(1, fakenvml.Remap{Pending: true}); err != nil {
		t.Fatal(err)
	}
	code, out, said := execute(t, "list", "--driver-root", root, "--nvml", library, "--sysfs", filepath.Join(root, "sys"), "--config", "")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, said)
	}
	var shown listing
	if err := yaml.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Devices) != 2 || *shown.Devices[0].Attributes["model"].StringValue != "H100" {
		t.Errorf("got %s", out)
	}
	if len(shown.Troubles) != 1 || shown.Troubles[0].Reason != "RowRemapPending" || shown.Troubles[0].Severity != "suspect" {
		t.Errorf("got troubles %v", shown.Troubles)
	}
	code, out, _ = execute(t, "list", "--driver-root", root, "--nvml", library, "--deny", strings.TrimPrefix(shown.Devices[0].Name, "gpu-")+"-")
	if code != exit.Usage {
		t.Errorf("a wrong address: exit code %d, %s", code, out)
	}
	code, out, said = execute(t, "list", "--driver-root", root, "--nvml", library, "--deny", *shown.Devices[0].Attributes["uuid"].StringValue)
	if code != 0 || strings.Contains(out, "name: "+shown.Devices[0].Name+"\n") || !strings.Contains(out, "name: "+shown.Devices[1].Name+"\n") {
		t.Errorf("exit code %d, %s%s", code, out, said)
	}
}

// TestListOfNone: a list that matches no GPU shows none, and warns of it.
func TestListOfNone(t *testing.T) {
	root, _ := machine(t, "h100", 1)
	args := []string{"list", "--driver-root", root, "--nvml", library, "--sysfs", filepath.Join(root, "sys")}
	code, out, said := execute(t, append(args, "--allow", "0000:fe:00.0")...)
	if code != 0 || !strings.HasPrefix(out, "devices: []\n") || said != "warning: no GPU matches gpus.allow, or --allow, that is not denied\n" {
		t.Errorf("exit code %d, %q, %q", code, out, said)
	}
	if code, _, said := execute(t, args...); code != 0 || said != "" {
		t.Errorf("without a list: exit code %d, %q", code, said)
	}
	if code, out, said := execute(t, append(args, "--deny", "0000:11:00.0")...); code != 0 || !strings.HasPrefix(out, "devices: []\n") || said != "" {
		t.Errorf("denied on purpose: exit code %d, %q, %q", code, out, said)
	}
}

// TestListOfNoProfile: a GPU that matches is no reason for a warning, also where
// none of its partitions is wanted.
func TestListOfNoProfile(t *testing.T) {
	root, _ := machine(t, "h100-mig", 1)
	config := filepath.Join(t.TempDir(), "policy.yaml")
	policy := "apiVersion: gpuladder.dev/v1alpha1\nkind: NVMLDriver\ngpus: {allow: [{model: H100}]}\npublish: {wholeMIG: false, profiles: [1g.5gb]}\n"
	if err := os.WriteFile(config, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, said := execute(t, "list", "--driver-root", root, "--nvml", library, "--sysfs", filepath.Join(root, "sys"), "--config", config)
	if code != 0 || !strings.HasPrefix(out, "devices: []\n") || said != "" {
		t.Errorf("exit code %d, %q, %q", code, out, said)
	}
}

// TestMistakes end before anything is opened.
func TestMistakes(t *testing.T) {
	config := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(config, []byte("kind: Other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no node": {"node", "--node-name", ""}, "no such file": {"list", "--config", config + ".not"}, "another kind": {"list", "--config", config},
		"no such command": {"publish"}, "an argument": {"list", "all"}, "an address": {"list", "--allow", "nowhere"},
		"a negative limit": {"list", "--call-limit", "-1s"}, "a negative period": {"node", "--node-name", "n", "--poll-period", "-1s"},
		"a part of a UUID": {"list", "--allow", "GPU-5a1c"},
	} {
		if code, out, said := execute(t, args...); code != exit.Usage || said == "" {
			t.Errorf("%s: exit code %d, %s%s", name, code, out, said)
		}
	}
	if code, _, said := execute(t, "list", "--sysfs", config+".not"); code != exit.Failed || !strings.Contains(said, "sysfs") {
		t.Errorf("no sysfs: exit code %d, %s", code, said)
	}
}

// TestNode publishes the machine's GPUs, and what is wrong with them.
func TestNode(t *testing.T) {
	root, control := machine(t, "l4", 2)
	folder, err := os.MkdirTemp("", "ladder") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	client := publishtest.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid"}})
	o := &nodeOptions{client: func(string) (kubernetes.Interface, error) { return client, nil }}
	flags := &cobra.Command{} // sets the defaults
	o.AddFlags(flags)
	o.hardware.addFlags(flags)
	o.Name, o.Plugins, o.Registrar = "n", filepath.Join(folder, "p"), filepath.Join(folder, "r")
	o.CDIFolder, o.BootIDFile, o.Metrics = filepath.Join(folder, "cdi"), filepath.Join(folder, "boot"), ""
	o.Health, o.Recovery = 20*time.Millisecond, 20*time.Millisecond
	o.hardware.roots.Driver, o.hardware.library, o.hardware.poll = root, library, 10*time.Millisecond
	for path, make := range map[string]func(string) error{
		o.BootIDFile: func(p string) error { return os.WriteFile(p, []byte("boot"), 0o600) },
		o.Registrar:  func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		if err := make(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx) }()
	published := func() (devices []string, taints int) {
		list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, slice := range list.Items {
			for _, device := range slice.Spec.Devices {
				devices = append(devices, device.Name)
				taints += len(device.Taints)
			}
		}
		slices.Sort(devices)
		return devices, taints
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
			select {
			case err := <-ended:
				t.Fatalf("it ended with %v", err)
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("in vain waited until %s", what)
			}
		}
	}
	wait("the GPUs are published", func() bool { devices, taints := published(); return len(devices) == 2 && taints == 0 })
	if err := control.Lost(0); err != nil {
		t.Fatal(err)
	}
	wait("the loss is published", func() bool { devices, taints := published(); return len(devices) == 2 && taints == 2 })
	if err := control.Restored(0); err != nil {
		t.Fatal(err)
	}
	wait("its end is published", func() bool { _, taints := published(); return taints == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Stat(memoryIn(o.DataFolder())); err != nil {
		t.Errorf("the GPUs are not remembered: %v", err)
	}
}

func TestMatches(t *testing.T) {
	got := matches([]string{"GPU-1", "0000:3b:00.0"})
	if want := []nvml.Match{{UUID: "GPU-1"}, {PCIAddress: "0000:3b:00.0"}}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
