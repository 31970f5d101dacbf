// Package nvml is the hardware of a node with NVIDIA GPUs, as NVIDIA's
// management library (NVML) tells of it: [Inventory] is the real counterpart of
// the fake driver's hardware.
//
// # How it works
//
// [Inventory.Run] opens NVML, reads the GPUs, listens to their events and asks
// each of them how it is, again and again, until its context is done. Pool and
// Health answer from what was seen last: neither ever waits for the hardware.
//
// No call of NVML is trusted to return. Those of one GPU run one after another
// under a time limit (see guard.go); a GPU whose call hangs is a trouble of that
// GPU, and the others go on. An NVML that can't be opened, that goes away, or
// that has lost a GPU is asked again with backoff, for as long as it takes.
//
// # Names
//
// A device is named by its PCI address, gpu-3b-00 for 0000:3b:00.0, so the name
// says which board it is and does not shift when another one is missing. A GPU
// that was seen since the node has booted stays in the pool, whatever becomes
// of it: it is remembered in a file, and Health says that it is lost.
//
// # Partitions
//
// A board in MIG mode is published whole and in every partition that NVML says
// it can have, with counters that say which of them exclude each other. A
// partition is made when a claim is prepared and destroyed when the claim ends.
package nvml
