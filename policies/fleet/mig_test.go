package fleet

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func migPool(t *testing.T, board string, gpus int, layout ...string) Pool {
	t.Helper()
	f := New(Group{Name: "g", Nodes: 1, Board: board, GPUs: gpus, MIG: &MIG{Layout: layout}})
	if errs := f.Validate(); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	pool, err := f.Pool("g", "node-7")
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// TestMIGFigures holds the profiles against what nvidia-smi mig -lgip, -lgipp
// and NVIDIA's MIG guide say of them, written down here a second time: name,
// ID, how many, MiB, SMs, CE, DEC, JPEG, OFA, placements.
func TestMIGFigures(t *testing.T) {
	for board, want := range map[string][]string{
		"H100-SXM5-80GB": {
			"1g.10gb 19 x7 9984 16 1 1 1 0 {0,1,2,3,4,5,6}:1",
			"1g.10gb+me 20 x1 9984 16 1 1 1 1 {0,1,2,3,4,5,6}:1",
			"1g.20gb 15 x4 20096 26 1 1 1 0 {0,2,4,6}:2",
			"2g.20gb 14 x3 20096 32 2 2 2 0 {0,2,4}:2",
			"3g.40gb 9 x2 40448 60 3 3 3 0 {0,4}:4",
			"4g.40gb 5 x1 40448 64 4 4 4 0 {0}:4",
			"7g.80gb 0 x1 81152 132 8 7 7 1 {0}:8",
		},
		"A100-SXM4-80GB": {
			"1g.10gb 19 x7 9728 14 1 0 0 0 {0,1,2,3,4,5,6}:1",
			"1g.10gb+me 20 x1 9728 14 1 1 1 1 {0,1,2,3,4,5,6}:1",
			"1g.20gb 15 x4 19968 14 1 1 0 0 {0,2,4,6}:2",
			"2g.20gb 14 x3 19968 28 2 1 0 0 {0,2,4}:2",
			"3g.40gb 9 x2 40192 42 3 2 0 0 {0,4}:4",
			"4g.40gb 5 x1 40192 56 4 2 0 0 {0}:4",
			"7g.80gb 0 x1 80896 98 7 5 1 1 {0}:8",
		},
		"A100-SXM4-40GB": {
			"1g.5gb 19 x7 4864 14 1 0 0 0 {0,1,2,3,4,5,6}:1",
			"1g.5gb+me 20 x1 4864 14 1 1 1 1 {0,1,2,3,4,5,6}:1",
			"1g.10gb 15 x4 9856 14 1 1 0 0 {0,2,4,6}:2",
			"2g.10gb 14 x3 9856 28 2 1 0 0 {0,2,4}:2",
			"3g.20gb 9 x2 19968 42 3 2 0 0 {0,4}:4",
			"4g.20gb 5 x1 19968 56 4 2 0 0 {0}:4",
			"7g.40gb 0 x1 40192 98 7 5 1 1 {0}:8",
		},
		"L40S": nil, "L4": nil, "A10": nil, "T4": nil,
	} {
		pool := Pool{}
		if want != nil {
			pool = migPool(t, board, 1)
		}
		var got []string
		for _, p := range MIGProfiles(board) {
			starts := strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Starts), "[]"), " ", ",")
			got = append(got, fmt.Sprintf("%s %d x%d %d %d %d %d %d %d {%s}:%d", p.Name, p.ID, most(pool, p.Name),
				p.MemoryMiB, p.Multiprocessors, p.CopyEngines, p.Decoders, p.JPEGEngines, p.OFAEngines, starts, p.Size))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", board, got, want)
		}
	}
}

// most is how many devices of a profile the counters let be taken together.
func most(pool Pool, profile string) int {
	left := map[string]int64{}
	for name, counter := range pool.SharedCounters[0].Counters {
		left[name] = counter.Value.Value()
	}
	count := 0
devices:
	for _, d := range pool.Devices {
		if name := d.Attributes[AttributeProfile].StringValue; name == nil || *name != profile {
			continue
		}
		wants := d.ConsumesCounters[0].Counters
		for name, counter := range wants {
			if left[name] < counter.Value.Value() {
				continue devices
			}
		}
		for name, counter := range wants {
			left[name] -= counter.Value.Value()
		}
		count++
	}
	return count
}

// TestMIGProfilesAreCopies: who changes what it got does not change the catalog.
func TestMIGProfilesAreCopies(t *testing.T) {
	MIGProfiles("H100-SXM5-80GB")[0].Starts[0] = 5
	if got := MIGProfiles("H100-SXM5-80GB")[0].Starts[0]; got != 0 {
		t.Errorf("the first profile now starts at %d", got)
	}
}

// TestPartitionAsPublished spells one partition out.
func TestPartitionAsPublished(t *testing.T) {
	pool := migPool(t, "H100-SXM5-80GB", 2)
	gpu := slices.IndexFunc(pool.Devices, func(d resourcev1.Device) bool { return d.Name == "gpu-1" })
	at := slices.IndexFunc(pool.Devices, func(d resourcev1.Device) bool { return d.Name == "gpu-1-mig-1g20gb-15-4" })
	if gpu < 0 || at < 0 {
		t.Fatalf("gpu-1 is at %d and its partition at %d", gpu, at)
	}
	parent, device := pool.Devices[gpu], pool.Devices[at]
	words := map[string]string{}
	for name, a := range device.Attributes {
		switch {
		case a.StringValue != nil:
			words[string(name)] = *a.StringValue
		case a.VersionValue != nil:
			words[string(name)] = "v" + *a.VersionValue
		case a.IntValue != nil:
			words[string(name)] = fmt.Sprint(*a.IntValue)
		}
	}
	if want := map[string]string{
		"type": "mig", "profile": "1g.20gb", "parentUUID": *parent.Attributes["uuid"].StringValue,
		"model": "H100", "productName": "NVIDIA H100 80GB HBM3", "brand": "Nvidia", "architecture": "Hopper",
		"cudaComputeCapability": "v9.0.0", "driverVersion": "v580.105.8", "cudaDriverVersion": "v13.0.0",
		"resource.kubernetes.io/pciBusID": "0000:12:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:10", "resource.kubernetes.io/numaNode": "0",
	}; !maps.Equal(words, want) {
		t.Errorf("attributes\ngot  %v\nwant %v", words, want)
	}
	capacity := map[string]int64{}
	for name, c := range device.Capacity {
		capacity[string(name)] = c.Value.Value()
	}
	if want := map[string]int64{
		"memory": 20096 << 20, "multiprocessors": 26, "copyEngines": 1, "decoders": 1, "encoders": 0, "jpegEngines": 1, "ofaEngines": 0,
	}; !maps.Equal(capacity, want) {
		t.Errorf("capacity\ngot  %v\nwant %v", capacity, want)
	}
	if got, want := device.ConsumesCounters[0].CounterSet, "gpu-1-counter-set"; got != want {
		t.Errorf("consumes of %s, want %s", got, want)
	}
	if got, want := amountsOf(device.ConsumesCounters[0].Counters), map[string]int64{
		"memory": 20096 << 20, "multiprocessors": 26, "copy-engines": 1, "decoders": 1, "encoders": 0, "jpeg-engines": 1, "ofa-engines": 0,
		"memory-slice-4": 1, "memory-slice-5": 1,
	}; !maps.Equal(got, want) {
		t.Errorf("consumes\ngot  %v\nwant %v", got, want)
	}
	whole := map[string]int64{
		"memory": 81152 << 20, "multiprocessors": 132, "copy-engines": 8, "decoders": 7, "encoders": 0, "jpeg-engines": 7, "ofa-engines": 1,
	}
	for i := range 8 {
		whole[fmt.Sprintf("memory-slice-%d", i)] = 1
	}
	if got := amountsOf(pool.SharedCounters[1].Counters); pool.SharedCounters[1].Name != "gpu-1-counter-set" || !maps.Equal(got, whole) {
		t.Errorf("counter set %s\ngot  %v\nwant %v", pool.SharedCounters[1].Name, got, whole)
	}
	if got := amountsOf(parent.ConsumesCounters[0].Counters); !maps.Equal(got, whole) {
		t.Errorf("the whole board consumes %v", got)
	}
	if got := parent.Capacity[CapacityMemory].Value; got.Value() != 81152<<20 || *parent.Attributes[AttributeType].StringValue != TypeGPU {
		t.Errorf("the whole board is %s with %s", *parent.Attributes[AttributeType].StringValue, got.String())
	}
}

func amountsOf(counters map[string]resourcev1.Counter) map[string]int64 {
	amounts := map[string]int64{}
	for name, counter := range counters {
		amounts[name] = counter.Value.Value()
	}
	return amounts
}

// TestMIGSlicesKeepTheAPIRules checks what an API server would: sizes, names,
// counters that exist, and never counters beside devices.
func TestMIGSlicesKeepTheAPIRules(t *testing.T) {
	for board := range migProfiles {
		f := New(Group{Name: "g", Nodes: 1, Board: board, GPUs: 16, MIG: &MIG{}})
		if got, want := f.DeviceCount(), 16*26; got != want {
			t.Errorf("%s: counted %d devices, want %d", board, got, want)
		}
		sets := map[string]map[string]resourcev1.Counter{}
		var names []string
		made := f.Slices()
		for i, slice := range made {
			if want := fmt.Sprintf("%05x-gpu.gpuladder.dev-g-0000", i); slice.Name != want || slice.Spec.Pool.ResourceSliceCount != int64(len(made)) {
				t.Errorf("slice %s of %d, want %s of %d", slice.Name, slice.Spec.Pool.ResourceSliceCount, want, len(made))
			}
			counters, devices := slice.Spec.SharedCounters, slice.Spec.Devices
			if (len(counters) > 0) == (len(devices) > 0) || len(counters) > resourcev1.ResourceSliceMaxCounterSets || len(devices) > resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures {
				t.Errorf("slice %s has %d counter sets and %d devices", slice.Name, len(counters), len(devices))
			}
			for _, set := range counters {
				if len(set.Counters) > resourcev1.ResourceSliceMaxCountersPerCounterSet {
					t.Errorf("%s has %d counters", set.Name, len(set.Counters))
				}
				for name := range set.Counters {
					if messages := validation.IsDNS1123Label(name); len(messages) > 0 {
						t.Errorf("counter %s: %v", name, messages)
					}
				}
				sets[set.Name] = set.Counters
			}
			for _, device := range devices {
				names = append(names, device.Name)
				if messages := validation.IsDNS1123Label(device.Name); len(messages) > 0 {
					t.Errorf("device %s: %v", device.Name, messages)
				}
				if n := len(device.Attributes) + len(device.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
					t.Errorf("%s has %d attributes", device.Name, n)
				}
				if len(device.ConsumesCounters) != 1 {
					t.Fatalf("%s consumes of %d sets", device.Name, len(device.ConsumesCounters))
				}
				consumes := device.ConsumesCounters[0]
				if !strings.HasPrefix(consumes.CounterSet, GPUOf(device.Name)+"-counter") {
					t.Errorf("%s consumes of %s", device.Name, consumes.CounterSet)
				}
				for name, counter := range consumes.Counters {
					if total, exists := sets[consumes.CounterSet][name]; !exists || total.Value.Cmp(counter.Value) < 0 {
						t.Errorf("%s consumes %s of %s, of which there are %v", device.Name, counter.Value.String(), name, total)
					}
				}
			}
		}
		if len(sets) != 16 || len(names) != 16*26 || !slices.IsSorted(names) || len(slices.Compact(names)) != 16*26 {
			t.Errorf("%s: %d counter sets, %d devices, in order %t", board, len(sets), len(names), slices.IsSorted(names))
		}
	}
}

func TestMIGLayouts(t *testing.T) {
	for _, tc := range []struct {
		board, layout, want string
	}{
		{"H100-SXM5-80GB", "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb", "1g10gb-19-0 1g10gb-19-1 1g10gb-19-2 1g10gb-19-3 1g10gb-19-4 1g10gb-19-5 1g10gb-19-6"},
		{"H100-SXM5-80GB", "4g.40gb 3g.40gb", "3g40gb-9-4 4g40gb-5-0"},
		// The first place that the 3g takes leaves none to the 4g.
		{"A100-SXM4-80GB", "3g.40gb 4g.40gb", "3g40gb-9-4 4g40gb-5-0"},
		{"A100-SXM4-40GB", "3g.20gb 1g.5gb+me 1g.10gb", "1g10gb-15-6 1g5gb-me-20-4 3g20gb-9-0"},
		{"A100-SXM4-40GB", "7g.40gb", "7g40gb-0-0"},
	} {
		pool := migPool(t, tc.board, 1, strings.Fields(tc.layout)...)
		var names []string
		for _, d := range pool.Devices {
			names = append(names, strings.TrimPrefix(d.Name, "gpu-0-mig-"))
			if !strings.HasPrefix(*d.Attributes[AttributeUUID].StringValue, "MIG-") || len(d.ConsumesCounters) > 0 {
				t.Errorf("%s: uuid %v, consumes %v", d.Name, d.Attributes[AttributeUUID], d.ConsumesCounters)
			}
		}
		if got := strings.Join(names, " "); got != tc.want || len(pool.SharedCounters) > 0 {
			t.Errorf("%s: got %s, want %s; %d counter sets", tc.layout, got, tc.want, len(pool.SharedCounters))
		}
	}
	// A partition for good tells its memory slices.
	device := migPool(t, "H100-SXM5-80GB", 1, "3g.40gb", "4g.40gb").Devices[0]
	for i := range 8 {
		if _, has := device.Capacity[resourcev1.QualifiedName(fmt.Sprintf("memorySlice%d", i))]; has != (i >= 4) {
			t.Errorf("memory slice %d: %t", i, has)
		}
	}
}

func TestMIGRefused(t *testing.T) {
	group := func(board, mig string) string {
		return "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups: [{name: a, nodes: 1, board: " + board + ", gpus: 1, mig: " + mig + "}]\n"
	}
	for name, tc := range map[string]struct{ document, want string }{
		"not able":        {group("L40S", "{}"), "groups[0].mig: Forbidden: only A100-SXM4-40GB, A100-SXM4-80GB, H100-SXM5-80GB can be partitioned"},
		"unknown profile": {group("H100-SXM5-80GB", "{layout: [3g.40gb, 1g.5gb]}"), `groups[0].mig.layout[1]: Unsupported value: "1g.5gb": supported values: "1g.10gb", "1g.10gb+me"`},
		"too many":        {group("H100-SXM5-80GB", "{layout: [4g.40gb, 4g.40gb]}"), "groups[0].mig.layout: Invalid value: [\"4g.40gb\",\"4g.40gb\"]: 4g.40gb does not fit beside those before it"},
		"engines":         {group("A100-SXM4-40GB", "{layout: [1g.5gb+me, 1g.5gb+me]}"), "1g.5gb+me does not fit"},
		"eight":           {group("H100-SXM5-80GB", "{layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]}"), "1g.10gb does not fit"},
		"unknown field":   {group("H100-SXM5-80GB", "{profiles: [7g.80gb]}"), `unknown field "groups[0].mig.profiles"`},
		"no list":         {group("H100-SXM5-80GB", "{layout: 7g.80gb}"), "groups.mig.layout: must be of type []string, is a string"},
		"a large fleet":   {strings.Replace(group("H100-SXM5-80GB", "{}"), "nodes: 1", "nodes: 10000", 1), ""},
	} {
		_, err := Parse("fleet.yaml", strings.NewReader(tc.document))
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if _, err := Parse("fleet.yaml", strings.NewReader(strings.NewReplacer("nodes: 1", "nodes: 10000", "gpus: 1", "gpus: 8").Replace(group("H100-SXM5-80GB", "{}")))); err == nil || !strings.Contains(err.Error(), "at most 1048576 devices in all") {
		t.Errorf("two million partitions: %v", err)
	}
}
