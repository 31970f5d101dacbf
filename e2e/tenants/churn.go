package tenants

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/quota"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Churn is what the Pods went through that came and went under kills.
type Churn struct {
	Pods    int     `json:"pods"`
	Seconds float64 `json:"seconds"`
	// Behind is how much later than planned the last of the Pods came, in
	// seconds: what the API server could not take in.
	Behind float64 `json:"behind"`
	// Kills by part, and changes of quotas.
	ControllerKills int `json:"controllerKills"`
	SchedulerKills  int `json:"schedulerKills"`
	Changes         int `json:"changes"`
	// Served got devices. Dropped were deleted by plan while they waited.
	// Evicted are those of the served whose devices were taken back.
	Served  int `json:"served"`
	Dropped int `json:"dropped"`
	Evicted int `json:"evicted"`
	// Lost went away without devices, although nobody deleted them.
	Lost int `json:"lost"`
}

// tick is the time between two looks at whose time is over.
const tick = 50 * time.Millisecond

// churn plays the plan and returns when all has been done that it says; Pods
// that wait still and those that run stay.
func (r *run) churn(ctx context.Context) error {
	plan := NewPlan(&r.Options)
	start := time.Now()
	ctx, stop := context.WithCancel(ctx)
	group, groupCtx := errgroup.WithContext(ctx)
	defer func() { // nobody is killed after this
		stop()
		_ = group.Wait() // told already
	}()
	group.Go(func() error { return r.arrive(groupCtx, start, plan.Arrivals) })
	for _, scheduler := range []bool{false, true} {
		group.Go(func() error { return r.kill(groupCtx, start, plan.Kills, scheduler) })
	}
	group.Go(func() error { return r.change(groupCtx, start, plan.Changes) })
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()

	byKey := map[client.ObjectKey]*Arrival{}
	for i := range plan.Arrivals {
		a := &plan.Arrivals[i]
		byKey[client.ObjectKey{Namespace: tenant(a.Tenant), Name: a.Name}] = a
	}
	told := start
	for {
		if err := r.endLives(ctx, byKey); err != nil {
			return err
		}
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			all, opened, bound := r.count()
			r.say("  %3.0f s: %d of %d Pods have come, %d are there, %d gates are open, %d are bound", time.Since(start).Seconds(), len(r.lives)-r.before, r.Pods, all, opened, bound)
		}
		select {
		case err := <-done:
			r.out.Churn.Pods, r.out.Churn.Seconds = r.Pods, time.Since(start).Seconds()
			return err
		case <-time.After(tick):
		}
	}
}

// arrive creates the Pods when they come, or as soon as the API server takes
// them.
func (r *run) arrive(ctx context.Context, start time.Time, arrivals []Arrival) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	var mu sync.Mutex
	for _, a := range arrivals {
		if !until(ctx, start.Add(a.At)) {
			break
		}
		group.Go(func() error {
			if err := create(ctx, r.Client, workload.Pod(tenant(a.Tenant), a.Name, a.Policy)); err != nil {
				return fmt.Errorf("creating Pod %s, %w", a.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			r.out.Churn.Behind = time.Since(start.Add(a.At)).Seconds()
			return nil
		})
	}
	return group.Wait()
}

// until sleeps until a moment and says whether it has come.
func until(ctx context.Context, moment time.Time) bool {
	timer := time.NewTimer(time.Until(moment))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// kill kills one of the parts again and again, and starts it after each time.
func (r *run) kill(ctx context.Context, start time.Time, kills []Kill, scheduler bool) error {
	part, count := r.Controller, &r.out.Churn.ControllerKills
	if scheduler {
		part, count = r.Scheduler, &r.out.Churn.SchedulerKills
	}
	for _, k := range kills {
		if k.Scheduler != scheduler {
			continue
		}
		if !until(ctx, start.Add(k.At)) {
			return nil
		}
		if err := r.Cluster.Kill(ctx, part); err != nil {
			return fmt.Errorf("killing %s, %w", part, err)
		}
		*count++
		r.say("  %3.0f s: %s killed, for %.1f s", time.Since(start).Seconds(), part, k.Down.Seconds())
		until(ctx, time.Now().Add(k.Down))
		if err := r.Cluster.Restart(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// change changes quotas, each from its usual form.
func (r *run) change(ctx context.Context, start time.Time, changes []Change) error {
	for _, c := range changes {
		if !until(ctx, start.Add(c.At)) {
			return nil
		}
		q := r.quota(c.Tenant)
		c.apply(q)
		if err := r.setQuota(ctx, q); err != nil {
			return err
		}
		r.out.Churn.Changes++
	}
	return nil
}

// endLives deletes the Pods whose time is over: those that have had their
// devices long enough, and those that wait no longer.
func (r *run) endLives(ctx context.Context, plan map[client.ObjectKey]*Arrival) error {
	r.follow()
	now := time.Now()
	return r.end(ctx, func(l *life) bool {
		a := plan[l.ObjectKey]
		switch {
		case a == nil:
			return false
		case !l.bound.IsZero():
			return now.Sub(l.bound) >= a.Life
		default:
			return a.Patience > 0 && now.Sub(l.seen) >= a.Patience
		}
	})
}

// end deletes the Pods for which it is time.
func (r *run) end(ctx context.Context, isTime func(*life) bool) error {
	var over []client.ObjectKey
	for _, l := range r.live {
		if !l.ended && isTime(l) {
			l.ended, l.dropped = true, l.bound.IsZero()
			over = append(over, l.ObjectKey)
		}
	}
	return each(ctx, len(over), func(ctx context.Context, i int) error { return r.remove(ctx, over[i]) })
}

// Rest is how things stood when nothing came or went any more.
type Rest struct {
	// Seconds until nothing moved.
	Seconds float64 `json:"seconds"`
	// Waiting Pods then, and devices that were free.
	Waiting int `json:"waiting"`
	Free    int `json:"free"`
	// Idle are the Pods that something could have served.
	Idle []quota.Idle `json:"idle,omitempty"`
}

// quiet is how long nothing may have moved for it to be at rest.
const quiet = 4 * time.Second

// rest waits until nothing moves, and looks whether a Pod waits that could be
// served. What failed is tried again after a while, so it waits some time for
// that to happen.
func (r *run) rest(ctx context.Context) error {
	if err := r.setQuotas(ctx, usual); err != nil {
		return err
	}
	start := time.Now()
	for {
		if !until(ctx, time.Now().Add(quiet/8)) {
			return ctx.Err()
		}
		r.follow()
		late := time.Since(start) > patience
		if time.Since(r.moved) < quiet && !late {
			continue
		}
		s := r.scene()
		idle := quota.LeftWaiting(s)
		if len(idle) > 0 && !late {
			continue
		}
		r.out.Rest = Rest{Seconds: time.Since(start).Seconds(), Waiting: len(s.Waiting()), Free: r.free(s.Claims), Idle: idle}
		r.say("at rest after %.1f s: %d Pods wait, %d devices are free, %d Pods could be served", r.out.Rest.Seconds, r.out.Rest.Waiting, r.out.Rest.Free, len(idle))
		return nil
	}
}

func (r *run) scene() quota.Scene {
	return quota.Scene{
		Pods:   watchlog.List[*corev1.Pod](r.log, ""),
		Claims: watchlog.List[*resourcev1.ResourceClaim](r.log, ""),
		Slices: watchlog.List[*resourcev1.ResourceSlice](r.log, ""),
		Quotas: watchlog.List[*v1alpha1.TenantQuota](r.log, ""), Policies: policies(),
	}
}

func (r *run) free(claims []*resourcev1.ResourceClaim) int {
	n := r.deviceCount()
	for _, c := range claims {
		if c.Status.Allocation != nil {
			n -= len(c.Status.Allocation.Devices.Results)
		}
	}
	return n
}

// drain deletes every Pod as soon as it has devices, until all have had some.
func (r *run) drain(ctx context.Context) error {
	start := time.Now()
	for {
		r.follow()
		if err := r.end(ctx, func(l *life) bool { return !l.bound.IsZero() }); err != nil {
			return err
		}
		if len(r.live)+len(r.holds) == 0 {
			break
		}
		if since := time.Since(later(r.moved, start)); since > patience {
			all, opened, _ := r.count()
			return fmt.Errorf("serving what waits, nothing moved for %s: %d Pods are left, %d gates are open, the first is %s",
				since.Round(time.Second), all, opened, r.keys(func(*life) bool { return true })[:min(all, 1)])
		}
		if !until(ctx, time.Now().Add(tick)) {
			return ctx.Err()
		}
	}
	c := &r.out.Churn
	for _, l := range r.lives {
		if l.seen.Before(r.since) {
			continue // was measured before
		}
		switch {
		case !l.bound.IsZero():
			c.Served++
			if !l.ended {
				c.Evicted++
			}
		case l.dropped:
			c.Dropped++
		default:
			c.Lost++
		}
	}
	r.say("%d Pods had devices, %d were deleted while they waited, %d were evicted, %d were lost", c.Served, c.Dropped, c.Evicted, c.Lost)
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
