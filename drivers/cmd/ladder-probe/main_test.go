package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/buildinfo"
)

// place makes a container with nodes for devices. A node is a link to
// /dev/null: making device nodes takes rights that a test may not have.
func place(t *testing.T, nodes string, env ...string) container {
	t.Helper()
	root := t.TempDir()
	folder := filepath.Join(root, nodeFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, node := range strings.Fields(nodes) {
		if err := os.Symlink("/dev/null", filepath.Join(folder, node)); err != nil {
			t.Fatal(err)
		}
	}
	return container{root: root, env: append([]string{"PATH=/bin"}, env...)}
}

func (c container) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(c.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// probe runs the program and reads its line.
func probe(t *testing.T, c container, args ...string) (int, Report) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, c, &stdout, &stderr)
	if strings.Count(stdout.String(), "\n") != 1 {
		t.Fatalf("printed %q, and %q on stderr", stdout.String(), stderr.String())
	}
	var report Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if report.OK != (code == exitOK) || report.OK != (len(report.Problems) == 0) {
		t.Errorf("ended with %d and ok %t: %v", code, report.OK, report.Problems)
	}
	return code, report
}

const beta = `{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","metadata":{"name":"c"},` +
	`"requests":[{"name":"accelerator/h100","devices":[{"driver":"gpu.gpuladder.dev","pool":"n","name":"gpu-0","attributes":{}},{"driver":"gpu.gpuladder.dev","pool":"n","name":"gpu-1"}]}]}`

func TestDRA(t *testing.T) {
	c := place(t, "gpu-1 gpu-0", "LADDER_VISIBLE_DEVICES=gpu-0,gpu-1", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_0=H100", "LADDER_DEVICE_GPU_1=H100")
	file := "resourceclaimtemplates/accelerator/accelerator/gpu.gpuladder.dev-metadata.json"
	c.write(t, filepath.Join(metadataFolder, file), beta+`{"apiVersion":"metadata.resource.k8s.io/v1alpha1"}`)
	c.write(t, filepath.Join(metadataFolder, "README"), "not metadata")
	code, got := probe(t, c, "--expect", "2")
	want := Report{
		OK: true, Devices: []string{"gpu-0", "gpu-1"}, Visible: []string{"gpu-0", "gpu-1"}, Model: "H100",
		Models:   map[string]string{"gpu-0": "H100", "gpu-1": "H100"},
		Metadata: []Metadata{{file, []string{"gpu.gpuladder.dev/n/gpu-0", "gpu.gpuladder.dev/n/gpu-1"}}},
	}
	if code != exitOK || !reflect.DeepEqual(got, want) {
		t.Errorf("ended with %d\ngot  %+v\nwant %+v", code, got, want)
	}
}

// With two requests in one container the list is that of the last one, and the
// nodes are those of both.
func TestTwoRequests(t *testing.T) {
	c := place(t, "gpu-0 gpu-0-mig-1g10gb-me-20-3", "LADDER_VISIBLE_DEVICES=gpu-0", "LADDER_MODEL=H100",
		"LADDER_DEVICE_GPU_0=H100", "LADDER_DEVICE_GPU_0_MIG_1G10GB_ME_20_3=A100")
	_, got := probe(t, c, "--expect=2")
	if !got.OK || got.Models["gpu-0-mig-1g10gb-me-20-3"] != "A100" {
		t.Errorf("got %+v", got)
	}
}

func TestLegacy(t *testing.T) {
	c := place(t, "gpu-0 gpu-1", "LADDER_VISIBLE_DEVICES=gpu-0,gpu-1", "LADDER_MODEL=H100", "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b")
	_, got := probe(t, c, "--legacy", "--expect", "2")
	if !got.OK || !reflect.DeepEqual(got.UUIDs, []string{"GPU-a", "GPU-b"}) {
		t.Errorf("got %+v", got)
	}
	// The same container is none of the DRA driver's.
	if _, got := probe(t, c); got.OK {
		t.Error("taken for the DRA driver's")
	}
}

func TestProblems(t *testing.T) {
	good := []string{"LADDER_VISIBLE_DEVICES=gpu-0", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_0=H100"}
	for name, tc := range map[string]struct {
		nodes string
		env   []string
		args  []string
		want  []string
	}{
		"nothing":       {"", nil, nil, []string{"LADDER_VISIBLE_DEVICES is not set", "LADDER_MODEL is not set"}},
		"empty":         {"", []string{"LADDER_VISIBLE_DEVICES=", "LADDER_MODEL=H100"}, nil, []string{"LADDER_VISIBLE_DEVICES is empty"}},
		"no node":       {"", good, nil, []string{"device gpu-0 of LADDER_VISIBLE_DEVICES is not there", "LADDER_DEVICE_GPU_0 is set, and no device in /dev/ladder is meant"}},
		"a node more":   {"gpu-0 gpu-1", good, nil, []string{"LADDER_DEVICE_GPU_1 is not set, and /dev/ladder/gpu-1 is there"}},
		"order":         {"gpu-0 gpu-1", []string{"LADDER_VISIBLE_DEVICES=gpu-1,gpu-0", "LADDER_MODEL=T4", "LADDER_DEVICE_GPU_0=T4", "LADDER_DEVICE_GPU_1=T4"}, nil, []string{"LADDER_VISIBLE_DEVICES is not in order: gpu-1,gpu-0"}},
		"too few":       {"gpu-0", good, []string{"--expect", "2"}, []string{"there are 1 devices, not 2"}},
		"none expected": {"gpu-0", good, []string{"--expect", "0"}, []string{"there are 1 devices, not 0"}},
		"no UUIDs": {"gpu-0", good, []string{"--legacy"}, []string{
			"NVIDIA_VISIBLE_DEVICES names 0 devices and LADDER_VISIBLE_DEVICES 1",
		}},
		"indexes": {"gpu-0 gpu-1", append([]string{"NVIDIA_VISIBLE_DEVICES=0"}, good...), []string{"--legacy"}, []string{
			`NVIDIA_VISIBLE_DEVICES: "0" is no UUID of a GPU`, "/dev/ladder has [gpu-0 gpu-1] and LADDER_VISIBLE_DEVICES [gpu-0]",
		}},
	} {
		code, got := probe(t, place(t, tc.nodes, tc.env...), tc.args...)
		if code != exitFailed || !reflect.DeepEqual(got.Problems, tc.want) {
			t.Errorf("%s: ended with %d\ngot  %q\nwant %q", name, code, got.Problems, tc.want)
		}
	}
}

// A plain file is no device, and a metadata file that is cut off is a problem.
func TestBrokenFiles(t *testing.T) {
	c := place(t, "", "LADDER_VISIBLE_DEVICES=gpu-0", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_0=H100")
	c.write(t, filepath.Join(nodeFolder, "gpu-0"), "")
	c.write(t, filepath.Join(metadataFolder, "resourceclaims/c/r/x-metadata.json"), beta[:40])
	_, got := probe(t, c)
	want := []string{"/dev/ladder/gpu-0 is no character device", "metadata file resourceclaims/c/r/x-metadata.json: unexpected EOF"}
	if !reflect.DeepEqual(got.Problems, want) {
		t.Errorf("got  %q\nwant %q", got.Problems, want)
	}
}

// With --hold it goes on until it is told to end, and then it ends well.
func TestHold(t *testing.T) {
	c := place(t, "gpu-0", "LADDER_VISIBLE_DEVICES=gpu-0", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_0=H100")
	ctx, terminate := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		ended <- run(ctx, []string{"--hold"}, c, &stdout, &stderr)
	}()
	select {
	case code := <-ended:
		t.Fatalf("ended by itself with %d", code)
	case <-time.After(50 * time.Millisecond):
	}
	terminate()
	if code := <-ended; code != exitOK {
		t.Errorf("ended with %d", code)
	}
	// Nobody should have to end one that has failed.
	if code, _ := probe(t, place(t, ""), "--hold"); code != exitFailed {
		t.Errorf("a failed one ended with %d", code)
	}
}

func TestCommandLine(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":         {[]string{"--help"}, exitOK, "Exit codes: 0 all is well"},
		"unknown flag": {[]string{"--fast"}, exitUsage, "flag provided but not defined: -fast"},
		"argument":     {[]string{"now"}, exitUsage, `there is nothing to do with ["now"]`},
		"no number":    {[]string{"--expect", "two"}, exitUsage, "invalid value"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), tc.args, place(t, ""), &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.want) || stdout.Len() > 0 {
			t.Errorf("%s: ended with %d, printed %q and %q", name, code, stdout.String(), stderr.String())
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

// --version says nothing of GPUs, and does not look for any.
func TestVersion(t *testing.T) {
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"--version", "--expect=3"}, container{root: t.TempDir()}, &stdout, &stderr)
	if code != exitOK || stdout.String() != buildinfo.Read().Text("ladder-probe") || stderr.String() != "" {
		t.Errorf("got %d, %q and %q", code, stdout.String(), stderr.String())
	}
}

func TestNowhereToPrint(t *testing.T) {
	c := place(t, "gpu-0", "LADDER_VISIBLE_DEVICES=gpu-0", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_0=H100")
	var stderr bytes.Buffer
	if code := run(t.Context(), nil, c, full{}, &stderr); code != exitFailed {
		t.Errorf("ended with %d: %s", code, stderr.String())
	}
}

// nvidia makes a container with NVIDIA's nodes.
func nvidia(t *testing.T, nodes string, env ...string) container {
	t.Helper()
	c := place(t, "", env...)
	for _, node := range strings.Fields(nodes) {
		if err := os.Symlink("/dev/null", filepath.Join(c.root, nvidiaFolder, node)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestNVIDIAsNodes(t *testing.T) {
	two := []string{"LADDER_VISIBLE_DEVICES=gpu-11-00,gpu-12-00", "LADDER_MODEL=H100", "LADDER_DEVICE_GPU_11_00=H100", "LADDER_DEVICE_GPU_12_00=H100"}
	slices := []string{
		"LADDER_VISIBLE_DEVICES=gpu-11-00-mig-1g10gb-19-0,gpu-11-00-mig-1g10gb-19-1", "LADDER_MODEL=H100",
		"LADDER_DEVICE_GPU_11_00_MIG_1G10GB_19_0=H100", "LADDER_DEVICE_GPU_11_00_MIG_1G10GB_19_1=H100",
	}
	for name, test := range map[string]struct {
		c       container
		devices int
		problem string
	}{
		"two GPUs":                      {c: nvidia(t, "nvidia0 nvidia1 nvidiactl nvidia-uvm", two...), devices: 2},
		"two partitions of one GPU":     {c: nvidia(t, "nvidia0 nvidiactl", slices...), devices: 2},
		"a GPU that was not asked for":  {c: nvidia(t, "nvidia0 nvidia1 nvidia2 nvidiactl", two...), devices: 2, problem: "[nvidia0 nvidia1 nvidia2] for the devices"},
		"a GPU without a node":          {c: nvidia(t, "nvidia0 nvidiactl", two...), devices: 2, problem: "[nvidia0] for the devices"},
		"no node for all":               {c: nvidia(t, "nvidia0 nvidia1", two...), devices: 2, problem: "/dev/nvidiactl is not there"},
		"no partition's node":           {c: nvidia(t, "nvidiactl", slices...), devices: 2, problem: "[] for the devices"},
		"a variable that nobody set":    {c: nvidia(t, "nvidia0 nvidia1 nvidiactl", two[1:]...), devices: 2, problem: "LADDER_VISIBLE_DEVICES is not set"},
		"a device that nothing belongs": {c: nvidia(t, "nvidia0 nvidiactl", two[:3]...), devices: 1, problem: "device gpu-12-00 of LADDER_VISIBLE_DEVICES is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := probe(t, test.c, "--nvidia")
			if len(report.Devices) != test.devices {
				t.Errorf("got devices %v, want %d", report.Devices, test.devices)
			}
			if said := strings.Join(report.Problems, "; "); (said == "") != (test.problem == "") || !strings.Contains(said, test.problem) {
				t.Errorf("got problems %q, want %q", said, test.problem)
			}
		})
	}
	if code := run(t.Context(), []string{"--nvidia", "--legacy"}, place(t, ""), io.Discard, io.Discard); code != exitUsage {
		t.Errorf("got exit code %d, want %d for two drivers at once", code, exitUsage)
	}
}
