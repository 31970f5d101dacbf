package decidetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Board is a kind of device, as it reports itself.
type Board struct {
	Model, Product, Architecture, Capability, Memory string
}

// Boards are real ones, the most wanted first.
var Boards = []Board{
	{"H100", "NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", "81559Mi"},
	{"A100", "NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", "81920Mi"},
	{"A100", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0.0", "40960Mi"},
	{"L4", "NVIDIA L4", "Ada Lovelace", "8.9.0", "23034Mi"},
	{"T4", "Tesla T4", "Turing", "7.5.0", "15360Mi"},
}

const (
	numaNode = "resource.kubernetes.io/numaNode"
	pcieRoot = "resource.kubernetes.io/pcieRoot"
)

func uid(parts ...string) types.UID {
	out := ""
	for _, p := range parts {
		out += "-" + p
	}
	return types.UID("uid" + out)
}

// pools gives most nodes a pool of their own, and some clusters pools that
// several nodes reach, pools of partitions, and a pool of a node that is gone.
func (d *draw) pools() {
	for _, n := range d.c.Nodes {
		if d.oneIn8("node without devices") {
			continue
		}
		driver := v1alpha1.DriverName
		if d.nvidia && d.oneIn2("nvidia node") {
			driver = v1alpha1.NVIDIADriverName
		}
		onNode := func(s *resourceapi.ResourceSliceSpec) { s.NodeName = ptr.To(n.Name) }
		if d.counters && d.oneIn2("partitioned node") {
			d.partitions(n.Name, onNode)
			continue
		}
		d.pool(driver, n.Name, 1+d.bits(2, "devices"), onNode)
	}
	if d.oneIn16("ghost") {
		d.pool(v1alpha1.DriverName, "ghost", 2, func(s *resourceapi.ResourceSliceSpec) { s.NodeName = ptr.To("ghost") })
	}
	if d.fabric {
		d.fabricPool()
	}
	if d.oneIn8("other driver") {
		d.pool("nic.example.com", "net", 2, func(s *resourceapi.ResourceSliceSpec) { s.AllNodes = ptr.To(true) })
	}
}

// fabricPool is reached over a network: by a label, from everywhere, or as
// each device says.
func (d *draw) fabricPool() {
	inZone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}}
	way := pickOne(d, "fabric way", "selector", "all", "device")
	n := rapid.IntRange(1, 3).Draw(d.T, "fabric devices")
	d.pool(v1alpha1.DriverName, "fabric", n, func(s *resourceapi.ResourceSliceSpec) {
		switch way {
		case "selector":
			s.NodeSelector = inZone
		case "all":
			s.AllNodes = ptr.To(true)
		case "device":
			s.PerDeviceNodeSelection = ptr.To(true)
			for i := range s.Devices {
				switch pickOne(d, "device way", "name", "selector", "all") {
				case "name":
					s.Devices[i].NodeName = ptr.To(pickOne(d, "device node", d.c.Nodes...).Name)
				case "selector":
					s.Devices[i].NodeSelector = inZone
				case "all":
					s.Devices[i].AllNodes = ptr.To(true)
				}
			}
		}
	})
}

// pool makes a pool of 1 to 3 slices, now and then with an older generation
// beside it, incomplete, or with a name given twice.
func (d *draw) pool(driver, name string, n int, place func(*resourceapi.ResourceSliceSpec)) {
	names := rapid.Permutation([]string{"gpu-0", "gpu-1", "gpu-10", "gpu-2", "gpu-3"}).Draw(d.T, "device names")
	board, mixed := pickOne(d, "board", Boards...), d.oneIn2("mixed boards")
	parts := make([][]resourceapi.Device, rapid.IntRange(1, min(3, n)).Draw(d.T, "slices"))
	for i := range n {
		if mixed {
			board = pickOne(d, "board", Boards...)
		}
		part := i % len(parts)
		if i >= len(parts) {
			part = rapid.IntRange(0, len(parts)-1).Draw(d.T, "slice")
		}
		parts[part] = append(parts[part], d.device(names[i], board))
	}
	generation := int64(1)
	if d.oneIn8("older generation") {
		generation = 2
		old := []resourceapi.Device{d.device("gpu-0", Boards[0]), d.device("gpu-9", Boards[0])}
		d.slice(driver, name, 1, 1, 0, old, nil, place)
	}
	if d.roughPools && d.oneIn8("name twice") {
		parts[0] = append(parts[0], parts[0][0])
	}
	count := len(parts)
	if d.roughPools && d.oneIn4("incomplete") {
		count++
	}
	for i, devices := range parts {
		d.slice(driver, name, generation, count, i, devices, nil, place)
	}
}

func (d *draw) slice(driver, pool string, generation int64, count, i int, devices []resourceapi.Device, counters []resourceapi.CounterSet, place func(*resourceapi.ResourceSliceSpec)) {
	s := &resourceapi.ResourceSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{
			// The name must say nothing about the order.
			Name: fmt.Sprintf("%s-%s-%d-%d-%s", pickOne(d, "slice prefix", "a", "b", "c"), pool, generation, i, driver[:3]),
		},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:  driver,
			Pool:    resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: int64(count)},
			Devices: devices, SharedCounters: counters,
		},
	}
	place(&s.Spec)
	d.c.Slices = append(d.c.Slices, s)
}

// device is a board whose attributes are missing at random.
func (d *draw) device(name string, b Board) resourceapi.Device {
	out := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	set := func(name string, a resourceapi.DeviceAttribute) {
		if !d.oneIn16("missing " + name) {
			out.Attributes[resourceapi.QualifiedName(name)] = a
		}
	}
	text := func(v string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &v} }
	version := func(v string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &v} }
	set("type", text("gpu"))
	set("brand", text("Nvidia"))
	set("model", text(b.Model))
	set("productName", text(b.Product))
	set("architecture", text(b.Architecture))
	set("cudaComputeCapability", version(b.Capability))
	set("driverVersion", version(pickOne(d, "driver version", "570.148.8", "550.54.14", "535.104.5")))
	set(numaNode, resourceapi.DeviceAttribute{IntValue: ptr.To(int64(d.bits(1, "numa")))})
	set(pcieRoot, text(pickOne(d, "pcie root", "pci0000:00", "pci0000:10")))
	if !d.oneIn16("missing memory") {
		out.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(b.Memory)}}
	}
	if d.sharing && d.oneIn2("shared device") {
		d.share(&out)
	}
	if d.oneIn16("unhealthy") {
		set("health", text("Unhealthy"))
	}
	if d.oneIn8("tainted") {
		out.Taints = append(out.Taints, d.taint())
	}
	return out
}

// share lets several claims use a device.
func (d *draw) share(out *resourceapi.Device) {
	out.AllowMultipleAllocations = ptr.To(true)
	ten, forty, eighty := resource.MustParse("10Gi"), resource.MustParse("40Gi"), resource.MustParse("80Gi")
	capacity := resourceapi.DeviceCapacity{Value: eighty}
	switch pickOne(d, "request policy", "range", "values", "none") {
	case "range":
		capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{
			Default: &ten, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &ten, Max: &eighty, Step: &ten},
		}
	case "values":
		capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: &forty, ValidValues: []resource.Quantity{ten, forty}}
	}
	out.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": capacity}
}

func (d *draw) taint() resourceapi.DeviceTaint {
	return pickOne(d, "taint",
		resourceapi.DeviceTaint{Key: v1alpha1.TaintUnhealthy, Value: "xid-79", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		resourceapi.DeviceTaint{Key: v1alpha1.TaintFailed, Value: "lost", Effect: resourceapi.DeviceTaintEffectNoExecute},
		resourceapi.DeviceTaint{Key: "example.com/maintenance", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		resourceapi.DeviceTaint{Key: "example.com/maintenance", Effect: resourceapi.DeviceTaintEffectNone},
	)
}

// partitions is a board that can be used whole, in halves or in quarters.
func (d *draw) partitions(name string, place func(*resourceapi.ResourceSliceSpec)) {
	board := Boards[0]
	set := resourceapi.CounterSet{Name: "board-0", Counters: map[string]resourceapi.Counter{
		"memory": {Value: resource.MustParse("80Gi")}, "engines": {Value: resource.MustParse("4")},
	}}
	var devices []resourceapi.Device
	for _, p := range []struct{ name, memory, engines string }{
		{"whole", "80Gi", "4"}, {"half-0", "40Gi", "2"}, {"half-1", "40Gi", "2"}, {"quarter-0", "20Gi", "1"}, {"quarter-1", "20Gi", "1"},
	} {
		if p.name != "whole" && d.oneIn4("partition missing") {
			continue
		}
		x := d.device(p.name, board)
		x.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set.Name, Counters: map[string]resourceapi.Counter{
			"memory": {Value: resource.MustParse(p.memory)}, "engines": {Value: resource.MustParse(p.engines)},
		}}}
		devices = append(devices, x)
	}
	if d.roughPools && d.oneIn4("unknown counter set") {
		devices[0].ConsumesCounters[0].CounterSet = "board-9"
	}
	d.slice(v1alpha1.DriverName, name, 1, 2, 0, nil, []resourceapi.CounterSet{set}, place)
	d.slice(v1alpha1.DriverName, name, 1, 2, 1, devices, nil, place)
}

func (d *draw) rules() {
	if !d.oneIn4("taint rule") {
		return
	}
	selector := pickOne(d, "rule selects",
		&resourceapi.DeviceTaintSelector{Pool: ptr.To("n-1")},
		&resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Device: ptr.To("gpu-0")},
		nil,
		&resourceapi.DeviceTaintSelector{},
	)
	d.c.Rules = append(d.c.Rules, &resourceapi.DeviceTaintRule{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceTaintRule"},
		ObjectMeta: metav1.ObjectMeta{Name: "rule"},
		Spec:       resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: d.taint()},
	})
}
