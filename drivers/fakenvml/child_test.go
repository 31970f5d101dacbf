package fakenvml

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Variables that have this program be another process of the machine, and which
// library it loads.
const (
	childVariable   = "FAKENVML_TEST_CHILD"
	libraryVariable = "FAKENVML_TEST_LIBRARY"
)

// children are what other processes do, and print. They end when their input does.
var children = map[string]func(lib nvml.Interface) error{
	// split makes a MIG device and leaves it there.
	"split": func(lib nvml.Interface) error {
		device, _ := lib.DeviceGetHandleByIndex(0)
		info, _ := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_2_SLICE)
		gi, ret := device.CreateGpuInstance(&info)
		if ret != nvml.SUCCESS {
			return ret
		}
		compute, _ := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 0)
		if _, ret := gi.CreateComputeInstance(&compute); ret != nvml.SUCCESS {
			return ret
		}
		mig, _ := device.GetMigDeviceHandleByIndex(0)
		uuid, _ := mig.GetUUID()
		fmt.Println(uuid)
		return nil
	},
	// wait tells of one event of GPU 0.
	"wait": func(lib nvml.Interface) error {
		set, _ := lib.EventSetCreate()
		device, _ := lib.DeviceGetHandleByIndex(0)
		device.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		fmt.Println("ready")
		data, ret := set.Wait(60000)
		if ret != nvml.SUCCESS {
			return ret
		}
		fmt.Println(data.EventData)
		return nil
	},
	// fill makes as many MIG devices of the smallest kind as it can.
	"fill": func(lib nvml.Interface) error {
		made := 0
		device, _ := lib.DeviceGetHandleByIndex(0)
		info, _ := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
		for {
			if _, ret := device.CreateGpuInstance(&info); ret == nvml.ERROR_INSUFFICIENT_RESOURCES {
				break
			} else if ret != nvml.SUCCESS {
				return ret
			}
			made++
		}
		fmt.Println(made)
		return nil
	},
	// symbols says which of some functions there are, and whether others work.
	"symbols": func(lib nvml.Interface) error {
		for _, name := range []string{"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCount_v2", "nvmlDeviceGetName"} {
			fmt.Print(lib.Extensions().LookupSymbol(name) == nil, " ")
		}
		count, ret := lib.DeviceGetCount()
		fmt.Println(count, ret)
		return nil
	},
}

func child(what string) int {
	lib := nvml.New(nvml.WithLibraryPath(os.Getenv(libraryVariable)))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		fmt.Println(ret)
		return 1
	}
	if err := children[what](lib); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// process is another one of the machine.
type process struct {
	*exec.Cmd
	out *bufio.Reader
	t   *testing.T
}

func (m *machine) start(what, library string) *process {
	m.t.Helper()
	cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), childVariable+"="+what, libraryVariable+"="+library, DirVariable+"="+m.Dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	m.must(err)
	m.must(cmd.Start())
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &process{cmd, bufio.NewReader(out), m.t}
}

// line is the next that it says.
func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil && err != io.EOF {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestProcessesShareTheState: an instance that one process makes is one of the
// others too, is there when it has ended, and its place is taken.
func TestProcessesShareTheState(t *testing.T) {
	m := newMachine(t, "h100-mig", 1)
	p := m.start("split", library)
	uuid := p.line()
	m.must(p.Wait())
	mig, ret := m.DeviceGetHandleByUUID(uuid)
	m.ok(ret)
	equal(t, "name", value[string](m)(mig.GetName()), "NVIDIA H100 80GB HBM3 MIG 2g.20gb")
	m.is(second(m.split(m.gpu(0), 0, 0)), nvml.ERROR_INSUFFICIENT_RESOURCES)
	m.ok(m.Shutdown())
	m.ok(m.Init())
	equal(t, "UUID after a restart", value[string](m)(value[nvml.Device](m)(m.gpu(0).GetMigDeviceHandleByIndex(0)).GetUUID()), uuid)
}

// TestProcessesInARace: of seven places seven are given, by whomever.
func TestProcessesInARace(t *testing.T) {
	m := newMachine(t, "a100-80-mig", 1)
	var all []*process
	for range 3 {
		all = append(all, m.start("fill", library))
	}
	made := 0
	for _, p := range all {
		var n int
		if _, err := fmt.Sscan(p.line(), &n); err != nil {
			t.Error(err)
		}
		made += n
		m.must(p.Wait())
	}
	equal(t, "made", made, 7)
}

// TestEventsReachOtherProcesses, and each of them.
func TestEventsReachOtherProcesses(t *testing.T) {
	m := newMachine(t, "t4", 1)
	first, second := m.start("wait", library), m.start("wait", library)
	equal(t, "listening", first.line()+" "+second.line(), "ready ready")
	m.must(m.XID(0, 62))
	equal(t, "told", first.line()+" "+second.line(), "62 62")
}

// TestFolderOfTheLibrary: without a variable the board is beside the library,
// also where that is loaded by a link.
func TestFolderOfTheLibrary(t *testing.T) {
	m := bareMachine(t)
	board, err := Tier("a10")
	m.must(err)
	root := t.TempDir()
	_, err = InstallRoot(root, library, board, Machine{Name: "n", GPUs: 2})
	m.must(err)
	m.Dir = "" // and with it the variable of the child
	equal(t, "symbols", m.start("symbols", filepath.Join(root, LibraryFolder(), LibraryName)).line(), "true true true 2 Success")
}
