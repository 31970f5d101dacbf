package docker

// How commands look for an engine without a change to the machine.

import (
	"context"
	"errors"
	"io"
)

// Access is how the container engines of a machine are reached; tests have
// their own.
type Access struct {
	Running func(context.Context, Options) (*Engine, error)
	Detect  func(context.Context, Options) (*Plan, error)
	CleanUp func(context.Context, io.Writer) error
}

// OfMachine reaches the engines of this machine.
var OfMachine = Access{Running: Running, Detect: Detect, CleanUp: CleanUp}

// Present returns the engine that is there without a change to the machine: a
// private daemon that runs, else what the user has. It returns nil where there
// is none.
func (a Access) Present(ctx context.Context, progress io.Writer) (*Engine, error) {
	running, err := a.Running(ctx, Options{Progress: progress})
	if running != nil || err != nil {
		return running, err
	}
	plan, err := a.Detect(ctx, Options{Progress: progress})
	if missing := new(MissingError); errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return plan.Running(), nil
}
