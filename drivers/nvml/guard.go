package nvml

// This file keeps a call of NVML that does not return from stopping the driver.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/clock"
)

// TimeoutError occurs when a call of NVML has not returned in time, and for all
// further calls of the same GPU until it has.
type TimeoutError struct {
	// Call is the function that hangs.
	Call string
	// Since is when it was called.
	Since time.Time
}

// Error says what hangs and since when.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s has not returned since %s", e.Call, e.Since.UTC().Format(time.RFC3339))
}

// CallError occurs when a call of NVML fails.
type CallError struct {
	// Call is the function.
	Call string
	// Return is what it returned.
	Return nvml.Return
}

// Error says which function failed and how.
func (e *CallError) Error() string { return e.Call + ": " + textOf(e.Return) }

// Unwrap makes errors.Is find the [nvml.Return].
func (e *CallError) Unwrap() error { return e.Return }

// returnTexts are what NVML's return values mean, in the words of nvml.h. The
// library's own nvmlErrorString is a call too, and may hang like any other.
var returnTexts = map[nvml.Return]string{
	nvml.ERROR_UNINITIALIZED:           "NVML is not initialized",
	nvml.ERROR_INVALID_ARGUMENT:        "invalid argument",
	nvml.ERROR_NOT_SUPPORTED:           "not supported",
	nvml.ERROR_NO_PERMISSION:           "no permission",
	nvml.ERROR_NOT_FOUND:               "not found",
	nvml.ERROR_DRIVER_NOT_LOADED:       "NVIDIA's kernel driver is not loaded",
	nvml.ERROR_TIMEOUT:                 "timeout",
	nvml.ERROR_IRQ_ISSUE:               "the kernel has a problem with the GPU's interrupts",
	nvml.ERROR_LIBRARY_NOT_FOUND:       "NVML's library was not found",
	nvml.ERROR_FUNCTION_NOT_FOUND:      "this version of NVML does not have the function",
	nvml.ERROR_CORRUPTED_INFOROM:       "the InfoROM is corrupted",
	nvml.ERROR_GPU_IS_LOST:             "the GPU is lost",
	nvml.ERROR_RESET_REQUIRED:          "the GPU needs a reset",
	nvml.ERROR_OPERATING_SYSTEM:        "the operating system has blocked it",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "NVML and NVIDIA's kernel driver are of different versions",
	nvml.ERROR_IN_USE:                  "in use",
	nvml.ERROR_MEMORY:                  "insufficient memory",
	nvml.ERROR_INSUFFICIENT_RESOURCES:  "insufficient resources",
	nvml.ERROR_NOT_READY:               "the system is not ready",
	nvml.ERROR_GPU_NOT_FOUND:           "there are no GPUs",
	nvml.ERROR_INVALID_STATE:           "invalid state",
	nvml.ERROR_UNKNOWN:                 "unknown error",
}

func textOf(ret nvml.Return) string {
	if text := returnTexts[ret]; text != "" {
		return text
	}
	return fmt.Sprintf("error %d", int32(ret))
}

// gate counts the calls that run, so that the library is never closed under
// one: its code would be gone. Each opening is a generation, and a call on
// handles of an earlier one is refused.
type gate struct {
	mu         sync.Mutex
	generation int
	open       bool
	inside     int
	idle       chan struct{} // closed when the last one leaves a closed gate
}

// errClosed occurs for calls on handles of a library that was closed since.
var errClosed = errors.New("NVML has been closed since")

// next opens the gate for a new generation.
func (g *gate) next() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.generation++
	g.open, g.idle = true, nil
	return g.generation
}

func (g *gate) enter(generation int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open || generation != g.generation {
		return errClosed
	}
	g.inside++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// shut lets no one in any more. The channel is closed when all have left, which
// is never if one hangs.
func (g *gate) shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = false
	idle := make(chan struct{})
	if g.inside == 0 {
		close(idle)
		return idle
	}
	g.idle = idle
	return idle
}

// worker runs calls of NVML one after another. At most one goroutine of it ever
// hangs: while one does, further calls fail at once.
type worker struct {
	clock clock.WithTicker
	gate  *gate

	mu      sync.Mutex
	running *running // nil while none is
}

// running is a call that has not returned yet.
type running struct {
	call            string
	since, deadline time.Time
	ended           chan struct{}
}

// begin waits for the call that runs, but no longer than that may take.
func (w *worker) begin(ctx context.Context, call string, limit time.Duration) (*running, error) {
	for {
		w.mu.Lock()
		now, present := w.clock.Now(), w.running
		if present == nil {
			w.running = &running{call: call, since: now, deadline: now.Add(limit), ended: make(chan struct{})}
			defer w.mu.Unlock()
			return w.running, nil
		}
		w.mu.Unlock()
		if !now.Before(present.deadline) {
			return nil, &TimeoutError{Call: present.call, Since: present.since}
		}
		timer := w.clock.NewTimer(present.deadline.Sub(now))
		select {
		case <-ctx.Done():
		case <-present.ended:
		case <-timer.C():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (w *worker) end(r *running) {
	w.mu.Lock()
	w.running = nil
	w.mu.Unlock()
	close(r.ended)
}

// hangs says whether a call is over its time.
func (w *worker) hangs() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running != nil && !w.clock.Now().Before(w.running.deadline)
}

// caller makes calls of NVML: those of one GPU, or those of the library.
type caller struct {
	*worker
	generation int
	limit      time.Duration
}

// within is the caller with another limit.
func (c caller) within(limit time.Duration) caller {
	c.limit = limit
	return c
}

// do runs a function that calls NVML. If it does not return in time the error
// is a [TimeoutError], and what it returns later is lost.
func do[T any](ctx context.Context, c caller, call string, f func() (T, error)) (T, error) {
	var none T
	r, err := c.begin(ctx, call, c.limit)
	if err != nil {
		return none, err
	}
	if err := c.gate.enter(c.generation); err != nil {
		c.end(r)
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		c.gate.leave()
		c.end(r)
		done <- result{value, err}
	}()
	timer := c.clock.NewTimer(c.limit)
	defer timer.Stop()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-timer.C():
		return none, &TimeoutError{Call: call, Since: r.since}
	}
}

// get is one call.
func get[T any](ctx context.Context, c caller, call string, f func() (T, nvml.Return)) (T, error) {
	return do(ctx, c, call, func() (T, error) {
		value, ret := f()
		if ret != nvml.SUCCESS {
			return value, &CallError{Call: call, Return: ret}
		}
		return value, nil
	})
}

// act is one call that returns nothing.
func act(ctx context.Context, c caller, call string, f func() nvml.Return) error {
	_, err := get(ctx, c, call, func() (struct{}, nvml.Return) { return struct{}{}, f() })
	return err
}
