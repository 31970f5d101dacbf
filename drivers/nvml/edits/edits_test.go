package edits

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// driver lays out NVIDIA's driver below a folder, for a machine of eight GPUs.
func driver(t *testing.T) (*server.Server, string) {
	t.Helper()
	machine := dgxh100.New()
	for _, d := range machine.Devices {
		d := d.(*server.Device)
		d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	}
	folder := t.TempDir()
	for _, file := range []string{
		"usr/lib64/libcuda.so.550.54.15", "usr/lib64/libnvidia-ml.so.550.54.15", "usr/lib64/libnvidia-ml.so.1", "usr/bin/nvidia-smi", "dev/zero",
	} {
		path := filepath.Join(folder, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for minor, name := range map[int]string{0: "nvidia0", 1: "nvidia1", 255: "nvidiactl"} {
		if err := unix.Mknod(filepath.Join(folder, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(minor)))); err != nil {
			if errors.Is(err, unix.EPERM) {
				t.Skip("device nodes can't be made here")
			}
			t.Fatal(err)
		}
	}
	return machine, folder
}

func nodes(edits specs.ContainerEdits) []string {
	var all []string
	for _, n := range edits.DeviceNodes {
		all = append(all, n.Path+" of "+n.HostPath)
	}
	return all
}

func mounts(edits specs.ContainerEdits) map[string]string {
	all := map[string]string{}
	for _, m := range edits.Mounts {
		all[m.ContainerPath] = m.HostPath
	}
	return all
}

func TestWholeGPU(t *testing.T) {
	machine, folder := driver(t)
	uuid := machine.Devices[1].(*server.Device).UUID
	edits, err := New(t.Context(), machine, Roots{Driver: folder, DriverOnHost: "/run/nvidia/driver", Hook: "/usr/bin/nvidia-cdi-hook"}).Edits(uuid)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/dev/nvidia1 of /run/nvidia/driver/dev/nvidia1", "/dev/nvidiactl of /run/nvidia/driver/dev/nvidiactl"}
	if got := nodes(edits); !slices.Equal(got, want) {
		t.Errorf("got nodes %v, want %v", got, want)
	}
	all := mounts(edits)
	for path, host := range map[string]string{
		"/usr/lib64/libcuda.so.550.54.15": "/run/nvidia/driver/usr/lib64/libcuda.so.550.54.15", "/usr/bin/nvidia-smi": "/run/nvidia/driver/usr/bin/nvidia-smi",
	} {
		if all[path] != host {
			t.Errorf("%s is %q, want %q", path, all[path], host)
		}
	}
	hooks := 0
	for _, hook := range edits.Hooks {
		if hook.Path != "/usr/bin/nvidia-cdi-hook" {
			t.Errorf("got hook %v", hook)
		}
		if slices.Contains(hook.Args, "update-ldcache") {
			hooks++
		}
		for _, arg := range hook.Args {
			if strings.Contains(arg, folder) {
				t.Errorf("the hook %v names a path that the host does not have", hook.Args)
			}
		}
	}
	if hooks != 1 {
		t.Errorf("the library cache is updated %d times", hooks)
	}
}

// TestWithoutHooks: a node without nvidia-cdi-hook could start no container.
func TestWithoutHooks(t *testing.T) {
	machine, folder := driver(t)
	generator := New(t.Context(), machine, Roots{Driver: folder})
	edits, err := generator.Edits(machine.Devices[0].(*server.Device).UUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(edits.Hooks) != 0 {
		t.Errorf("got %d hooks", len(edits.Hooks))
	}
	if got := nodes(edits); !slices.Contains(got, "/dev/nvidia0 of "+folder+"/dev/nvidia0") {
		t.Errorf("got %v", got)
	}
	again, err := generator.Edits(machine.Devices[0].(*server.Device).UUID)
	if err != nil || !slices.Equal(nodes(again), nodes(edits)) || !slices.Equal(again.Env, edits.Env) {
		t.Errorf("another answer: %v, %v", again, err)
	}
}

// TestWhatIsMissing is told, and no container is started without it.
func TestWhatIsMissing(t *testing.T) {
	machine, folder := driver(t)
	generator := New(t.Context(), machine, Roots{Driver: folder})
	if _, err := generator.Edits("GPU-00000000-0000-0000-0000-000000000000"); err == nil || !strings.Contains(err.Error(), "GPU-00000000") {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(folder, "usr/lib64")); err != nil {
		t.Fatal(err)
	}
	if _, err := generator.Edits(machine.Devices[0].(*server.Device).UUID); err == nil {
		t.Error("NVIDIA's libraries are not missed")
	}
	machine, folder = driver(t)
	if err := os.RemoveAll(filepath.Join(folder, "dev")); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), machine, Roots{Driver: folder}).Edits(machine.Devices[0].(*server.Device).UUID); err == nil {
		t.Error("device nodes are not missed")
	}
}

// TestMIGDevice: the board's node, and those by which the kernel lets a process
// at its instances.
func TestMIGDevice(t *testing.T) {
	machine, folder := driver(t)
	parent := machine.Devices[1].(*server.Device)
	whole := machine.DeviceGetHandleByUUIDFunc
	machine.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if uuid != "MIG-1" {
			return whole(uuid)
		}
		return &mock.Device{
			GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return parent, nvml.SUCCESS },
			GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return 5, nvml.SUCCESS },
			GetComputeInstanceIdFunc:               func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	minors := filepath.Join(folder, "proc/driver/nvidia-caps/mig-minors")
	if err := os.MkdirAll(filepath.Dir(minors), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(minors, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("config 1\nmonitor 2\ngpu0/gi5/access 7\ngpu1/gi5/access 66\ngpu1/gi5/ci0/access 67\ngpu1/gi5/ci1/access 68\n")
	if err := os.MkdirAll(filepath.Join(folder, "dev/nvidia-caps"), 0o755); err != nil {
		t.Fatal(err)
	}
	generator := New(t.Context(), machine, Roots{Driver: folder, DriverOnHost: "/host", Proc: folder})
	edits, err := generator.Edits("MIG-1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/dev/nvidia-caps/nvidia-cap66 of /host/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67 of /host/dev/nvidia-caps/nvidia-cap67",
		"/dev/nvidia1 of /host/dev/nvidia1", "/dev/nvidiactl of /host/dev/nvidiactl",
	}
	if got := nodes(edits); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for what, content := range map[string]string{"not there": "config 1\n", "damaged": "gpu1/gi5/access x\ngpu1/gi5/ci0/access 67\n"} {
		write(content)
		if _, err := generator.Edits("MIG-1"); err == nil || !strings.Contains(err.Error(), "gpu1/gi5/access") {
			t.Errorf("a capability that is %s: %v", what, err)
		}
	}
}

func TestRoots(t *testing.T) {
	for name, test := range map[string]struct{ given, want Roots }{
		"nothing":    {Roots{}, Roots{"/", "/", "/", "/", "/", ""}},
		"one root":   {Roots{Driver: "/run/nvidia/driver/"}, Roots{"/run/nvidia/driver", "/run/nvidia/driver", "/run/nvidia/driver", "/run/nvidia/driver", "/", ""}},
		"mounted":    {Roots{Driver: "/driver", DriverOnHost: "/run/nvidia/driver"}, Roots{"/driver", "/run/nvidia/driver", "/driver", "/run/nvidia/driver", "/", ""}},
		"host's dev": {Roots{Driver: "/driver", Dev: "/"}, Roots{"/driver", "/driver", "/", "/", "/", ""}},
	} {
		if test.given.Defaults(); test.given != test.want {
			t.Errorf("%s: got %+v", name, test.given)
		}
	}
}

func TestLibrary(t *testing.T) {
	folder := t.TempDir()
	if got := LibraryOf("/"); got != "" {
		t.Errorf("got %q", got)
	}
	if got := LibraryOf(folder); got != "" {
		t.Errorf("got %q", got)
	}
	want := filepath.Join(folder, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := LibraryOf(folder + "/"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
