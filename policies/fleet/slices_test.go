package fleet

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	blang "github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// TestBoardFigures holds the catalog against what the boards were seen to
// report, written down here a second time.
func TestBoardFigures(t *testing.T) {
	for _, want := range []struct {
		board, model, product, architecture, capability, driver, cuda string
		memory                                                        int64
	}{
		{"H100-SXM5-80GB", "H100", "NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", "580.105.8", "13.0.0", 85520809984},
		{"A100-SXM4-80GB", "A100", "NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", "580.126.20", "13.0.0", 85899345920},
		{"A100-SXM4-40GB", "A100", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0.0", "570.148.8", "12.8.0", 42949672960},
		{"L40S", "L40S", "NVIDIA L40S", "Ada Lovelace", "8.9.0", "595.91.7", "13.2.0", 48305799168},
		{"L4", "L4", "NVIDIA L4", "Ada Lovelace", "8.9.0", "580.126.20", "13.0.0", 24152899584},
		{"A10", "A10", "NVIDIA A10", "Ampere", "8.6.0", "580.126.20", "13.0.0", 24146608128},
		{"T4", "T4", "Tesla T4", "Turing", "7.5.0", "595.91.7", "13.2.0", 16106127360},
	} {
		f := New(Group{Name: "g", Nodes: 1, Board: want.board, GPUs: 1})
		if errs := f.Validate(); len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		devices, err := f.Devices("g-0000")
		if err != nil {
			t.Fatal(err)
		}
		a := devices[0].Attributes
		for name, value := range map[resourcev1.QualifiedName]string{
			AttributeType: "gpu", AttributeModel: want.model, AttributeProductName: want.product,
			AttributeArchitecture: want.architecture, AttributeBrand: "Nvidia",
		} {
			if got := a[name].StringValue; got == nil || *got != value {
				t.Errorf("%s: attribute %s is not %q", want.board, name, value)
			}
		}
		for name, value := range map[resourcev1.QualifiedName]string{
			AttributeComputeCapability: want.capability, AttributeDriverVersion: want.driver, AttributeCUDADriverVersion: want.cuda,
		} {
			if got := a[name].VersionValue; got == nil || *got != value {
				t.Errorf("%s: attribute %s is not %q", want.board, name, value)
			}
		}
		if got := devices[0].Capacity[CapacityMemory].Value; got.Value() != want.memory {
			t.Errorf("%s: memory is %d, want %d", want.board, got.Value(), want.memory)
		}
	}
	if got := len(Boards()); got != 7 {
		t.Errorf("the catalog has %d boards, this test knows 7", got)
	}
}

// TestSlicesKeepTheAPIRules checks what an API server would: sizes, names and
// versions, for every board and for pools of several slices.
func TestSlicesKeepTheAPIRules(t *testing.T) {
	var groups []Group
	for i, board := range Boards() {
		groups = append(groups, Group{Name: fmt.Sprintf("g%d", i), Nodes: 2, Board: board.Name, GPUs: 130})
	}
	f := New(append(groups, Group{Name: "cpu", Nodes: 3})...)
	uuids := map[string]string{}
	addresses := map[string]bool{}
	for _, slice := range f.Slices() {
		for _, message := range validation.IsDNS1123Subdomain(slice.Name) {
			t.Errorf("slice %q: %s", slice.Name, message)
		}
		if slice.Spec.Pool.Name != *slice.Spec.NodeName || slice.Spec.Pool.Generation != 1 || slice.Spec.Pool.ResourceSliceCount != 2 {
			t.Errorf("slice %s: unexpected pool %+v", slice.Name, slice.Spec.Pool)
		}
		if n := len(slice.Spec.Devices); n == 0 || n > resourcev1.ResourceSliceMaxDevices {
			t.Errorf("slice %s has %d devices", slice.Name, n)
		}
		for _, device := range slice.Spec.Devices {
			if n := len(device.Attributes) + len(device.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s/%s has %d attributes", slice.Name, device.Name, n)
			}
			for name, attribute := range device.Attributes {
				_, id, qualified := strings.Cut(string(name), "/")
				if !qualified {
					id = string(name)
				}
				if len(id) > resourcev1.DeviceMaxIDLength {
					t.Errorf("attribute %s is too long", name)
				}
				if attribute.VersionValue != nil {
					if _, err := blang.Parse(*attribute.VersionValue); err != nil {
						t.Errorf("attribute %s: %v", name, err)
					}
				}
			}
			where := slice.Spec.Pool.Name + "/" + device.Name
			uuid := *device.Attributes[AttributeUUID].StringValue
			if !regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(uuid) {
				t.Errorf("%s: uuid %s", where, uuid)
			}
			if other, taken := uuids[uuid]; taken {
				t.Errorf("%s and %s have the same uuid", where, other)
			}
			uuids[uuid] = where
			address := slice.Spec.Pool.Name + "/" + *device.Attributes[AttributePCIBusID].StringValue
			if addresses[address] {
				t.Errorf("two devices at %s", address)
			}
			addresses[address] = true
		}
	}
	if got, want := len(uuids), 7*2*130; got != want {
		t.Errorf("%d devices in slices, want %d", got, want)
	}
}

// TestListOrderIsContractOrder holds that going through a pool as Kubernetes
// does (slices by name, devices as listed) meets the devices byte-wise by name.
func TestListOrderIsContractOrder(t *testing.T) {
	for _, gpus := range []int{1, 8, 16, 128, 129, 256} {
		made := New(Group{Name: "g", Nodes: 1, Board: "T4", GPUs: gpus}).Slices()
		slices.SortFunc(made, func(a, b *resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
		var names []string
		for _, slice := range made {
			for _, device := range slice.Spec.Devices {
				names = append(names, device.Name)
			}
		}
		if len(names) != gpus || !slices.IsSorted(names) {
			t.Errorf("%d GPUs: devices are met in the order %v", gpus, names)
		}
	}
}

func TestGroupDriverVersion(t *testing.T) {
	for _, test := range []struct{ given, driver, cuda string }{
		{"535.183.06", "535.183.6", "12.2.0"},
		{"550.163.01", "550.163.1", "12.4.0"},
		{"999.1", "999.1.0", ""},
	} {
		f := New(Group{Name: "g", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1, DriverVersion: test.given})
		attributes := f.Slices()[0].Spec.Devices[0].Attributes
		if got := *attributes[AttributeDriverVersion].VersionValue; got != test.driver {
			t.Errorf("driver %s: got %s, want %s", test.given, got, test.driver)
		}
		cuda, published := attributes[AttributeCUDADriverVersion]
		if published != (test.cuda != "") || published && *cuda.VersionValue != test.cuda {
			t.Errorf("driver %s: unexpected CUDA version %+v", test.given, cuda)
		}
	}
}

func TestPlaces(t *testing.T) {
	type seen struct {
		numaNode        int64
		pcieRoot, busID string
	}
	var got []seen
	for _, at := range Places(8, 2) {
		got = append(got, seen{at.NUMANode, at.PCIeRoot(), at.BusID()})
	}
	want := []seen{
		{0, "pci0000:10", "0000:11:00.0"},
		{0, "pci0000:10", "0000:12:00.0"},
		{0, "pci0000:20", "0000:21:00.0"},
		{0, "pci0000:20", "0000:22:00.0"},
		{1, "pci0000:30", "0000:31:00.0"},
		{1, "pci0000:30", "0000:32:00.0"},
		{1, "pci0000:40", "0000:41:00.0"},
		{1, "pci0000:40", "0000:42:00.0"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPlacesOfAnySize holds for all sizes that addresses are unique, that the
// GPUs of one root share a NUMA node, and that the spread is even.
func TestPlacesOfAnySize(t *testing.T) {
	for gpus := 0; gpus <= MaxGPUsPerNode; gpus++ {
		for numaNodes := 1; numaNodes <= MaxNUMANodes; numaNodes++ {
			made := Places(gpus, numaNodes)
			if len(made) != gpus {
				t.Fatalf("%d GPUs: got %d places", gpus, len(made))
			}
			addresses, rootOn, perRoot, perNUMA := map[string]bool{}, map[string]int64{}, map[string]int{}, map[int64]int{}
			for _, at := range made {
				if addresses[at.BusID()] || len(at.BusID()) != len("0000:00:00.0") {
					t.Fatalf("%d GPUs on %d NUMA nodes: address %s", gpus, numaNodes, at.BusID())
				}
				addresses[at.BusID()] = true
				if on, seen := rootOn[at.PCIeRoot()]; seen && on != at.NUMANode {
					t.Fatalf("%d GPUs on %d NUMA nodes: root %s is on two of them", gpus, numaNodes, at.PCIeRoot())
				}
				rootOn[at.PCIeRoot()] = at.NUMANode
				perRoot[at.PCIeRoot()]++
				perNUMA[at.NUMANode]++
			}
			for root, count := range perRoot {
				if count > gpusPerRoot {
					t.Fatalf("%d GPUs on %d NUMA nodes: %d at root %s", gpus, numaNodes, count, root)
				}
			}
			if gpus >= numaNodes {
				counts := slices.Sorted(maps.Values(perNUMA))
				if len(counts) != numaNodes || counts[len(counts)-1]-counts[0] > 1 {
					t.Fatalf("%d GPUs on %d NUMA nodes are spread as %v", gpus, numaNodes, perNUMA)
				}
			}
		}
	}
}

func TestDevicesOfUnknownNode(t *testing.T) {
	f := New(Group{Name: "a", Nodes: 1, Board: "T4", GPUs: 1}, Group{Name: "a-b", Nodes: 1, Board: "L4", GPUs: 2})
	for _, name := range []string{"", "a", "a-0001", "a-00000", "b-0000"} {
		if devices, err := f.Devices(name); err == nil {
			t.Errorf("node %q has devices %v", name, devices)
		}
	}
	if devices, err := f.Devices("a-b-0000"); err != nil || len(devices) != 2 {
		t.Errorf("got %v, %v", devices, err)
	}
}

func TestNodes(t *testing.T) {
	f := parse(t, mixed)
	nodes := f.Nodes()
	if len(nodes) != f.NodeCount() {
		t.Fatalf("got %d nodes, want %d", len(nodes), f.NodeCount())
	}
	node := nodes[21]
	for label, want := range map[string]string{
		corev1.LabelHostname: "small-0001", "pool": "small", LabelGroup: "small", LabelBoard: "L4",
	} {
		if got := node.Labels[label]; got != want {
			t.Errorf("label %s: got %q, want %q", label, got, want)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "example.com/gpu" {
		t.Errorf("unexpected taints %v", node.Spec.Taints)
	}
	if node.Status.Conditions[0].Type != corev1.NodeReady || node.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("the node is not Ready: %v", node.Status.Conditions)
	}
	if got := nodes[0].Status.Allocatable.Cpu().String(); got != "128" {
		t.Errorf("cpu: got %s, want 128", got)
	}
	if _, labelled := nodes[26].Labels[LabelBoard]; labelled {
		t.Error("a node without GPUs is labelled with a board")
	}
	node.Labels["pool"] = "other"
	node.Spec.Taints[0].Key = "other"
	if again := f.Nodes()[21]; again.Labels["pool"] != "small" || again.Spec.Taints[0].Key != "example.com/gpu" {
		t.Error("changing a Node changed the fleet")
	}
}

// TestManifestsDecodeStrictly reads back what WriteManifests prints.
func TestManifestsDecodeStrictly(t *testing.T) {
	f := parse(t, mixed)
	var out bytes.Buffer
	if err := f.WriteManifests(&out); err != nil {
		t.Fatal(err)
	}
	nodes, devices := 0, 0
	for document := range strings.SplitSeq(strings.TrimPrefix(out.String(), "---\n"), "\n---\n") {
		if strings.Contains(document, "kind: Node\n") {
			var node corev1.Node
			if err := yaml.UnmarshalStrict([]byte(document), &node); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
			nodes++
			continue
		}
		var slice resourcev1.ResourceSlice
		if err := yaml.UnmarshalStrict([]byte(document), &slice); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		devices += len(slice.Spec.Devices)
	}
	if nodes != f.NodeCount() || devices != f.DeviceCount() {
		t.Errorf("read back %d nodes and %d devices, want %d and %d", nodes, devices, f.NodeCount(), f.DeviceCount())
	}
	if !strings.Contains(out.String(), "value: 81559Mi\n") {
		t.Error("memory is not printed in MiB")
	}
}

// TestGoldenDevice pins the shape of one device to the byte.
func TestGoldenDevice(t *testing.T) {
	f := New(Group{Name: "g", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1})
	got, err := yaml.Marshal(f.Slices()[0])
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata:
  name: 00000-gpu.gpuladder.dev-g-0000
spec:
  devices:
  - attributes:
      architecture:
        string: Hopper
      brand:
        string: Nvidia
      cudaComputeCapability:
        version: 9.0.0
      cudaDriverVersion:
        version: 13.0.0
      driverVersion:
        version: 580.105.8
      model:
        string: H100
      productName:
        string: NVIDIA H100 80GB HBM3
      resource.kubernetes.io/numaNode:
        int: 0
      resource.kubernetes.io/pciBusID:
        string: "0000:11:00.0"
      resource.kubernetes.io/pcieRoot:
        string: pci0000:10
      type:
        string: gpu
      uuid:
        string: GPU-33f272a0-9719-806e-be5b-4da6b555e261
    capacity:
      memory:
        value: 81559Mi
    name: gpu-0
  driver: gpu.gpuladder.dev
  nodeName: g-0000
  pool:
    generation: 1
    name: g-0000
    resourceSliceCount: 1
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
