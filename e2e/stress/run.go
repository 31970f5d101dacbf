package stress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// World is what the stress is put on.
type World interface {
	// Create creates a Pod of this name that wants a device.
	Create(ctx context.Context, name string) error
	// Delete deletes it; one that is gone is no error.
	Delete(ctx context.Context, name string) error
	// Pods are the Pods as they are known now; Changed is closed with the next
	// change.
	Pods() []*corev1.Pod
	Changed() <-chan struct{}
	// Kill kills something without warning and sees to it that it comes back.
	// It returns what it killed.
	Kill(ctx context.Context, choice float64) (string, error)
	// Running is told of each Pod whose containers run, before it is deleted.
	Running(ctx context.Context, pod *corev1.Pod) error
	// Settled is asked after each round whether everything is as it was before.
	Settled(ctx context.Context, round int) error
}

// Options say how much stress.
type Options struct {
	Seed          uint64
	Rounds, Pods  int
	Devices       int
	KillsPerRound int
	// Within bounds each round.
	Within time.Duration
	// Out is told what happens.
	Out io.Writer
}

// Run runs the rounds one after another and returns the first error, which
// names the seed.
func Run(ctx context.Context, o Options, w World) error {
	fmt.Fprintf(o.Out, "stress with seed %d: %d rounds of %d Pods on %d devices, %d kills in each\n",
		o.Seed, o.Rounds, o.Pods, o.Devices, o.KillsPerRound)
	draw := source(o.Seed + 1)
	for i, plan := range Plan(o.Seed, o.Rounds, o.Pods, o.Devices, o.KillsPerRound) {
		start := time.Now()
		r := &round{
			World: w, plan: plan, number: i, out: o.Out, draw: draw,
			fates: map[string]Fate{}, unseen: map[string]bool{}, pods: map[types.UID]*progress{},
		}
		err := r.run(ctx, o.Within)
		if err == nil {
			err = w.Settled(ctx, i)
		}
		if err != nil {
			return fmt.Errorf("stressing with seed %d, round %d, %w", o.Seed, i, err)
		}
		fmt.Fprintf(o.Out, "round %d: %d Pods ran, %d kills, %.1f s\n", i, r.ran, r.killed, time.Since(start).Seconds())
	}
	return nil
}

// progress is how far a Pod has come.
type progress struct {
	pod                    *corev1.Pod
	fate                   Fate
	bound, running, ending bool
}

// round is one round under way.
type round struct {
	World
	plan   Round
	number int
	out    io.Writer
	draw   *rand.Rand

	fates map[string]Fate // of the round's Pods, by name
	// unseen are the Pods that will be seen, since they are deleted only then.
	unseen  map[string]bool
	pods    map[types.UID]*progress
	steps   int
	ran     int
	waiting []Kill
	killing sync.WaitGroup
	mu      sync.Mutex // of what kills report
	killed  int
	killErr error
}

func (r *round) run(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer r.killing.Wait() // no kill outlives its round
	defer cancel()
	r.waiting = slices.Clone(r.plan.Kills)
	for p, fate := range r.plan.Pods {
		name := PodName(r.number, p)
		r.fates[name] = fate
		if err := r.Create(ctx, name); err != nil {
			return err
		}
		if fate != AtOnce {
			r.unseen[name] = true
		} else if err := r.Delete(ctx, name); err != nil {
			return err
		}
	}
	for {
		changed := r.Changed()
		if err := r.observe(ctx); err != nil {
			return err
		}
		if len(r.pods)+len(r.unseen) == 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for Pods to run and go, %w; %d are left: %s", ctx.Err(), len(r.pods), r.left())
		}
	}
	for _, k := range r.waiting { // the round was over before their moment
		r.kill(ctx, k)
	}
	r.killing.Wait()
	return r.killErr
}

// observe takes in what is known now and does what follows from it.
func (r *round) observe(ctx context.Context) error {
	now := map[types.UID]bool{}
	for _, pod := range r.Pods() {
		fate, ours := r.fates[pod.Name]
		if !ours {
			continue
		}
		now[pod.UID] = true
		delete(r.unseen, pod.Name)
		p := r.pods[pod.UID]
		if p == nil {
			p = &progress{fate: fate, ending: fate == AtOnce}
			r.pods[pod.UID] = p
		}
		p.pod = pod
		if err := r.advance(ctx, p); err != nil {
			return err
		}
	}
	for uid := range maps.Clone(r.pods) {
		if !now[uid] {
			delete(r.pods, uid)
			r.step(ctx)
		}
	}
	return r.takeTurns(ctx)
}

func (r *round) advance(ctx context.Context, p *progress) error {
	if p.pod.Spec.NodeName != "" && !p.bound {
		p.bound = true
		r.step(ctx)
		if p.fate == WhenBound {
			return r.end(ctx, p)
		}
	}
	if isRunning(p.pod) && !p.running && !p.ending {
		p.running = true
		r.ran++
		r.step(ctx)
		return r.Running(ctx, p.pod)
	}
	return nil
}

func isRunning(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
}

// takeTurns deletes running Pods while more run than the round's lag, or all
// others are gone. So devices become free for the Pods that wait.
func (r *round) takeTurns(ctx context.Context) error {
	for {
		var running []*progress
		coming := len(r.unseen)
		for _, p := range r.pods {
			switch {
			case p.running && !p.ending:
				running = append(running, p)
			case !p.ending:
				coming++
			}
		}
		if len(running) == 0 || len(running) < r.plan.Lag && coming > 0 {
			return nil
		}
		slices.SortFunc(running, func(a, b *progress) int {
			if a.pod.Name < b.pod.Name {
				return -1
			}
			return 1
		})
		if err := r.end(ctx, running[r.draw.IntN(len(running))]); err != nil {
			return err
		}
	}
}

func (r *round) end(ctx context.Context, p *progress) error {
	p.ending = true
	return r.Delete(ctx, p.pod.Name)
}

// step counts and starts the kills whose moment it is.
func (r *round) step(ctx context.Context) {
	r.steps++
	for len(r.waiting) > 0 && r.waiting[0].After <= r.steps {
		r.kill(ctx, r.waiting[0])
		r.waiting = r.waiting[1:]
	}
}

func (r *round) kill(ctx context.Context, k Kill) {
	r.killing.Go(func() {
		timer := time.NewTimer(k.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		victim, err := r.Kill(ctx, k.Choice)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.killErr = errors.Join(r.killErr, err)
			return
		}
		r.killed++
		fmt.Fprintf(r.out, "round %d: killed %s\n", r.number, victim)
	})
}

// left names the Pods that are still there.
func (r *round) left() string {
	var names []string
	for _, p := range r.pods {
		names = append(names, fmt.Sprintf("%s (%s, %s)", p.pod.Name, p.fate, p.pod.Status.Phase))
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}
