package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// World is what the soak is put on. Deleting what is gone is no error, nor is
// doing again what was done.
type World interface {
	Arrive(ctx context.Context, pod, policy string) error
	Depart(ctx context.Context, pod string) error
	Taint(ctx context.Context, a Action) error
	Untaint(ctx context.Context, rule string) error
	Lose(ctx context.Context, node string, how Loss) error
	Restore(ctx context.Context, node string, how Loss) error
	// Kill kills the scheduler and starts it again after a while.
	Kill(ctx context.Context, down time.Duration) error
	// State says in a few words how things stand, for the progress.
	State() string
}

// tellEvery is the time between two lines of progress.
const tellEvery = 30 * time.Second

// Run does what is planned, each action at its time, and returns what was done.
// A kill does not keep the rest waiting. Where the machine is slow, actions come
// late, but all of them and in their order. It ends with the first error.
func Run(ctx context.Context, c clock.WithTicker, plan []Action, duration time.Duration, w World, progress io.Writer) (Done, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := Done{Actions: map[Kind]int{}}
	var killing sync.WaitGroup
	defer killing.Wait()
	start := c.Now()
	told := start
	tell := func() {
		if c.Since(told) >= tellEvery {
			told = c.Now()
			fmt.Fprintf(progress, "%s of %s: %s; %s\n", c.Since(start).Round(time.Second), duration, w.State(), done)
		}
	}
	until := func(at time.Duration) error {
		for {
			left := at - c.Since(start)
			if left <= 0 {
				return nil
			}
			select {
			case <-c.After(min(left, tellEvery)):
				tell()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	for _, a := range plan {
		if err := until(a.At); err != nil {
			return done, err
		}
		tell()
		done.Latest = max(done.Latest, c.Since(start)-a.At)
		if a.Kind == Kill {
			done.Actions[a.Kind]++
			killing.Go(func() {
				if err := w.Kill(ctx, a.Down); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("killing the scheduler, %w", err))
				}
			})
			continue
		}
		if err := do(ctx, w, a); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return done, fmt.Errorf("%s after %s (%s), %w", a.Kind, a.At.Round(time.Millisecond), a.Name, err)
		}
		done.Actions[a.Kind]++
		if a.Kind == Lose {
			done.count(a.Loss)
		}
	}
	if err := until(duration); err != nil {
		return done, err
	}
	killing.Wait()
	done.Took = c.Since(start)
	return done, context.Cause(ctx)
}

// errUnknown occurs where a plan holds what nobody can do.
var errUnknown = errors.New("no such kind of action")

func do(ctx context.Context, w World, a Action) error {
	switch a.Kind {
	case Arrive:
		return w.Arrive(ctx, a.Name, a.Policy)
	case Depart:
		return w.Depart(ctx, a.Name)
	case Taint:
		return w.Taint(ctx, a)
	case Untaint:
		return w.Untaint(ctx, a.Name)
	case Lose:
		return w.Lose(ctx, a.Name, a.Loss)
	case Restore:
		return w.Restore(ctx, a.Name, a.Loss)
	case Kill: // not in turn
	}
	return errUnknown
}

// Done is what was done.
type Done struct {
	Actions map[Kind]int `json:"actions"`
	Removed int          `json:"removed"`
	Drained int          `json:"drained"`
	// Latest is how late an action came at most.
	Latest time.Duration `json:"latest"`
	Took   time.Duration `json:"took"`
}

func (d *Done) count(how Loss) {
	if how == Removed {
		d.Removed++
	} else {
		d.Drained++
	}
}

// String is the counts in one line.
func (d Done) String() string {
	return fmt.Sprintf("%d Pods came, %d were deleted, %d rules came, %d nodes were lost, %d kills",
		d.Actions[Arrive], d.Actions[Depart], d.Actions[Taint], d.Actions[Lose], d.Actions[Kill])
}
