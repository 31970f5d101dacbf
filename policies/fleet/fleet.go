package fleet

// This file holds the types of the fleet file and their defaults.

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Kind is the kind of a fleet file.
const Kind = "Fleet"

// Labels of the nodes of a fleet.
const (
	// LabelGroup is the group that the node belongs to.
	LabelGroup = "fleet.gpuladder.dev/group"
	// LabelBoard is the board that the node carries; absent without GPUs.
	LabelBoard = "fleet.gpuladder.dev/board"
)

// Bounds of a fleet. They keep names in order (four digits of a node) and PCI
// addresses unique, and they make a file that asks for millions of devices by
// mistake an error instead of a machine without memory.
const (
	MaxNodesPerGroup = 10000
	MaxGPUsPerNode   = 256
	MaxNUMANodes     = 16
	MaxDevices       = 1 << 20
)

// What a node gets when its group does not say. A board of a training server
// comes with 16 cores and 128 GiB of host memory in the common designs of
// eight boards with 128 cores and 1 TiB.
const (
	DefaultPods       = 110
	defaultCPUPerGPU  = 16
	defaultMemPerGPU  = 128 << 30
	twoSocketsFromGPU = 4
)

// Fleet is a set of nodes with their GPUs.
type Fleet struct {
	metav1.TypeMeta `json:",inline"`
	// Boards are boards that the catalog does not have. A name of the catalog
	// can't be given another meaning.
	Boards []Board `json:"boards,omitempty"`
	// Groups are the nodes, by kind. At least one.
	Groups []Group `json:"groups"`
}

// Group is a number of equal nodes.
type Group struct {
	// Name is the prefix of the nodes' names: a DNS label of up to 50 characters.
	Name string `json:"name"`
	// Nodes is the number of nodes, 1 to [MaxNodesPerGroup].
	Nodes int `json:"nodes"`
	// Board names the board that each node carries, of the catalog or of
	// Fleet.Boards. Empty: nodes without GPUs.
	Board string `json:"board,omitempty"`
	// GPUs is the number of boards in each node, up to [MaxGPUsPerNode].
	GPUs int `json:"gpus,omitempty"`
	// CPU is what a node can allocate. Default: 16 cores for each GPU.
	CPU resource.Quantity `json:"cpu,omitzero"`
	// Memory is what a node can allocate, in bytes. Default: 128Gi for each GPU.
	Memory resource.Quantity `json:"memory,omitzero"`
	// Pods is how many Pods a node takes. Default: [DefaultPods].
	Pods int64 `json:"pods,omitempty"`
	// NUMANodes is the number of NUMA nodes over which a node's GPUs are spread
	// evenly, in blocks. Default: 2 from four GPUs on, otherwise 1.
	NUMANodes int `json:"numaNodes,omitempty"`
	// DriverVersion is the version of NVIDIA's driver, such as "550.163.01", in
	// place of the one that the board was seen with.
	DriverVersion string `json:"driverVersion,omitempty"`
	// MIG partitions the boards. Without it they are whole.
	MIG *MIG `json:"mig,omitempty"`
	// Labels are added to each node.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are those of each node.
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// New returns a fleet of groups with defaults set. It is not validated.
func New(groups ...Group) *Fleet {
	f := &Fleet{TypeMeta: typeMeta(), Groups: groups}
	f.Default()
	return f
}

func typeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: Kind}
}

// Default sets what the file left out.
func (f *Fleet) Default() {
	for i := range f.Boards {
		f.Boards[i].Default()
	}
	for i := range f.Groups {
		f.Groups[i].Default()
	}
}

// Default sets what the file left out.
func (g *Group) Default() {
	share := int64(max(g.GPUs, 1))
	if g.CPU.IsZero() {
		g.CPU = *resource.NewQuantity(share*defaultCPUPerGPU, resource.DecimalSI)
	}
	if g.Memory.IsZero() {
		g.Memory = *resource.NewQuantity(share*defaultMemPerGPU, resource.BinarySI)
	}
	if g.Pods == 0 {
		g.Pods = DefaultPods
	}
	if g.NUMANodes == 0 {
		g.NUMANodes = DefaultNUMANodes(g.GPUs)
	}
}

// Resize gives the nodes of a group with defaults another number of GPUs, spread
// over NUMA nodes as if the file had said so.
func (g *Group) Resize(gpus int) {
	if g.NUMANodes == DefaultNUMANodes(g.GPUs) {
		g.NUMANodes = DefaultNUMANodes(gpus)
	}
	g.NUMANodes = min(g.NUMANodes, max(gpus, 1))
	g.GPUs = gpus
}

// DefaultNUMANodes is how many NUMA nodes the GPUs of a node are spread over
// where nothing is said: two from four GPUs on, as in common servers.
func DefaultNUMANodes(gpus int) int {
	if gpus >= twoSocketsFromGPU {
		return 2
	}
	return 1
}

// NodeName is the name of a node of the group, counted from 0.
func (g *Group) NodeName(index int) string {
	return fmt.Sprintf("%s-%04d", g.Name, index)
}

// NodeNames are the names of all nodes, in the order of the file.
func (f *Fleet) NodeNames() []string {
	var names []string
	for i := range f.Groups {
		for n := range f.Groups[i].Nodes {
			names = append(names, f.Groups[i].NodeName(n))
		}
	}
	return names
}

// NodeCount is the number of nodes.
func (f *Fleet) NodeCount() int {
	count := 0
	for i := range f.Groups {
		count += f.Groups[i].Nodes
	}
	return count
}

// DeviceCount is the number of devices of all nodes: GPUs and partitions.
func (f *Fleet) DeviceCount() int {
	count := 0
	for i := range f.Groups {
		count += f.Groups[i].Nodes * f.Groups[i].GPUs * f.Groups[i].devicesPerGPU()
	}
	return count
}
