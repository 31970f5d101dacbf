package tiers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

func poolOf(t *testing.T, node string, labels map[string]string) inventory.Pool {
	t.Helper()
	pool, err := Default().ForNode(node, labels)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// word is an attribute as text.
func word(d resourcev1.Device, name resourcev1.QualifiedName) string {
	a := d.Attributes[name]
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	}
	return ""
}

// TestDefaultCatalog holds each tier against what real boards report (captures
// of nvidia-smi and its published output; memory in MiB), written down a third
// time: the whole board as it is published, and the number of devices.
func TestDefaultCatalog(t *testing.T) {
	want := []string{
		"h100: 8 of gpu H100 | NVIDIA H100 80GB HBM3 | Nvidia Hopper 9.0.0 | driver 580.105.8 CUDA 13.0.0 | 81559 MiB | 0 counter sets",
		"a100-80: 8 of gpu A100 | NVIDIA A100-SXM4-80GB | Nvidia Ampere 8.0.0 | driver 580.126.20 CUDA 13.0.0 | 81920 MiB | 0 counter sets",
		"a100-40: 8 of gpu A100 | NVIDIA A100-SXM4-40GB | Nvidia Ampere 8.0.0 | driver 570.148.8 CUDA 12.8.0 | 40960 MiB | 0 counter sets",
		"l40s: 4 of gpu L40S | NVIDIA L40S | Nvidia Ada Lovelace 8.9.0 | driver 595.91.7 CUDA 13.2.0 | 46068 MiB | 0 counter sets",
		"l4: 4 of gpu L4 | NVIDIA L4 | Nvidia Ada Lovelace 8.9.0 | driver 580.126.20 CUDA 13.0.0 | 23034 MiB | 0 counter sets",
		"a10: 4 of gpu A10 | NVIDIA A10 | Nvidia Ampere 8.6.0 | driver 580.126.20 CUDA 13.0.0 | 23028 MiB | 0 counter sets",
		"t4: 4 of gpu T4 | Tesla T4 | Nvidia Turing 7.5.0 | driver 595.91.7 CUDA 13.2.0 | 15360 MiB | 0 counter sets",
		"h100-mig: 208 of gpu H100 | NVIDIA H100 80GB HBM3 | Nvidia Hopper 9.0.0 | driver 580.105.8 CUDA 13.0.0 | 81152 MiB | 8 counter sets",
		"a100-80-mig: 208 of gpu A100 | NVIDIA A100-SXM4-80GB | Nvidia Ampere 8.0.0 | driver 580.126.20 CUDA 13.0.0 | 80896 MiB | 8 counter sets",
		"a100-40-mig: 208 of gpu A100 | NVIDIA A100-SXM4-40GB | Nvidia Ampere 8.0.0 | driver 570.148.8 CUDA 12.8.0 | 40192 MiB | 8 counter sets",
	}
	var got []string
	for _, tier := range Default().Names() {
		pool := poolOf(t, "n", map[string]string{LabelTier: tier})
		d := pool.Devices[0]
		memory := d.Capacity[fleet.CapacityMemory].Value
		got = append(got, fmt.Sprintf("%s: %d of %s %s | %s | %s %s %s | driver %s CUDA %s | %d MiB | %d counter sets",
			tier, len(pool.Devices), word(d, fleet.AttributeType), word(d, fleet.AttributeModel), word(d, fleet.AttributeProductName),
			word(d, fleet.AttributeBrand), word(d, fleet.AttributeArchitecture), word(d, fleet.AttributeComputeCapability),
			word(d, fleet.AttributeDriverVersion), word(d, fleet.AttributeCUDADriverVersion), memory.Value()>>20, len(pool.SharedCounters)))
		if memory.Value()%(1<<20) != 0 {
			t.Errorf("%s: memory is %d bytes", tier, memory.Value())
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestPartitionsOfTiers spells out the partitions of one board of each MIG tier:
// profile, MiB, multiprocessors, and how many places there are.
func TestPartitionsOfTiers(t *testing.T) {
	for tier, want := range map[string]string{
		"h100-mig":    "1g.10gb 9984 16 x7, 1g.10gb+me 9984 16 x7, 1g.20gb 20096 26 x4, 2g.20gb 20096 32 x3, 3g.40gb 40448 60 x2, 4g.40gb 40448 64 x1, 7g.80gb 81152 132 x1",
		"a100-80-mig": "1g.10gb 9728 14 x7, 1g.10gb+me 9728 14 x7, 1g.20gb 19968 14 x4, 2g.20gb 19968 28 x3, 3g.40gb 40192 42 x2, 4g.40gb 40192 56 x1, 7g.80gb 80896 98 x1",
		"a100-40-mig": "1g.10gb 9856 14 x4, 1g.5gb 4864 14 x7, 1g.5gb+me 4864 14 x7, 2g.10gb 9856 28 x3, 3g.20gb 19968 42 x2, 4g.20gb 19968 56 x1, 7g.40gb 40192 98 x1",
	} {
		pool := poolOf(t, "n", map[string]string{LabelTier: tier, LabelGPUs: "1"})
		places := map[string]int{}
		for _, d := range pool.Devices[1:] {
			memory, sms := d.Capacity[fleet.CapacityMemory].Value, d.Capacity[fleet.CapacityMultiprocessors].Value
			places[fmt.Sprintf("%s %d %d", word(d, fleet.AttributeProfile), memory.Value()>>20, sms.Value())]++
			if word(d, fleet.AttributeType) != "mig" || word(d, fleet.AttributeParentUUID) != word(pool.Devices[0], fleet.AttributeUUID) || word(d, fleet.AttributeUUID) != "" {
				t.Errorf("%s: %s is %s of %s, uuid %q", tier, d.Name, word(d, fleet.AttributeType), word(d, fleet.AttributeParentUUID), word(d, fleet.AttributeUUID))
			}
		}
		var got []string
		for profile, n := range places {
			got = append(got, fmt.Sprintf("%s x%d", profile, n))
		}
		slices.Sort(got)
		if joined := strings.Join(got, ", "); joined != want {
			t.Errorf("%s:\ngot  %s\nwant %s", tier, joined, want)
		}
	}
}

// TestNodesDiffer: the hardware is a function of name and labels, and no two
// nodes share a UUID.
func TestNodesDiffer(t *testing.T) {
	labels := map[string]string{LabelTier: "h100", LabelGPUs: "2"}
	first, again, second := poolOf(t, "a", labels), poolOf(t, "a", labels), poolOf(t, "b", labels)
	if !reflect.DeepEqual(first, again) {
		t.Error("the same node has other hardware the second time")
	}
	for i := range first.Devices {
		if word(first.Devices[i], fleet.AttributeUUID) == word(second.Devices[i], fleet.AttributeUUID) {
			t.Errorf("two nodes have the same %s", first.Devices[i].Name)
		}
	}
}

// TestNUMANodes: four boards and more are spread over two CPUs.
func TestNUMANodes(t *testing.T) {
	for gpus, want := range map[string]string{"": "0 0 0 0 1 1 1 1", "1": "0", "2": "0 0", "4": "0 0 1 1"} {
		labels := map[string]string{LabelTier: "h100"}
		if gpus != "" {
			labels[LabelGPUs] = gpus
		}
		var numa []string
		for _, d := range poolOf(t, "n", labels).Devices {
			numa = append(numa, word(d, fleet.AttributeNUMANode))
		}
		if got := strings.Join(numa, " "); got != want {
			t.Errorf("%q GPUs: on NUMA nodes %s, want %s", gpus, got, want)
		}
	}
	// Giving one node another number changes no other node.
	if n := len(poolOf(t, "n", map[string]string{LabelTier: "h100"}).Devices); n != 8 {
		t.Errorf("then the tier has %d GPUs", n)
	}
}

func TestChoose(t *testing.T) {
	c := Default()
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"tier":       {map[string]string{LabelTier: "l4"}, "4 GPUs of tier l4"},
		"one":        {map[string]string{LabelTier: "l4", LabelGPUs: "1"}, "1 GPU of tier l4"},
		"most":       {map[string]string{LabelTier: "t4", LabelGPUs: "256"}, "256 GPUs of tier t4"},
		"none":       {map[string]string{LabelGPUs: "1"}, "the node has no label gpuladder.dev/fake-tier"},
		"empty":      {map[string]string{LabelTier: ""}, `label gpuladder.dev/fake-tier: there is no tier ""; there are h100, a100-80, a100-40, l40s, l4, a10, t4, h100-mig, a100-80-mig, a100-40-mig`},
		"other case": {map[string]string{LabelTier: "H100"}, `label gpuladder.dev/fake-tier: there is no tier "H100"; there are h100, a100-80, a100-40, l40s, l4, a10, t4, h100-mig, a100-80-mig, a100-40-mig`},
		"no GPUs":    {map[string]string{LabelTier: "l4", LabelGPUs: "0"}, `label gpuladder.dev/fake-gpus: must be a number from 1 to 256, is "0"`},
		"too many":   {map[string]string{LabelTier: "l4", LabelGPUs: "257"}, `label gpuladder.dev/fake-gpus: must be a number from 1 to 256, is "257"`},
		"no number":  {map[string]string{LabelTier: "l4", LabelGPUs: "two"}, `label gpuladder.dev/fake-gpus: must be a number from 1 to 256, is "two"`},
	} {
		choice, err := c.Choose(tc.labels)
		got := choice.String()
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
		if errors.Is(err, ErrNoTier) != (name == "none") {
			t.Errorf("%s: no tier: %t", name, errors.Is(err, ErrNoTier))
		}
	}
	if _, err := c.ForNode("n", nil); !errors.Is(err, ErrNoTier) {
		t.Errorf("a node without labels: %v", err)
	}
	if _, err := c.Pool("n", Choice{Tier: "b200", GPUs: 2}); err == nil || err.Error() != `making 2 GPUs of tier b200, the fleet has no group "b200"` {
		t.Errorf("a choice of another catalog: %v", err)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiers.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const head = "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\n"

func TestLoad(t *testing.T) {
	c, err := Load(write(t, head+`
boards: [{name: X1, model: X1, productName: Example X1, architecture: Example, computeCapability: "1.2", memory: 1Gi}]
groups:
- {name: own, nodes: 1, board: X1, gpus: 3}
- {name: split, nodes: 1, board: A100-SXM4-40GB, gpus: 2, mig: {layout: [3g.20gb, 3g.20gb]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Names(); !slices.Equal(got, []string{"own", "split"}) {
		t.Errorf("tiers are %v", got)
	}
	pool, err := c.ForNode("n", map[string]string{LabelTier: "own"})
	if err != nil || len(pool.Devices) != 3 || word(pool.Devices[2], fleet.AttributeModel) != "X1" {
		t.Errorf("a board of the file: %v, %v", pool.Devices, err)
	}
	pool, err = c.ForNode("n", map[string]string{LabelTier: "split", LabelGPUs: "1"})
	if err != nil || len(pool.Devices) != 2 || pool.Devices[1].Name != "gpu-0-mig-3g20gb-9-4" || pool.SharedCounters != nil {
		t.Errorf("a split board: %v, %v", pool.Devices, err)
	}
	built, err := Load("")
	if err != nil || !slices.Equal(built.Names(), Default().Names()) {
		t.Errorf("without a path: %v, %v", built, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"unknown field": {"groups: [{name: a, nodes: 1, board: T4, gpu: 1}]", `unknown field "groups[0].gpu"`},
		"unknown board": {"groups: [{name: a, nodes: 1, board: H200, gpus: 1}]", `groups[0].board: Unsupported value: "H200"`},
		"twice":         {"groups: [{name: a, nodes: 1, board: T4, gpus: 1}, {name: a, nodes: 1, board: L4, gpus: 1}]", `groups[1].name: Duplicate value: "a"`},
		"no GPUs":       {"groups: [{name: a, nodes: 1, board: T4, gpus: 1}, {name: cpu, nodes: 1}]", "groups[1].board: Required value: a tier has GPUs"},
		"no tiers":      {"groups: []", "groups: Required value"},
	} {
		path := write(t, head+tc.text)
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %s with the path", name, err, tc.want)
		}
	}
}
