package fleet

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// data opens one of the public traces, or skips the test where they are not
// at hand. They are other people's and not part of this repository.
func data(t testing.TB, name string) *os.File {
	t.Helper()
	dir := os.Getenv("LADDER_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	file, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("the trace is not here, set LADDER_DATA to its folder: %v", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

const someNodes = `sn,cpu_milli,memory_mib,gpu,model
n-0,64000,262144,2,P100
n-1,104000,524288,2,T4
n-2,64000,262144,2,P100
n-3,96500,393217,8,G2
n-4,8000,32768,0,
`

func TestFromOpenBNodes(t *testing.T) {
	f, err := FromOpenBNodes(strings.NewReader(someNodes))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name, board, cpu, memory string
		nodes, gpus              int
	}{
		{"p100-x2-64c-256g", "P100", "64", "256Gi", 2, 2},
		{"t4-x2-104c-512g", "T4", "104", "512Gi", 1, 2},
		{"g2-x8-96500m-393217mi", "G2", "96500m", "393217Mi", 1, 8},
		{"cpu-8c-32g", "", "8", "32Gi", 1, 0},
	}
	if len(f.Groups) != len(want) {
		t.Fatalf("got groups %+v, want %+v", f.Groups, want)
	}
	for i, w := range want {
		g := f.Groups[i]
		if g.Name != w.name || g.Board != w.board || g.Nodes != w.nodes || g.GPUs != w.gpus ||
			g.CPU.String() != w.cpu || g.Memory.String() != w.memory {
			t.Errorf("group %d: got %+v, want %+v", i, g, w)
		}
	}
	if len(f.Boards) != 2 || f.Boards[0].Name != "P100" || f.Boards[1].Name != "G2" {
		t.Fatalf("unexpected boards %+v", f.Boards)
	}
	// What is not known about a board must not meet a minimum by accident.
	if g2 := f.Boards[1]; g2.ComputeCapability != "0.0" || g2.Memory.Cmp(resource.MustParse("1Gi")) != 0 || g2.Architecture != "Unknown" {
		t.Errorf("an anonymous board claims figures: %+v", g2)
	}
	var file bytes.Buffer
	if err := f.Write(&file); err != nil {
		t.Fatal(err)
	}
	if back := parse(t, file.String()); back.DeviceCount() != f.DeviceCount() {
		t.Errorf("read back %d devices, want %d", back.DeviceCount(), f.DeviceCount())
	}
}

func TestFromNodesCSV(t *testing.T) {
	f, err := FromNodesCSV(strings.NewReader("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,0\nGPU-series-1,4,192,1\nA100-SXM4-80GB,8,128,2\nH800,8,192,3\nA10,1,128,4\n"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, group := range f.Groups {
		names = append(names, group.Name)
	}
	if got, want := strings.Join(names, " "), "a10-x1-128c gpu-series-1-x4-192c a100-sxm4-80gb-x8-128c h800-x8-192c"; got != want {
		t.Errorf("groups: got %s, want %s", got, want)
	}
	if f.Groups[0].Nodes != 2 || f.Groups[2].Memory.String() != "1Ti" {
		t.Errorf("unexpected groups %+v", f.Groups)
	}
	if len(f.Boards) != 2 || f.Boards[0].Model != "GPU-series-1" || f.Boards[1].Model != "H800" {
		t.Errorf("unexpected boards %+v", f.Boards)
	}
	models := map[string]int{}
	for _, slice := range f.Slices() {
		for _, device := range slice.Spec.Devices {
			models[*device.Attributes[AttributeModel].StringValue]++
		}
	}
	if models["A100"] != 8 || models["A10"] != 2 || models["H800"] != 8 || models["GPU-series-1"] != 4 {
		t.Errorf("unexpected models %v", models)
	}
}

func TestConvertersRefuse(t *testing.T) {
	const head = "sn,cpu_milli,memory_mib,gpu,model\n"
	for name, test := range map[string]struct{ file, want string }{
		"empty":          {"", "the file is empty"},
		"no column":      {"sn,cpu_milli,memory_mib,gpu\n", `there is no column "model"`},
		"only a header":  {head, "groups: Required value"},
		"short row":      {head + "a,1,2\n", "wrong number of fields"},
		"not a number":   {head + "a,64000,262144,2,T4\nb,64000,much,2,T4\n", `line 3, column "memory_mib": must be a whole number, is "much"`},
		"negative":       {head + "a,64000,262144,-2,T4\n", `line 2, column "gpu": must be 0 to 256, is -2`},
		"no cpu":         {head + "a,0,262144,2,T4\n", `line 2, column "cpu_milli"`},
		"overflow":       {head + "a,64000,99999999999999999999,2,T4\n", `line 2, column "memory_mib"`},
		"gpus, no model": {head + "a,64000,262144,2,\n", `line 2, column "model"`},
		"model, no gpus": {head + "a,64000,262144,0,T4\n", `line 2, column "model"`},
		"model's name":   {head + "a,64000,262144,1,T 4!\n", "boards[0].name"},
		"binary":         {"\x00\xff\x00", `there is no column`},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := FromOpenBNodes(strings.NewReader(test.file))
			if err == nil {
				t.Fatalf("accepted as %+v", f)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
}

func TestRealOpenBNodes(t *testing.T) {
	f, err := FromOpenBNodes(data(t, "openb_node_list_gpu_node.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if f.NodeCount() != 1213 || f.DeviceCount() != 6212 {
		t.Errorf("got %d nodes and %d GPUs, want 1213 and 6212", f.NodeCount(), f.DeviceCount())
	}
	if got := len(f.Groups); got != 15 {
		t.Errorf("got %d shapes, want 15", got)
	}
	models := map[string]int{}
	for _, slice := range f.Slices() {
		for _, device := range slice.Spec.Devices {
			models[*device.Attributes[AttributeModel].StringValue]++
		}
	}
	for model, want := range map[string]int{
		"G2": 549 * 8, "T4": 387*2 + 17*4, "P100": (107+22+2)*2 + 3, "G3": 39 * 8,
		"V100M16": 28*4 + 19 + 8*8, "V100M32": 21*8 + 9*4, "A10": 2,
	} {
		if models[model] != want {
			t.Errorf("%s: got %d GPUs, want %d", model, models[model], want)
		}
	}
	if len(models) != 7 {
		t.Errorf("got models %v, want 7 of them", models)
	}
}

func TestReal2026Nodes(t *testing.T) {
	f, err := FromNodesCSV(data(t, "v2026_node_info_df.csv"))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, group := range f.Groups {
		counts[group.Board] += group.Nodes * group.GPUs
	}
	if f.NodeCount() != 4278 || counts["A100-SXM4-80GB"] != 3456 || counts["H800"] != 1752 || counts["A800-SXM4-80GB"] != 176 || counts["A10"] != 2494 {
		t.Errorf("got %d nodes, GPUs %v", f.NodeCount(), counts)
	}
}
