package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	testingclock "k8s.io/utils/clock/testing"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/policies/fleet"
)

// call runs the program as a user does.
func call(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, errs.String()
}

// installed is the folder of the library of a new driver root, and the root.
func installed(t *testing.T, args ...string) (dir, root string) {
	t.Helper()
	root = t.TempDir()
	library := filepath.Join(t.TempDir(), fakenvml.LibraryName)
	if err := os.WriteFile(library, []byte("a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, said := call(t, append([]string{"install", "--root", root, "--library", library, "--machine", "m"}, args...)...)
	if code != 0 {
		t.Fatalf("install %v: %s", args, said)
	}
	return filepath.Join(root, fakenvml.LibraryFolder()), root
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestRoot: a driver root has what NVIDIA's tools look for.
func TestRoot(t *testing.T) {
	dir, root := installed(t, "--node-tier", "h100-mig", "--gpus", "2")
	if got := read(t, dir, "libnvidia-ml.so.1"); got != "a library" {
		t.Errorf("libnvidia-ml.so.1 holds %q", got)
	}
	if to, err := os.Readlink(filepath.Join(dir, "libcuda.so.1")); err != nil || to != "libcuda.so.580.105.08" {
		t.Errorf("libcuda.so.1 is %s, %v", to, err)
	}
	if got := read(t, root, "sys/bus/pci/devices/0000:12:00.0/numa_node"); got != "0\n" {
		t.Errorf("NUMA node is %q", got)
	}
	real, err := filepath.EvalSymlinks(filepath.Join(root, "sys/bus/pci/devices/0000:11:00.0"))
	if err != nil || !strings.Contains(real, "/pci0000:10/") {
		t.Errorf("the first GPU is at %s, %v", real, err)
	}
	minors := strings.Split(strings.TrimSpace(read(t, root, "proc/driver/nvidia-caps/mig-minors")), "\n")
	if len(minors) != 2+2*15*9 || !slices.Contains(minors, "gpu1/gi3/ci0/access 166") {
		t.Errorf("there are %d minors, the last is %s", len(minors), minors[len(minors)-1])
	}
	for _, node := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap166"} {
		if _, err := os.Stat(filepath.Join(root, "dev", node)); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(read(t, dir, "state"), "gpu 1 mig 1\n") {
		t.Error("MIG mode is off")
	}
}

// TestInstallingAgain keeps what has happened, unless the hardware is another.
func TestInstallingAgain(t *testing.T) {
	dir, root := installed(t, "--node-tier", "l4")
	again := func(args ...string) {
		t.Helper()
		args = append([]string{"install", "--root", root, "--library", filepath.Join(dir, "libnvidia-ml.so.1"), "--machine", "m"}, args...)
		if code, said := call(t, args...); code != 0 {
			t.Fatal(said)
		}
	}
	lost := func() bool { return strings.Contains(read(t, dir, "state"), "gpu 0 lost 1\n") }
	if code, said := call(t, "fault", "--dir", dir, "lost", "gpu-11-00"); code != 0 || !lost() {
		t.Fatalf("lost: %s", said)
	}
	again("--node-tier", "l4")
	if !lost() {
		t.Error("the GPU is found again by installing the same")
	}
	again("--node-tier", "l4", "--reset")
	if lost() {
		t.Error("the GPU is still lost after a reset")
	}
	_, _ = call(t, "fault", "--dir", dir, "lost", "0")
	again("--node-tier", "t4")
	if lost() {
		t.Error("a new board is lost")
	}
	if old, _ := filepath.Glob(filepath.Join(dir, "libcuda.so.580*")); len(old) > 0 {
		t.Errorf("the other driver's %v is still there", old)
	}
}

// TestNodesHaveWhatTheirLabelsSay, as with the fake driver.
func TestNodesHaveWhatTheirLabelsSay(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{tiers.LabelTier: "a10", tiers.LabelGPUs: "3"}}}
	o := &installOptions{node: "n1", client: func(string) (kubernetes.Interface, error) { return fake.NewClientset(node), nil }}
	board, machine, err := o.hardware(t.Context())
	if err != nil || board.Name != "NVIDIA A10" || machine.GPUs != 3 || machine.Name != "n1" {
		t.Errorf("got %s, %+v, %v", board.Name, machine, err)
	}
	o.node = "n2"
	if _, _, err := o.hardware(t.Context()); err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("a node that is not there: %v", err)
	}
}

// TestTiersAgree: the boards are those of the catalog of the fake driver, in all
// that both tell.
func TestTiersAgree(t *testing.T) {
	catalog := tiers.Default()
	for _, tier := range catalog.Names() {
		board, err := fakenvml.Tier(tier)
		if err != nil {
			t.Error(err)
			continue
		}
		choice, err := catalog.Choose(map[string]string{tiers.LabelTier: tier})
		if err != nil {
			t.Fatal(err)
		}
		pool, err := catalog.Pool("n", choice)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range fleet.Boards() {
			if b.ProductName != board.Name {
				continue
			}
			if b.Memory.Value() != int64(board.MemoryMiB<<20) || b.Architecture != board.Architecture || b.ComputeCapability != board.ComputeCapability || b.DriverVersion != board.DriverVersion {
				t.Errorf("%s: %+v, and %+v", tier, board, b)
			}
			profiles := fleet.MIGProfiles(b.Name)
			if len(profiles) != len(board.MIG) {
				t.Fatalf("%s has %d profiles, not %d", tier, len(board.MIG), len(profiles))
			}
			for i, p := range board.MIG {
				f := profiles[i]
				if p.Name != f.Name || p.ID != f.ID || int64(p.MemoryMiB) != f.MemoryMiB || int64(p.Multiprocessors) != f.Multiprocessors ||
					int64(p.CopyEngines) != f.CopyEngines || int64(p.Decoders) != f.Decoders || int64(p.JPEGEngines) != f.JPEGEngines ||
					int64(p.OFAEngines) != f.OFAEngines || p.Size != f.Size || !slices.Equal(p.Starts, f.Starts) {
					t.Errorf("%s: %+v, and %+v", tier, p, f)
				}
			}
		}
		// And the GPUs are in the same places.
		places := fakenvml.Machine{Name: "n", GPUs: choice.GPUs}.Places()
		for _, d := range pool.Devices {
			var index int
			if _, after, _ := strings.Cut(d.Name, "gpu-"); len(after) == 1 {
				index = int(after[0] - '0')
				if bus := *d.Attributes[fleet.AttributePCIBusID].StringValue; bus != places[index].BusID() {
					t.Errorf("%s: %s is at %s, not %s", tier, d.Name, bus, places[index].BusID())
				}
				if numa := *d.Attributes[fleet.AttributeNUMANode].IntValue; numa != int64(places[index].NUMANode) {
					t.Errorf("%s: %s is on NUMA node %d, not %d", tier, d.Name, numa, places[index].NUMANode)
				}
			}
		}
	}
}

func TestBadUse(t *testing.T) {
	dir, root := installed(t, "--node-tier", "h100", "--gpus", "1")
	for name, test := range map[string]struct {
		args string
		want string
	}{
		"no root":         {"install --node-tier l4", "--root is required"},
		"no hardware":     {"install --root " + root, "say one of --node-tier, --board and --node-name"},
		"two":             {"install --root " + root + " --node-tier l4 --board x", "say one of"},
		"unknown tier":    {"install --root " + root + " --node-tier l5", `there is no tier "l5"`},
		"no such board":   {"install --root " + root + " --board /none", "no such file"},
		"too many GPUs":   {"install --root " + filepath.Join(root, "new") + " --node-tier l4 --gpus 999", "1 to 16 GPUs"},
		"less than none":  {"install --root " + filepath.Join(root, "new") + " --node-tier l4 --gpus -1", "1 to 16 GPUs"},
		"no library":      {"install --root " + filepath.Join(root, "new") + " --node-tier l4 --library /none", "'ladder-fakenvml build FILE' makes one"},
		"no board":        {"fault --dir /none clear", "--dir, reading board"},
		"unknown number":  {"fault --dir " + dir + " set 0 foo 3", `there is no number of a GPU's state "foo"; there are compute_mode, dbe_aggregate,`},
		"unknown call":    {"fault --dir " + dir + " fail nosuchFunc 3", `there is no function of NVML "nosuchFunc"`},
		"hang unknown":    {"fault --dir " + dir + " hang nvmlNosuch 3s", `there is no function of NVML "nvmlNosuch"`},
		"unknown action":  {"fault --dir " + dir + " recovery 0 9", `there is no recovery action "9"; there are 0, 1, 2, 3, 4`},
		"unknown link":    {"fault --dir " + dir + " nvlink 0 99 up", `there is no link "99"`},
		"serve nothing":   {"serve --dir /none --socket " + filepath.Join(root, "s"), "--dir, reading board"},
		"no folder":       {"fault lost 0", "--dir or --root is required"},
		"two folders":     {"fault --dir " + dir + " --root " + root + " lost 0", "say one of --dir and --root"},
		"an empty root":   {"fault --root " + t.TempDir() + " lost 0", "--root, looking for boards in"},
		"serve no folder": {"serve --socket " + filepath.Join(root, "s"), "--dir or --root is required"},
		"unknown GPU":     {"fault --dir " + dir + " lost 1", `there is no GPU "1"; there are gpu-11-00`},
		"no code":         {"fault --dir " + dir + " xid 0 x", `"x" must be a number`},
		"no duration":     {"fault --dir " + dir + " hang nvmlInit 5", "must be a time"},
		"no return":       {"fault --dir " + dir + " fail nvmlInit 1000", "must be the number of an nvmlReturn_t"},
		"no state":        {"fault --dir " + dir + " remap 0 x", "must be none, pending or failure"},
		"link":            {"fault --dir " + dir + " nvlink 0 1 sideways", "must be up or down"},
		"serve without":   {"serve --dir " + dir, "--socket is required"},
		"unknown command": {"dance", "unknown command"},
	} {
		t.Setenv(fakenvml.DirVariable, "")
		if code, said := call(t, strings.Fields(test.args)...); code != 2 || !strings.Contains(said, test.want) {
			t.Errorf("%s: ended with %d, said %q", name, code, said)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a driver root without a library is there: %v", err)
	}
	if text := read(t, dir, "state"); strings.Contains(text, "foo") || strings.Contains(text, "fail") {
		t.Errorf("the state has what was refused: %s", text)
	}
}

// TestHappenings: each command is in the state that the library reads.
func TestHappenings(t *testing.T) {
	dir, _ := installed(t, "--node-tier", "h100", "--gpus", "2")
	for args, want := range map[string]string{
		"xid 1 48":                      "event 1 1 8 48 - -",
		"lost 1":                        "gpu 1 lost 1",
		"vanish 0000:12:00.0":           "gpu 1 vanished 1",
		"recovery gpu-12-00 2":          "gpu 1 recovery_action 2",
		"single-bit 0 3":                "gpu 0 sbe_volatile 3",
		"double-bit 0 2":                "gpu 0 dbe_aggregate 2",
		"sram 0 1":                      "gpu 0 sram_volatile 1",
		"remap 0 pending":               "gpu 0 remap_pending 1",
		"nvlink 0 4 down":               "gpu 0 links_down 16",
		"set 0 temperature 90":          "gpu 0 temperature 90",
		"hang nvmlDeviceGetName 1.5s 1": "hang nvmlDeviceGetName 1 1500",
		"fail nvmlDeviceGetUUID 999":    "fail nvmlDeviceGetUUID - 999",
		"unload":                        "unloaded 1",
		"restored 1":                    "",
		"reappear 1":                    "",
		"reset 1":                       "",
		"load":                          "",
		"clear":                         "",
		"reboot":                        "",
	} {
		if code, said := call(t, "fault", "--dir", dir, "reboot"); code != 0 {
			t.Fatal(said)
		}
		_, _ = call(t, "fault", "--dir", dir, "clear")
		if err := os.Remove(filepath.Join(dir, "state")); err != nil {
			t.Fatal(err)
		}
		if code, said := call(t, append([]string{"fault", "--dir", dir}, strings.Fields(args)...)...); code != 0 {
			t.Errorf("%s: %s", args, said)
			continue
		}
		if lines := strings.Split(read(t, dir, "state"), "\n"); want != "" && !slices.Contains(lines, want) {
			t.Errorf("%s: the state is %q, want %s", args, lines, want)
		}
	}
}

// TestServe: the protocol of `ladder fault` reaches the hardware.
func TestServe(t *testing.T) {
	dir, root := installed(t, "--node-tier", "h100-mig", "--gpus", "2")
	// As on a machine of another architecture.
	other := filepath.Join(root, "usr/lib/other-linux-gnu")
	if err := os.Rename(dir, other); err != nil {
		t.Fatal(err)
	}
	dir = other
	socket := filepath.Join(dir, "s")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		var out bytes.Buffer
		ended <- run(ctx, []string{"serve", "--root", root, "--socket", socket}, &out, &out)
	}()
	client := fault.NewClient(socket)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := client.List(ctx); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	made, err := client.Inject(ctx, fault.Spec{Kind: fault.Lost, Device: "gpu-12-00-mig-3g40gb-9-0"})
	if err != nil || !strings.Contains(read(t, dir, "state"), "gpu 1 lost 1\n") {
		t.Errorf("got %v, %v", made, err)
	}
	if _, err := client.Clear(ctx, fault.Selector{ID: made.ID}); err != nil || strings.Contains(read(t, dir, "state"), "lost") {
		t.Errorf("after clearing: %v", err)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

func TestFaultsOfBoards(t *testing.T) {
	dir, _ := installed(t, "--node-tier", "h100", "--gpus", "2")
	b := newBoards(dir, testingclock.NewFakePassiveClock(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)))
	inject := func(spec fault.Spec) fault.Fault {
		t.Helper()
		made, err := b.Inject(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	has := func(line string) bool { return slices.Contains(strings.Split(read(t, dir, "state"), "\n"), line) }
	inject(fault.Spec{Kind: fault.XID, Device: "gpu-11-00", Code: 31})
	if !has("event 1 0 8 31 - -") || has("gpu 0 recovery_action 1") {
		t.Errorf("an application's XID: %s", read(t, dir, "state"))
	}
	reset := inject(fault.Spec{Kind: fault.XID, Device: "gpu-11-00", Code: 48})
	inject(fault.Spec{Kind: fault.XID, Device: "gpu-11-00", Code: 79})
	inject(fault.Spec{Kind: fault.Remap, Device: "gpu-12-00"})
	if !has("gpu 0 recovery_action 2") || !has("gpu 1 remap_pending 1") {
		t.Errorf("three faults: %s", read(t, dir, "state"))
	}
	// Another program has the faults too, as the hardware keeps them.
	b = newBoards(dir, b.clock)
	if _, err := b.Clear(t.Context(), fault.Selector{ID: reset.ID}); err != nil || !has("gpu 0 recovery_action 2") {
		t.Errorf("the worse of two stays: %v, %s", err, read(t, dir, "state"))
	}
	if cleared, err := b.Clear(t.Context(), fault.Selector{}); err != nil || len(cleared) != 3 {
		t.Errorf("cleared %v, %v", cleared, err)
	}
	if text := read(t, dir, "state"); strings.Contains(text, "recovery_action") || strings.Contains(text, "remap") {
		t.Errorf("after clearing: %s", text)
	}
	for name, test := range map[string]struct {
		spec fault.Spec
		want error
	}{
		"unknown":         {fault.Spec{Kind: fault.Lost, Device: "gpu-99-00"}, fault.ErrNotFound},
		"of the driver's": {fault.Spec{Kind: fault.StaleSlice}, fault.ErrUnsupported},
	} {
		if _, err := b.Inject(t.Context(), test.spec); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Clear(t.Context(), fault.Selector{ID: "99"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown fault: %v", err)
	}
	if _, err := b.Clear(t.Context(), fault.Selector{Device: "gpu-99-00"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown device: %v", err)
	}
}

// TestUnknownCommand ends with 2 wherever it is said.
func TestUnknownCommand(t *testing.T) {
	for _, group := range []string{"", "fault", "completion"} {
		want := strings.TrimSpace("ladder-fakenvml "+group) + `"; see`
		if code, said := call(t, append(strings.Fields(group), "bogus")...); code != 2 || !strings.Contains(said, `unknown command "bogus" for "`+want) {
			t.Errorf("%s: ended with %d, said %q", group, code, said)
		}
	}
}

// TestSMI prints XML of the boards in a driver root.
func TestSMI(t *testing.T) {
	dir, root := installed(t, "--node-tier", "h100", "--gpus", "2")
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"smi", "--root", root}, &out, &errs); code != 0 || strings.Count(out.String(), "<product_name>NVIDIA H100 80GB HBM3</product_name>") != 2 ||
		!strings.Contains(out.String(), fakenvml.SMILabel) {
		t.Errorf("ended with %d, %s%s", code, out.String(), errs.String())
	}
	if err := (fakenvml.Control{Dir: dir}).UnloadDriver(); err != nil {
		t.Fatal(err)
	}
	if code, said := call(t, "smi", "--dir", dir); code != 1 || !strings.Contains(said, "not loaded") {
		t.Errorf("without a driver: ended with %d, %s", code, said)
	}
}
