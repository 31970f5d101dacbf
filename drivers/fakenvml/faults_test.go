package fakenvml

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestLostGPU: every call about it says so, also those that are not simulated,
// and no other GPU is touched.
func TestLostGPU(t *testing.T) {
	m := newMachine(t, "h100-mig", 2)
	m.whole(value[nvml.GpuInstance](m)(m.split(m.gpu(1), 9, 0)))
	uuid := value[string](m)(m.gpu(1).GetUUID())
	gpu, mig := m.gpu(1), value[nvml.Device](m)(m.gpu(1).GetMigDeviceHandleByIndex(0))
	m.must(m.Lost(1))
	equal(t, "count", value[int](m)(m.DeviceGetCount()), 2)
	m.is(second(m.DeviceGetHandleByIndex(1)), nvml.ERROR_GPU_IS_LOST)
	m.is(second(m.DeviceGetHandleByUUID(uuid)), nvml.ERROR_GPU_IS_LOST)
	asked := 0
	for _, device := range []nvml.Device{gpu, mig} {
		for name, ret := range returns(device) {
			asked++
			if ret != nvml.ERROR_GPU_IS_LOST {
				t.Errorf("%s: %v", name, ret)
			}
		}
	}
	if asked < 400 {
		t.Errorf("asked %d only", asked)
	}
	m.ok(second(m.gpu(0).GetName()))
	m.must(m.Restored(1))
	m.ok(second(gpu.GetName()))
	m.ok(second(mig.GetName()))
}

// returns calls all methods of a device that can be called without more
// knowledge, and has what they return.
func returns(device nvml.Device) map[string]nvml.Return {
	all := map[string]nvml.Return{}
	v := reflect.ValueOf(device)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		if name == "GetGpuInstances" {
			continue // go-nvml itself refuses a profile of no instances
		}
		if ret, ok := call(v.Method(i)); ok {
			all[name] = ret
		}
	}
	return all
}

func call(method reflect.Value) (ret nvml.Return, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false // it wanted something better
		}
	}()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		switch in := method.Type().In(i); in.Kind() {
		case reflect.Pointer:
			args = append(args, reflect.New(in.Elem()))
		case reflect.Slice:
			args = append(args, reflect.MakeSlice(in, 1, 1))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	results := method.Call(args)
	if len(results) == 0 {
		return 0, false
	}
	ret, ok = results[len(results)-1].Interface().(nvml.Return)
	return ret, ok
}

// TestVanishedGPU: there is one less, and those after it move up.
func TestVanishedGPU(t *testing.T) {
	m := newMachine(t, "l4", 3)
	places := Machine{Name: "node-1", GPUs: 3}.Places()
	gone := m.gpu(1)
	m.must(m.Vanish(1))
	equal(t, "count", value[int](m)(m.DeviceGetCount()), 2)
	equal(t, "second", value[string](m)(m.gpu(1).GetUUID()), places[2].UUID)
	equal(t, "its index", value[int](m)(m.gpu(1).GetIndex()), 1)
	equal(t, "its minor", value[int](m)(m.gpu(1).GetMinorNumber()), 2)
	m.is(second(m.DeviceGetHandleByUUID(places[1].UUID)), nvml.ERROR_NOT_FOUND)
	m.is(second(m.DeviceGetHandleByPciBusId(places[1].BusID())), nvml.ERROR_NOT_FOUND)
	m.is(second(gone.GetName()), nvml.ERROR_GPU_IS_LOST)
	m.must(m.Reboot())
	equal(t, "count after a reboot", value[int](m)(m.DeviceGetCount()), 3)
}

// TestNoDriver: before it is there, and when it goes away.
func TestNoDriver(t *testing.T) {
	m := bareMachine(t)
	m.is(m.Init(), nvml.ERROR_DRIVER_NOT_LOADED)
	m.install("l4", 1)
	m.must(m.UnloadDriver())
	m.is(m.Init(), nvml.ERROR_DRIVER_NOT_LOADED)
	m.is(second(m.DeviceGetCount()), nvml.ERROR_UNINITIALIZED)
	m.must(m.LoadDriver())
	m.ok(m.Init())
	gpu := m.gpu(0)
	m.must(m.UnloadDriver())
	m.is(second(gpu.GetName()), nvml.ERROR_DRIVER_NOT_LOADED)
	m.is(second(m.DeviceGetCount()), nvml.ERROR_DRIVER_NOT_LOADED)
	m.must(m.LoadDriver())
	m.ok(second(gpu.GetName()))
	m.ok(m.Shutdown())
	m.is(m.Shutdown(), nvml.ERROR_UNINITIALIZED)
	m.is(second(gpu.GetName()), nvml.ERROR_UNINITIALIZED)
}

// TestHang: one function hangs, of one GPU, while others go on, until the fault
// is taken back or its time is over.
func TestHang(t *testing.T) {
	m := newMachine(t, "l4", 2)
	gpus := []nvml.Device{m.gpu(0), m.gpu(1)}
	m.must(m.Hang("nvmlDeviceGetPciInfo", 1, time.Hour))
	ended := make(chan nvml.Return, 1)
	go func() { ended <- second(gpus[1].GetPciInfo()) }()
	for range 5 {
		m.ok(second(gpus[0].GetPciInfo()))
		m.ok(second(gpus[1].GetName()))
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case <-ended:
		t.Fatal("it did not hang")
	default:
	}
	m.must(m.ClearFaults())
	m.is(<-ended, nvml.SUCCESS)

	m.must(m.Hang("*", AllGPUs, 50*time.Millisecond))
	begun := time.Now()
	m.ok(second(m.DeviceGetCount()))
	if time.Since(begun) < 50*time.Millisecond {
		t.Errorf("it took %v", time.Since(begun))
	}
	// One that hangs when the GPU is lost comes back with that.
	m.must(m.Hang("nvmlDeviceGetName", 0, time.Hour))
	go func() { ended <- second(gpus[0].GetName()) }()
	time.Sleep(10 * time.Millisecond)
	m.must(m.Lost(0))
	m.must(m.ClearFaults())
	m.is(<-ended, nvml.ERROR_GPU_IS_LOST)
}

// TestFail: a function fails as it is told to, with or without its version.
func TestFail(t *testing.T) {
	m := newMachine(t, "h100-mig", 2)
	m.must(m.Fail("nvmlGpuInstanceCreateComputeInstance", AllGPUs, uint64(nvml.ERROR_INSUFFICIENT_RESOURCES)))
	m.must(m.Fail("nvmlDeviceGetMemoryInfo_v2", 1, uint64(nvml.ERROR_UNKNOWN)))
	m.must(m.Fail("nvmlDeviceGetHandleByIndex", 0, uint64(nvml.ERROR_IRQ_ISSUE)))
	gi := value[nvml.GpuInstance](m)(m.split(m.gpu(1), 0, 0))
	info := value[nvml.ComputeInstanceProfileInfo](m)(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 0))
	m.is(second(gi.CreateComputeInstance(&info)), nvml.ERROR_INSUFFICIENT_RESOURCES)
	m.is(second(m.gpu(1).GetMemoryInfo_v2()), nvml.ERROR_UNKNOWN)
	m.ok(second(m.gpu(1).GetMemoryInfo()))
	m.is(second(m.DeviceGetHandleByIndex(0)), nvml.ERROR_IRQ_ISSUE)
	m.must(m.ClearFaults())
	m.ok(second(gi.CreateComputeInstance(&info)))
	m.must(m.Fail("nvmlInit", AllGPUs, uint64(nvml.ERROR_LIB_RM_VERSION_MISMATCH)))
	m.ok(m.Shutdown())
	m.is(m.Init(), nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	m.must(m.ClearFaults())
	m.ok(m.Init())
}

// TestWithheld: a library that lacks functions is loaded by a process, which
// uses what is there.
func TestWithheld(t *testing.T) {
	m := newMachine(t, "h100", 3)
	older := filepath.Join(t.TempDir(), LibraryName)
	data, err := os.ReadFile(library)
	m.must(err)
	m.must(os.WriteFile(older, data, 0o755)) //nolint:gosec // a library
	all := m.start("symbols", older)
	equal(t, "all", all.line(), "true true true 3 Success")
	m.must(all.Wait())
	m.must(Withhold(older, "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCount_v2"))
	equal(t, "older", m.start("symbols", older).line(), "false false true 3 Success")
	if err := Withhold(older, "nvmlDeviceGetCount_v2"); err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetCount_v2") {
		t.Errorf("a function that is not there: %v", err)
	}
	if err := Withhold(filepath.Join(m.Dir, confName), "nvmlInit_v2"); err == nil {
		t.Error("a file that is no library has functions")
	}
}

// TestMalformedFiles: what can't be read is an error of NVML, and over once the
// file is right.
func TestMalformedFiles(t *testing.T) {
	m := bareMachine(t)
	m.install("h100-mig", 2)
	conf, err := os.ReadFile(filepath.Join(m.Dir, confName))
	m.must(err)
	for name, bad := range map[string]string{
		"empty":           "",
		"other file":      "hello\n",
		"later version":   strings.Replace(string(conf), "fakenvml-board 1", "fakenvml-board 2", 1),
		"cut off":         string(conf[:len(conf)-5]),
		"unknown line":    string(conf) + "colour green\n",
		"twice":           string(conf) + "ecc 1\n",
		"no number":       strings.Replace(string(conf), "\necc 1", "\necc yes", 1),
		"huge number":     strings.Replace(string(conf), "\necc 1", "\necc 99999999999999999999999", 1),
		"something lacks": strings.Replace(string(conf), "\necc 1", "", 1),
		"many links":      strings.Replace(string(conf), "\nnvlinks 18", "\nnvlinks 64", 1),
		"many GPUs":       string(conf) + strings.Repeat("gpu "+strings.Repeat("x", 40)+" 1 0 1 0 0 0 0 0\n", MaxGPUs),
		"long UUID":       string(conf) + "gpu " + strings.Repeat("x", 41) + " 1 0 1 0 0 0 0 0\n",
		"many words":      string(conf) + strings.Repeat("gpu ", 40) + "\n",
		"bad placement":   strings.Replace(string(conf), " 0 4\n", " 0 5\n", 1),
		"zero bytes":      string(conf) + "\x00\n",
	} {
		m.must(os.WriteFile(filepath.Join(m.Dir, confName), []byte(bad), 0o600))
		if ret := m.Init(); ret != nvml.ERROR_UNKNOWN {
			t.Errorf("board, %s: %v", name, ret)
		}
	}
	m.must(os.WriteFile(filepath.Join(m.Dir, confName), conf, 0o600))
	m.ok(m.Init())
	defer m.Shutdown()
	for name, bad := range map[string]string{
		"empty": "", "other file": "hello\n", "cut off": stateHead + "\ngpu 0 lo", "unknown": stateHead + "\nweather 1\n",
		"no such GPU": stateHead + "\ngpu 16 lost 1\n", "no such number": stateHead + "\ngpu 0 colour 1\n",
		"negative": stateHead + "\ngpu 0 lost -1\n", "no ID": stateHead + "\ninstance 0 99 19 0 1\n",
		"many events": stateHead + "\n" + strings.Repeat("event 1 0 8 1 - -\n", maxEvents+1),
		"many faults": stateHead + "\n" + strings.Repeat("hang a - 1\n", maxFaults+1),
		"long name":   stateHead + "\nfail " + strings.Repeat("x", 100) + " - 1\n",
	} {
		m.must(os.WriteFile(filepath.Join(m.Dir, stateName), []byte(bad), 0o600))
		if _, ret := m.DeviceGetCount(); ret != nvml.ERROR_UNKNOWN {
			t.Errorf("state, %s: %v", name, ret)
		}
	}
	m.must(os.Remove(filepath.Join(m.Dir, stateName)))
	equal(t, "without a state", value[int](m)(m.DeviceGetCount()), 2)
}

// TestFind: a GPU has several names.
func TestFind(t *testing.T) {
	m := newMachine(t, "l4", 4)
	installed, err := m.Installed()
	m.must(err)
	equal(t, "installed", installed, Machine{Name: "node-1", GPUs: 4}.Places())
	for _, name := range []string{"2", installed[2].UUID, strings.ToUpper(installed[2].BusID()), "gpu-21-00"} {
		gpu, err := m.Find(name)
		m.must(err)
		equal(t, name, gpu, 2)
	}
	_, err = m.Find("gpu-2")
	equal(t, "error", err, `there is no GPU "gpu-2"; there are gpu-11-00, gpu-12-00, gpu-21-00, gpu-22-00`)
	for name, err := range map[string]error{
		"lost": m.Lost(4), "link": m.NVLink(0, 36, false), "hang": m.Hang("a b", AllGPUs, 0), "fail": m.Fail("nvmlInit", 7, 1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
