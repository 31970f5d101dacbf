package tenants

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gpuladder.dev/ladder/e2e/measure"
)

// Burst is how fast gates open when many Pods wait and the fleet is free.
type Burst struct {
	Pods int `json:"pods"`
	// FirstGate, LastGate and LastBound are times since the quotas that held all
	// of the Pods back were raised, in seconds.
	FirstGate float64 `json:"firstGate"`
	LastGate  float64 `json:"lastGate"`
	LastBound float64 `json:"lastBound"`
	// GatesPerSecond and BoundPerSecond count from the same moment on.
	GatesPerSecond float64 `json:"gatesPerSecond"`
	BoundPerSecond float64 `json:"boundPerSecond"`
}

// burst has as many Pods wait as there are devices and then lets them in.
func (r *run) burst(ctx context.Context) error {
	n := r.deviceCount()
	if err := r.bring(ctx, "burst", n); err != nil {
		return err
	}
	if err := r.await(ctx, "all Pods of the burst to wait", func() (bool, string) {
		all, opened, _ := r.count()
		return all == n && opened == 0 && r.waiting() == n, fmt.Sprintf("%d Pods, %d gates are open, %d wait by the quotas", all, opened, r.waiting())
	}); err != nil {
		return err
	}
	start := time.Now()
	if err := r.setQuotas(ctx, unlimited); err != nil {
		return err
	}
	if err := r.await(ctx, "all Pods of the burst to be bound", func() (bool, string) {
		_, opened, bound := r.count()
		return bound == n, fmt.Sprintf("%d gates are open, %d of %d Pods are bound", opened, bound, n)
	}); err != nil {
		return err
	}
	b := Burst{Pods: n, FirstGate: math.Inf(1)}
	for _, l := range r.live {
		gate := l.opened.Sub(start).Seconds()
		b.FirstGate, b.LastGate = min(b.FirstGate, gate), max(b.LastGate, gate)
		b.LastBound = max(b.LastBound, l.bound.Sub(start).Seconds())
	}
	b.GatesPerSecond, b.BoundPerSecond = float64(n)/b.LastGate, float64(n)/b.LastBound
	r.out.Burst = b
	r.say("%d gates opened in %.2f s (%.1f a second), all bound after %.2f s (%.1f a second)", n, b.LastGate, b.GatesPerSecond, b.LastBound, b.BoundPerSecond)
	return nil
}

// Spread is how a time is spread, in milliseconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// spread tells nothing of no times.
func spread(all []time.Duration) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	seconds := measure.Seconds(all...)
	at := func(part float64) float64 { return measure.Quantile(seconds, part) * 1000 }
	return Spread{P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// Reaction is how soon a device that was freed is used again.
type Reaction struct {
	Times int `json:"times"`
	// Freed is the time from the deletion of a Pod until its claim has given the
	// device back, which is Kubernetes' own.
	Freed Spread `json:"freed"`
	// Gate and Bound are the times from then until the next gate opens, and until
	// that Pod has a node.
	Gate  Spread `json:"gate"`
	Bound Spread `json:"bound"`
}

// react frees one device after another while Pods of all tenants wait.
func (r *run) react(ctx context.Context) error {
	if r.Reactions == 0 {
		return nil
	}
	n, more := r.deviceCount(), r.Reactions+r.Tenants
	if err := r.bring(ctx, "next", more); err != nil {
		return err
	}
	if err := r.await(ctx, "Pods to wait", func() (bool, string) {
		return r.waiting() == more, fmt.Sprintf("%d of %d wait", r.waiting(), more)
	}); err != nil {
		return err
	}
	var freed, gate, bound []time.Duration
	for range r.Reactions {
		f, g, b, err := r.reactOnce(ctx, n)
		if err != nil {
			return err
		}
		freed, gate, bound = append(freed, f), append(gate, g), append(bound, b)
	}
	r.out.Reaction = Reaction{Times: r.Reactions, Freed: spread(freed), Gate: spread(gate), Bound: spread(bound)}
	x := r.out.Reaction
	r.say("%d devices freed: the next gate open after %.0f ms (p99 %.0f), its Pod bound after %.0f ms (p99 %.0f)", x.Times, x.Gate.P50, x.Gate.P99, x.Bound.P50, x.Bound.P99)
	return nil
}

// reactOnce deletes a Pod while the fleet is full, and waits until it is again.
func (r *run) reactOnce(ctx context.Context, full int) (freed, gate, bound time.Duration, err error) {
	holders := r.keys(func(l *life) bool { return !l.bound.IsZero() })
	victim := holders[r.draw.IntN(len(holders))]
	var ended *life
	for _, l := range r.live {
		if l.ObjectKey == victim {
			ended = l
		}
	}
	start := time.Now()
	if err := r.remove(ctx, victim); err != nil {
		return 0, 0, 0, err
	}
	var next *life
	err = r.await(ctx, "the device of "+victim.String()+" to be used again", func() (bool, string) {
		_, opened, n := r.count()
		state := fmt.Sprintf("freed: %v; %d gates are open, %d of %d Pods are bound", !ended.freed.IsZero(), opened, n, full)
		if ended.gone.IsZero() || ended.freed.IsZero() || n < full {
			return false, state
		}
		for _, l := range r.live {
			if l.opened.After(start) && (next == nil || l.opened.Before(next.opened)) {
				next = l
			}
		}
		return next != nil, state
	})
	if err != nil {
		return 0, 0, 0, err
	}
	if next.bound.IsZero() {
		return 0, 0, 0, errors.New("the Pod whose gate opened is not the one that was bound")
	}
	// Claims and Pods are two watches: what happened at once may be heard of in
	// the other order.
	return ended.freed.Sub(start), max(next.opened.Sub(ended.freed), 0), max(next.bound.Sub(ended.freed), 0), nil
}
