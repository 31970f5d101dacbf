package decide

// CEL selectors: compiled once, evaluated against one device at a time.

import (
	"context"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// maxExpressions bounds the cache of compiled expressions of a State.
const maxExpressions = 1024

func newExpressions() *cel.Cache {
	return cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true})
}

// compileExpression returns what is wrong with an expression, or nil.
func compileExpression(c *cel.Cache, expression string) error {
	if r := c.GetOrCompile(expression); r.Error != nil {
		return r.Error
	}
	return nil
}

// matchExpression evaluates one expression. An error is a run-time error of
// the expression on this device.
func matchExpression(c *cel.Cache, expression string, driver string, d *resourceapi.Device) (bool, error) {
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

// oneLine makes the text of a CEL error fit for a record.
func oneLine(err error) string {
	const most = 200
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// never is a context that is never done. Evaluation is bounded by CEL's cost
// limit, so that the result does not depend on how fast the machine is.
type never struct{}

var _ context.Context = never{}

func (never) Deadline() (time.Time, bool) { return time.Time{}, false }
func (never) Done() <-chan struct{}       { return nil }
func (never) Err() error                  { return nil }
func (never) Value(any) any               { return nil }
