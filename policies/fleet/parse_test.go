package fleet

import (
	"bytes"
	"strings"
	"testing"
)

const mixed = `
apiVersion: gpuladder.dev/v1alpha1
kind: Fleet
boards:
- {name: X1, model: X1, productName: Example X1, architecture: Example, computeCapability: "1.2", memory: 1Gi}
groups:
- {name: h100, nodes: 20, board: H100-SXM5-80GB, gpus: 8, cpu: "128", memory: 1Ti}
- name: small
  nodes: 4
  board: L4
  gpus: 2
  driverVersion: "550.163.01"
  labels: {pool: small}
  taints: [{key: example.com/gpu, value: l4, effect: NoSchedule}]
- {name: own, nodes: 1, board: X1, gpus: 1, cpu: 4, pods: 7, numaNodes: 1}
- {name: cpu, nodes: 2}
`

func parse(t *testing.T, document string) *Fleet {
	t.Helper()
	f, err := Parse("fleet.yaml", strings.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParse(t *testing.T) {
	f := parse(t, mixed)
	if got, want := f.NodeCount(), 27; got != want {
		t.Errorf("nodes: got %d, want %d", got, want)
	}
	if got, want := f.DeviceCount(), 20*8+4*2+1; got != want {
		t.Errorf("devices: got %d, want %d", got, want)
	}
	names := f.NodeNames()
	if names[0] != "h100-0000" || names[19] != "h100-0019" || names[20] != "small-0000" || names[26] != "cpu-0001" {
		t.Errorf("unexpected node names %v", names)
	}
}

func TestParseSetsDefaults(t *testing.T) {
	f := parse(t, mixed)
	for _, want := range []struct {
		group, cpu, memory string
		pods               int64
		numa               int
	}{
		{"h100", "128", "1Ti", 110, 2},
		{"small", "32", "256Gi", 110, 1},
		{"own", "4", "128Gi", 7, 1},
		{"cpu", "16", "128Gi", 110, 1},
	} {
		var group *Group
		for i := range f.Groups {
			if f.Groups[i].Name == want.group {
				group = &f.Groups[i]
			}
		}
		if group.CPU.String() != want.cpu || group.Memory.String() != want.memory || group.Pods != want.pods || group.NUMANodes != want.numa {
			t.Errorf("%s: got cpu %s, memory %s, pods %d, numaNodes %d, want %+v",
				want.group, group.CPU.String(), group.Memory.String(), group.Pods, group.NUMANodes, want)
		}
	}
	if f.Boards[0].Brand != "Nvidia" || f.Boards[0].DriverVersion != DefaultDriverVersion {
		t.Errorf("unexpected defaults of a board: %+v", f.Boards[0])
	}
}

// TestParseRefuses holds for each kind of bad input that the error says the
// file and, where there is one, the field.
func TestParseRefuses(t *testing.T) {
	const head = "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\n"
	group := func(fields string) string { return head + "groups:\n- {" + fields + "}\n" }
	good := "name: a, nodes: 1, board: T4, gpus: 1"
	for name, test := range map[string]struct{ document, want string }{
		"empty":                {"", "the file is empty"},
		"only comments":        {"# nothing\n---\n", "the file is empty"},
		"binary":               {"\x00\x01\x02\xff", "control characters are not allowed"},
		"truncated":            {head + "groups: [{name: a", "did not find expected"},
		"a list":               {"[1, 2]", "is a array, not an object"},
		"two documents":        {group(good) + "---\n" + group(good), "more than one document"},
		"too large":            {strings.Repeat("# filler\n", MaxFileSize/9+1), "larger than"},
		"no kind":              {"apiVersion: gpuladder.dev/v1alpha1\ngroups: []", "kind: Unsupported value: \"\""},
		"two unknown fields":   {group(good + ", color: red, shape: round"), `unknown field "groups[0].shape"`},
		"wrong kind":           {"apiVersion: gpuladder.dev/v1alpha1\nkind: Node\ngroups: []", "kind: Unsupported value: \"Node\""},
		"wrong version":        {"apiVersion: gpuladder.dev/v2\nkind: Fleet\ngroups: []", "apiVersion: Unsupported value"},
		"no groups":            {head, "groups: Required value"},
		"unknown field":        {group(good + ", color: red"), `unknown field "groups[0].color"`},
		"unknown field on top": {group(good) + "nodes: 3\n", `unknown field "nodes"`},
		"wrong case":           {group("name: a, nodes: 1, board: T4, GPUs: 1"), `unknown field "groups[0].GPUs"`},
		"field twice":          {group(good + ", gpus: 2"), `"gpus" already set`},
		"wrong type":           {group("name: a, nodes: many"), "groups.nodes: must be of type int, is a string"},
		"quantity":             {group(good + ", memory: much"), "groups[0].memory: Invalid value"},
		"quantity of no type":  {group(good + ", cpu: [1]"), "groups[0].cpu: Invalid value"},
		"zero cpu":             {group(good + ", cpu: 0"), "groups[0].cpu: Invalid value: 0: must be more than zero"},
		"negative memory":      {group(good + ", memory: -1Gi"), "groups[0].memory"},
		"no nodes":             {group("name: a, nodes: 0"), "groups[0].nodes: Invalid value: 0"},
		"too many nodes":       {group("name: a, nodes: 10001"), "groups[0].nodes: Invalid value: 10001"},
		"name":                 {group("name: A_1, nodes: 1"), "groups[0].name: Invalid value"},
		"long name":            {group("name: " + strings.Repeat("a", 51) + ", nodes: 1"), "groups[0].name: Too long"},
		"same name":            {group(good) + "- {" + good + "}\n", "groups[1].name: Duplicate value"},
		"unknown board":        {group("name: a, nodes: 1, board: H999, gpus: 1"), `groups[0].board: Unsupported value: "H999"`},
		"board without gpus":   {group("name: a, nodes: 1, board: T4"), "groups[0].gpus: Invalid value: 0"},
		"gpus without board":   {group("name: a, nodes: 1, gpus: 1"), "groups[0].board: Required value"},
		"too many gpus":        {group("name: a, nodes: 1, board: T4, gpus: 257"), "groups[0].gpus: Invalid value: 257"},
		"too many in all":      {group("name: a, nodes: 10000, board: T4, gpus: 256"), "groups: Invalid value: 2560000"},
		"driver":               {group(good + ", driverVersion: new"), "groups[0].driverVersion: Invalid value"},
		"label":                {group(good + ", labels: {'a b': c}"), "groups[0].labels"},
		"taint key":            {group(good + ", taints: [{key: 'a b', effect: NoSchedule}]"), "groups[0].taints[0].key"},
		"taint effect":         {group(good + ", taints: [{key: a, effect: Never}]"), "groups[0].taints[0].effect"},
		"numa nodes":           {group(good + ", numaNodes: 17"), "groups[0].numaNodes"},
		"pods":                 {group(good + ", pods: -1"), "groups[0].pods"},
		"board of the catalog": {
			head + "boards:\n- {name: T4, model: T4, productName: t, architecture: a, computeCapability: '1', memory: 1Gi}\ngroups:\n- {" + good + "}",
			"boards[0].name: Duplicate value",
		},
		"half a board": {
			head + "boards:\n- {name: X, productName: t, architecture: a, computeCapability: x, memory: 1Gi}\ngroups:\n- {" + good + "}",
			"boards[0].model: Required value",
		},
		"board without memory": {
			head + "boards:\n- {name: X, model: X, productName: t, architecture: a, computeCapability: '1'}\ngroups:\n- {" + good + "}",
			"boards[0].memory: Invalid value",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("some/fleet.yaml", strings.NewReader(test.document))
			if err == nil {
				t.Fatalf("accepted as %+v", f)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line", err)
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "some/fleet.yaml") {
				t.Errorf("got %q, want it to name the file and to contain %q", err, test.want)
			}
		})
	}
}

func TestWriteRoundTrip(t *testing.T) {
	f := parse(t, mixed)
	var first, second, manifests, again bytes.Buffer
	if err := f.Write(&first); err != nil {
		t.Fatal(err)
	}
	back := parse(t, first.String())
	if err := back.Write(&second); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Errorf("the file changed when it was read and written:\n%s\n%s", &first, &second)
	}
	if err := f.WriteManifests(&manifests); err != nil {
		t.Fatal(err)
	}
	if err := back.WriteManifests(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(manifests.Bytes(), again.Bytes()) {
		t.Error("the manifests differ between two readings of the same fleet")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(mixed))
	f.Add([]byte("apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups: [{name: a, nodes: 1, cpu: 1e3}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fleet, err := Parse("fuzz", bytes.NewReader(data))
		if err != nil {
			if strings.ContainsRune(err.Error(), 0) {
				t.Errorf("the error holds raw input: %q", err)
			}
			return
		}
		// What is accepted can be expanded; a few nodes are enough to see it.
		for i := range fleet.Groups {
			fleet.Groups[i].Nodes = min(fleet.Groups[i].Nodes, 2)
		}
		for _, slice := range fleet.Slices() {
			if len(slice.Spec.Devices) == 0 {
				t.Errorf("slice %s is empty", slice.Name)
			}
		}
		for _, node := range fleet.Nodes() {
			if node.Status.Allocatable.Pods().Sign() <= 0 {
				t.Errorf("node %s takes no Pods", node.Name)
			}
		}
	})
}
