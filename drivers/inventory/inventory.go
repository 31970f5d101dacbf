// Package inventory is the border between the driver and the hardware: what a
// node has, what is wrong with it, and when that changes. The real driver
// reads it from NVML, the fake one from a catalog and from faults by request.
package inventory

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Source is what is needed to publish the devices of one node. It is safe for
// concurrent use.
type Source interface {
	// Pool returns all devices of the node as they are to be published,
	// byte-wise by name. The caller may keep and change what it gets.
	Pool(ctx context.Context) (Pool, error)
	// Changed receives after Pool, or for an [Inventory] Health, has begun to
	// return something else. Several changes may be told by one signal; no
	// change is left without one after it.
	Changed() <-chan struct{}
}

// Inventory is the hardware of one node. It is safe for concurrent use.
//
// A device that fails stays in the pool, without taints: what is wrong with it
// is told by Health, and the driver makes the taints. It is left out of the
// pool only once it is known to be gone for good.
type Inventory interface {
	Source
	// Health returns what is wrong with the devices now.
	Health(ctx context.Context) (Report, error)
	// Edits returns what a container needs to use a device of the pool: device
	// nodes, mounts, variables of the hardware's own. For a partition that is
	// made on demand it makes it first, or finds it made.
	Edits(ctx context.Context, device string) (specs.ContainerEdits, error)
	// Release undoes what Edits has made, once no claim uses the device any
	// more. It is no error if there is nothing to undo.
	Release(ctx context.Context, device string) error
}

// Pool is what one node has.
type Pool struct {
	// Devices are byte-wise by name.
	Devices []resourcev1.Device
	// SharedCounters are what partitionable devices consume parts of. Empty
	// where no device can be partitioned.
	SharedCounters []resourcev1.CounterSet
}

// DeepCopy returns a Pool that shares nothing with this one.
func (p Pool) DeepCopy() Pool {
	var made Pool
	for i := range p.Devices {
		made.Devices = append(made.Devices, *p.Devices[i].DeepCopy())
	}
	for i := range p.SharedCounters {
		made.SharedCounters = append(made.SharedCounters, *p.SharedCounters[i].DeepCopy())
	}
	return made
}

// Severity is how bad a trouble is. The worst of several counts.
type Severity int

// The severities, in order.
const (
	// Healthy devices carry no taint.
	Healthy Severity = iota
	// Suspect devices get no new work and keep what runs on them.
	Suspect
	// Failed devices get no new work and lose what runs on them.
	Failed
)

// String returns healthy, suspect or failed.
func (s Severity) String() string {
	switch s {
	case Healthy:
		return "healthy"
	case Suspect:
		return "suspect"
	case Failed:
		return "failed"
	}
	return "unknown"
}

// Report is the health of a node's devices at one moment.
type Report struct {
	// Troubles are all that hold now, in any order.
	Troubles []Trouble
	// Recovered names latched troubles that have ended since they were
	// reported, for example by a reset of the device.
	Recovered []Origin
}

// Origin is what a trouble is told by: one device has at most one trouble from
// each source.
type Origin struct {
	// Device is the name of a device in the pool.
	Device string
	// Source is what the trouble was seen with, in lower case with dashes: xid,
	// bus, row-remap.
	Source string
}

// Trouble is one thing that is wrong with a device, as one source sees it.
type Trouble struct {
	Origin
	// Severity is Suspect or Failed.
	Severity Severity
	// Reason is one word in CamelCase, for taints and Events: Xid79, GPULost.
	Reason string
	// Message says more, in a few words for a person.
	Message string
	// Latched troubles are events, such as an XID, which no later reading would
	// show: they hold until a report names them as recovered, or the node
	// boots. Others have ended when a report no longer has them.
	Latched bool
}
