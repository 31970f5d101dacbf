package nvml

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/clock"
)

func guarded(limit time.Duration) (caller, *gate) {
	g := &gate{}
	return caller{worker: &worker{clock: clock.RealClock{}, gate: g}, generation: g.next(), limit: limit}, g
}

// TestCallsRunOneAfterAnother and each returns its own.
func TestCallsRunOneAfterAnother(t *testing.T) {
	c, _ := guarded(10 * time.Second)
	var inside, most atomic.Int32
	done := make(chan int, 20)
	for n := range 20 {
		go func() {
			got, err := get(t.Context(), c, "nvmlX", func() (int, nvml.Return) {
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				return n, nvml.SUCCESS
			})
			if err != nil || got != n {
				t.Errorf("got %d, %v, want %d", got, err, n)
			}
			done <- got
		}()
	}
	for range 20 {
		<-done
	}
	if most.Load() != 1 {
		t.Errorf("%d calls ran at the same time", most.Load())
	}
}

// TestCallThatHangs: it and all further ones fail in time, with one goroutine
// left behind; once it has returned all is well.
func TestCallThatHangs(t *testing.T) {
	c, g := guarded(100 * time.Millisecond)
	hang := make(chan struct{})
	var calls atomic.Int32
	_, err := get(t.Context(), c, "nvmlHangs", func() (int, nvml.Return) { calls.Add(1); <-hang; return 0, nvml.SUCCESS })
	var timeout *TimeoutError
	if !errors.As(err, &timeout) || timeout.Call != "nvmlHangs" {
		t.Fatalf("got %v", err)
	}
	begun := time.Now()
	for range 50 {
		if err := act(t.Context(), c, "nvmlNext", func() nvml.Return { calls.Add(1); return nvml.SUCCESS }); !errors.As(err, &timeout) || timeout.Call != "nvmlHangs" {
			t.Fatalf("got %v", err)
		}
	}
	if took := time.Since(begun); took > 5*time.Second || calls.Load() != 1 {
		t.Errorf("took %v, %d calls were made", took, calls.Load())
	}
	if !c.hangs() {
		t.Error("it does not hang")
	}
	idle := g.shut()
	select {
	case <-idle:
		t.Error("the library may be closed under the call")
	default:
	}
	close(hang)
	<-idle
	c.generation = g.next()
	eventually(t, "it works again", func() bool {
		return act(t.Context(), c, "nvmlNext", func() nvml.Return { return nvml.SUCCESS }) == nil
	})
	if c.hangs() {
		t.Error("it hangs")
	}
}

// TestSlowCallIsWaitedFor: one that is within its own, longer limit is none that
// hangs.
func TestSlowCallIsWaitedFor(t *testing.T) {
	c, _ := guarded(30 * time.Millisecond)
	slow := make(chan struct{})
	go func() {
		_ = act(t.Context(), c.within(10*time.Second), "nvmlSlow", func() nvml.Return { close(slow); time.Sleep(150 * time.Millisecond); return nvml.SUCCESS })
	}()
	<-slow
	// Its own limit begins when its turn comes.
	if err := act(t.Context(), c.within(5*time.Second), "nvmlNext", func() nvml.Return { return nvml.SUCCESS }); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestContextEndsTheWait, not the call.
func TestContextEndsTheWait(t *testing.T) {
	c, _ := guarded(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := act(ctx, c, "nvmlHangs", func() nvml.Return { <-hang; return nvml.SUCCESS }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := act(ctx, c, "nvmlNext", func() nvml.Return { return nvml.SUCCESS }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestHandlesOfAnEarlierSession are not used: what they point to is gone.
func TestHandlesOfAnEarlierSession(t *testing.T) {
	c, g := guarded(time.Second)
	<-g.shut()
	called := func() nvml.Return { t.Error("it was called"); return nvml.SUCCESS }
	if err := act(t.Context(), c, "nvmlX", called); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
	g.next()
	if err := act(t.Context(), c, "nvmlX", called); !errors.Is(err, errClosed) {
		t.Errorf("opened anew: %v", err)
	}
}
