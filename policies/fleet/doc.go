// Package fleet describes GPU fleets that do not exist: which nodes there are
// and which boards they carry. The lab, the simulator, the fake driver and the
// benchmarks all read the same description.
//
// # The fleet file
//
//	apiVersion: gpuladder.dev/v1alpha1
//	kind: Fleet
//	groups:
//	- {name: h100, nodes: 20, board: H100-SXM5-80GB, gpus: 8, cpu: "128", memory: 1Ti}
//	- {name: small, nodes: 4, board: L4, gpus: 2}
//
// It is a file format, not a CRD. [Parse] decodes it strictly: an unknown
// field, a field given twice or a wrong type is an error that names the file
// and the field. [Boards] lists the boards that are known; a file may add its
// own under `boards`.
//
// The nodes of a group are called <group>-0000, <group>-0001 and so on, their
// devices gpu-0, gpu-1 and so on. Each node is one pool, named after the node.
// Inside a pool the devices are listed byte-wise by name (gpu-1, gpu-10, gpu-2)
// and the slices are named so that their order by name is that of their
// devices: the allocator of Kubernetes, which takes slices by name and devices
// as listed, then goes through a pool in the order of Ladder's own contract.
//
// A group with `mig` has its boards partitioned as NVIDIA's driver publishes
// it, for good (`mig: {layout: [3g.40gb, 4g.40gb]}`) or on demand (`mig: {}`).
//
// Everything is a function of the file alone: the same file gives the same
// bytes on every machine.
//
// # Converters
//
// [FromOpenBNodes] and [OpenBPods] read the node and pod lists of Alibaba's
// GPU trace of 2023 (alibaba/clusterdata, cluster-trace-gpu-v2023), and
// [FromNodesCSV] the node list of its trace of 2026 (cluster-trace-v2026-spot-gpu).
// What the traces do not say is filled in by placeholders, which the comments
// of the converters state; a figure measured on a converted fleet says nothing
// about the memory or the architecture of those boards.
package fleet
