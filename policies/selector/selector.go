// Package selector evaluates the CEL selectors of devices the way that the
// decision engine counts on: compiled once, bounded by cost and not by time.
package selector

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// NewCache returns a cache of up to size compiled expressions. It is safe for
// concurrent use.
func NewCache(size int) *cel.Cache {
	return cel.NewCache(size, cel.Features{EnableConsumableCapacity: true})
}

// Match evaluates one expression on a device of a driver. An error is that the
// expression does not compile, or a run-time error on this device.
func Match(c *cel.Cache, expression, driver string, d *resourceapi.Device) (bool, error) {
	r := c.GetOrCompile(expression)
	if r.Error != nil {
		return false, r.Error
	}
	ok, _, err := r.DeviceMatches(never{}, cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: d.AllowMultipleAllocations,
		Attributes:               d.Attributes,
		Capacity:                 d.Capacity,
	})
	return ok, err
}

// never is a context that is never done. Evaluation is bounded by CEL's cost
// limit, so that the result does not depend on how fast the machine is.
type never struct{}

var _ context.Context = never{}

func (never) Deadline() (time.Time, bool) { return time.Time{}, false }
func (never) Done() <-chan struct{}       { return nil }
func (never) Err() error                  { return nil }
func (never) Value(any) any               { return nil }
