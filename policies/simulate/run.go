package simulate

// This file is the loop: one instant after another, all that happens at it,
// then what the engines make of it.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fair"
)

// unfinished is the end of a job that has none.
const unfinished = -1

// Outcome is what became of the jobs in one set-up.
type Outcome struct {
	mode   fair.Mode
	states []state
	books  *books
	last   int64 // when the last job ended
	// accounted are waits in private clusters in which each job takes longer by
	// what sharing cost it here; see Account. Nil: not played.
	accounted []int64
}

// state of a job.
type state struct {
	run     int32 // number of the present run
	evicted int32
	put     int32 // members whose Pods the decision engine knows
	// fallback: a member of the last run is not in the policy's first tier.
	fallback bool
	running  bool
	models   uint64 // of the last run, as bits
	turn     string // the models that its turn is for, as on its Pods; empty: any
	left     int64  // work to do
	lost     int64  // devices times milliseconds of work that evictions lost
	opened   int64  // when its gate was last opened
	started  int64
	ended    int64
	// What sharing cost it, in milliseconds: stopped is the time of runs that
	// evictions stopped, as far as it was lost, and of the releases after them;
	// scattered the time with an open gate and without all devices.
	stopped, scattered int64
	// entitled is how often its gate was opened within its guarantee, overdue how
	// often later than the bound after that began to have room, and promised the
	// longest such wait.
	entitled, overdue int32
	promised          int64
	placed            []placement // members with devices

	// Of an opened job that lacks devices: how much had come free when it was
	// last looked at, and from when on a tier is allowed that was not then.
	seen, again int64
}

// placement is where a member is.
type placement struct {
	node  int32
	way   int32
	holds []share
}

// share is a number of devices of one model.
type share struct {
	model int
	n     int64
}

// run is one set-up that is being played.
type run struct {
	sim      *Simulation
	mode     fair.Mode
	queue    *fair.State
	decider  *decide.State
	now      int64
	arrived  int
	ended    int
	hopeless int
	last     int64
	calendar calendar
	states   []state
	books    *books
	// stuck jobs are opened and lack devices, in the order in which they are
	// decided again.
	stuck []int32
	idle  [][]int // number of nodes by group and number of free devices
	free  []int64 // by node
	freed int64   // how often devices have come free
	tries int     // since a job last began, how often a gang gave up its devices

	hooks hooks
}

// hooks let tests look on. Those that are nil are not called.
type hooks struct {
	instant  func(*run) error // when all of an instant is done
	decided  func(job int32, d *decide.Decision) error
	released func(job int32)
}

// Run plays the trace in one set-up.
func (s *Simulation) Run(ctx context.Context, mode fair.Mode) (*Outcome, error) {
	return s.run(ctx, mode, hooks{})
}

func (s *Simulation) run(ctx context.Context, mode fair.Mode, hooks hooks) (*Outcome, error) {
	r := &run{sim: s, mode: mode, now: s.jobs[0].Created.UnixMilli(), states: make([]state, len(s.jobs)), hooks: hooks}
	r.last = r.now
	var err error
	if r.queue, err = s.newQueue(mode, instant(r.now)); err != nil {
		return nil, err
	}
	if r.decider, err = s.newDecider(); err != nil {
		return nil, err
	}
	r.books = newBooks(s, r.now)
	r.idle = make([][]int, len(s.fleet.Groups))
	for g := range r.idle {
		r.idle[g] = make([]int, s.fleet.Groups[g].GPUs+1)
	}
	for i := range s.nodes {
		r.free = append(r.free, s.nodes[i].gpus)
		r.idle[s.nodes[i].group][s.nodes[i].gpus]++
	}
	if err := r.play(ctx); err != nil {
		return nil, fmt.Errorf("playing set-up %s, %w", mode, err)
	}
	return &Outcome{mode: mode, states: r.states, books: r.books, last: r.last}, nil
}

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// id of a job, which the queue orders as it orders jobs.
func id(job int32) string {
	const width = 8
	var b [width]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = byte('0' + job%10)
		job /= 10
	}
	return string(b[:])
}

func jobOf(id string) int32 {
	n, _ := strconv.Atoi(id) // made by id above
	return int32(n)
}

func (r *run) job(i int32) *Job   { return &r.sim.jobs[i] }
func (r *run) kind(i int32) *kind { return r.sim.kinds[r.sim.kindOf[i]] }
func (r *run) tenant(i int32) int32 {
	return r.sim.tenantOf[i]
}

func (r *run) tell(ev fair.Event) error {
	if err := r.queue.Apply(instant(r.now), ev); err != nil {
		return fmt.Errorf("telling the queue, %w", err)
	}
	return nil
}

// play goes on until nothing can happen any more.
func (r *run) play(ctx context.Context) error {
	const interval = 512 // instants between two looks at ctx and at the watch
	for instants := 0; ; instants++ {
		if instants%interval == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if r.sim.options.Watch != nil {
				r.sim.options.Watch(r.ended+r.hopeless, len(r.states))
			}
		}
		at, ok := r.next()
		if ok {
			r.now = at
		} else if helped, err := r.giveUp(); err != nil || !helped {
			return err
		}
		r.books.advance(r.now)
		if err := r.instant(); err != nil {
			return err
		}
		if r.hooks.instant != nil {
			if err := r.hooks.instant(r); err != nil {
				return err
			}
		}
	}
}

// next is when something happens next.
func (r *run) next() (int64, bool) {
	at, ok := int64(0), false
	sooner := func(t int64) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if r.arrived < len(r.states) {
		sooner(r.sim.jobs[r.arrived].Created.UnixMilli())
	}
	for !r.calendar.empty() && r.void(r.calendar[0]) {
		r.calendar.pop()
	}
	if !r.calendar.empty() {
		sooner(r.calendar[0].at)
	}
	if wake, wakes := r.queue.Wake(instant(r.now)); wakes {
		sooner((wake.UnixNano() + 999_999) / 1_000_000)
	}
	return max(at, r.now), ok
}

func (r *run) void(e event) bool { return r.states[e.job].run != e.run }

// instant lets everything happen that is due now, then asks the engines.
func (r *run) instant() error {
	for r.arrived < len(r.states) && r.sim.jobs[r.arrived].Created.UnixMilli() <= r.now {
		if err := r.arrive(int32(r.arrived)); err != nil {
			return err
		}
		r.arrived++
	}
	for !r.calendar.empty() && r.calendar[0].at <= r.now {
		e := r.calendar.pop()
		if r.void(e) {
			continue
		}
		var err error
		if e.kind == ends {
			err = r.end(e.job)
		} else {
			err = r.requeue(e.job)
		}
		if err != nil {
			return err
		}
	}
	for {
		if err := r.retry(); err != nil {
			return err
		}
		actions := r.queue.Next(instant(r.now))
		if len(actions) == 0 {
			return nil
		}
		for i := range actions {
			if err := r.act(&actions[i]); err != nil {
				return err
			}
		}
	}
}

func (r *run) arrive(i int32) error {
	st, job, k := &r.states[i], r.job(i), r.kind(i)
	st.left, st.ended = job.Duration.Milliseconds(), unfinished
	if k.policy == nil || !r.sim.canFit(k, &r.sim.tenants[r.tenant(i)]) {
		r.hopeless++
		return nil
	}
	r.books.ask(r.tenant(i), int64(job.GPUs))
	return r.tell(fair.Arrived{Entry: fair.Entry{
		ID: id(i), Tenant: r.sim.tenants[r.tenant(i)].name, Members: k.members, Requests: k.requests,
		Priority: job.Priority, Created: job.Created, Preemptible: true, Preempts: k.policy.Spec.Preempts,
	}})
}

// act does what the queue asks for. Notices need nothing done.
func (r *run) act(a *fair.Action) error {
	i := jobOf(a.ID)
	switch a.Kind {
	case fair.Open:
		r.open(i, a)
		done, err := r.place(i)
		if err != nil || done {
			return err
		}
		at, _ := slices.BinarySearchFunc(r.stuck, i, r.compareStuck)
		r.stuck = slices.Insert(r.stuck, at, i)
	case fair.Evict:
		return r.evict(i)
	case fair.Widen:
		return r.widen(i)
	case fair.Notice, fair.Cancel:
	}
	return nil
}

// open notes when a gate was opened, and how long its guarantee had room.
func (r *run) open(i int32, a *fair.Action) {
	st := &r.states[i]
	st.opened, st.turn = r.now, strings.Join(a.Models, ",")
	if a.Since.IsZero() {
		return
	}
	wait := r.now - a.Since.UnixMilli()
	st.entitled++
	st.promised = max(st.promised, wait)
	if wait > r.sim.options.Bound().Milliseconds() {
		st.overdue++
	}
}

// compareStuck is the order in which the scheduler tries: priority, then age.
func (r *run) compareStuck(a, b int32) int {
	if x, y := r.job(a).Priority, r.job(b).Priority; x != y {
		if x > y {
			return -1
		}
		return 1
	}
	return int(a) - int(b)
}

// retry decides stuck jobs again for which something may have changed.
func (r *run) retry() error {
	for at := 0; at < len(r.stuck); {
		i := r.stuck[at]
		st := &r.states[i]
		if st.seen == r.freed && (st.again == 0 || r.now < st.again) {
			at++
			continue
		}
		done, err := r.place(i)
		if err != nil {
			return err
		}
		if done {
			r.stuck = slices.Delete(r.stuck, at, at+1)
			continue
		}
		at++
	}
	return nil
}

// begin is when all members have devices.
func (r *run) begin(i int32) {
	st := &r.states[i]
	st.running, st.started = true, r.now
	st.scattered += r.now - st.opened
	r.tries = 0
	r.calendar.push(event{r.now + st.left, i, st.run, ends})
}

func (r *run) end(i int32) error {
	st := &r.states[i]
	r.summarise(i)
	if err := r.release(i); err != nil {
		return err
	}
	st.left, st.ended, st.running = 0, r.now, false
	r.last = r.now
	r.ended++
	return r.tell(fair.Finished{ID: id(i)})
}

// summarise keeps what is told of a job when it has ended.
func (r *run) summarise(i int32) {
	st, k := &r.states[i], r.kind(i)
	for _, p := range st.placed {
		st.fallback = st.fallback || !k.ways[p.way].preferred
		for _, h := range p.holds {
			st.models |= 1 << min(h.model, 63)
		}
	}
}

// evict stops a job. Its devices are free when they are released.
func (r *run) evict(i int32) error {
	st := &r.states[i]
	st.evicted++
	var devices int64
	for _, p := range st.placed {
		for _, h := range p.holds {
			devices += h.n
		}
	}
	if st.running {
		done, kept := r.now-st.started, int64(0)
		if c := r.sim.options.Checkpoint.Milliseconds(); c > 0 {
			kept = done - done%c
		}
		st.left -= kept
		st.lost += devices * (done - kept)
		st.stopped += done - kept
	} else {
		st.scattered += r.now - st.opened
		if at := slices.Index(r.stuck, i); at >= 0 {
			r.stuck = slices.Delete(r.stuck, at, at+1)
		}
	}
	st.stopped += r.sim.options.Release.Milliseconds()
	st.running = false
	st.run++ // what was to come of this run is void
	if release := r.sim.options.Release.Milliseconds(); release > 0 {
		r.calendar.push(event{r.now + release, i, st.run, releases})
		return nil
	}
	return r.requeue(i)
}

// requeue lets a job wait again that was opened.
func (r *run) requeue(i int32) error {
	st := &r.states[i]
	r.books.ask(r.tenant(i), int64(len(st.placed))*r.kind(i).perPod)
	if err := r.release(i); err != nil {
		return err
	}
	st.run++
	return r.tell(fair.Requeued{ID: id(i)})
}

// giveUp is for when nothing else can happen: of the gangs that wait for their
// last members, the one that comes last gives its devices back. It is false
// where there is none, or where that has not helped.
func (r *run) giveUp() (bool, error) {
	for at := len(r.stuck) - 1; at >= 0; at-- {
		i := r.stuck[at]
		if len(r.states[i].placed) == 0 {
			continue
		}
		if r.tries++; r.tries > len(r.stuck) {
			return false, nil
		}
		r.stuck = slices.Delete(r.stuck, at, at+1)
		r.states[i].scattered += r.now - r.states[i].opened
		return true, r.requeue(i)
	}
	return false, nil
}
