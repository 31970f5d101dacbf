package storm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Waits. Thousands of Pods on a small machine take minutes.
const (
	patience      = 60 * time.Second
	stormPatience = 15 * time.Minute
	quietPatience = 3 * time.Minute
)

// Who there is: Pods that are served, the storm, and those that hold what part
// of the storm waits for. Namespaces and policies have the same names.
const (
	served  = "storm-served"
	never   = "storm-never"
	waiting = "storm-waiting"
	holders = "storm-holders"
)

// writers is how many Pods are created at once.
const writers = 8

// profileSpan is how much of a run is profiled, from its beginning.
const profileSpan = 5 * time.Second

// Bench is a cluster that is up and whose fleet is the options'.
type Bench struct {
	Cluster interface {
		measure.Cluster
		Profile(ctx context.Context, component string, span time.Duration) ([]byte, error)
	}
	Client client.Client
	Kube   kubernetes.Interface
	Now    func() time.Time
}

// others are the parts whose processor time is told beside that of the scheduler
// and the API server.
var others = []string{lab.Etcd, lab.ControllerManager, lab.LadderController, lab.Kwok}

var parts = measure.Parts{
	Processes: append([]string{lab.LadderScheduler, lab.APIServer}, others...),
	Metrics:   []string{lab.LadderScheduler, lab.APIServer},
}

// Measure does it all.
func Measure(ctx context.Context, b Bench, o Options) (*Result, error) {
	if err := b.prepare(ctx, o); err != nil {
		return nil, err
	}
	result := &Result{}
	m := &measurement{Bench: b, o: o, result: result}
	// The first run fills caches and is not counted.
	if _, err := m.place(ctx, ""); err != nil {
		return nil, fmt.Errorf("warming up, %w", err)
	}
	var err error
	if result.Before, err = m.idle(ctx, min(o.Idle, time.Minute)); err != nil {
		return nil, err
	}
	m.say("idle before the storm: %s", result.Before.text())
	for round := 1; round <= o.Rounds; round++ {
		if err := m.runs(ctx, round, false); err != nil {
			return result, err
		}
		if err := m.come(ctx); err != nil {
			return result, err
		}
		if err := m.runs(ctx, round, true); err != nil {
			return result, err
		}
		if round == o.Rounds {
			break
		}
		if err := workload.Clear(ctx, b.Kube, stormPatience, never, waiting); err != nil {
			return result, err
		}
		m.say("round %d: the storm is gone", round)
	}
	if result.Under, err = m.idle(ctx, o.Idle); err != nil {
		return result, err
	}
	m.say("idle under the storm: %s", result.Under.text())
	return result, nil
}

// measurement is one under way.
type measurement struct {
	Bench
	o      Options
	result *Result
}

func (m *measurement) say(format string, args ...any) {
	fmt.Fprintf(m.o.Progress, format+"\n", args...)
}

// prepare makes namespaces and policies, and has the holders take every L4.
func (b Bench) prepare(ctx context.Context, o Options) error {
	for _, ns := range []string{served, never, waiting, holders} {
		if err := b.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return fmt.Errorf("creating namespace %s, %w", ns, err)
		}
	}
	for name, tiers := range map[string][]v1alpha1.Tier{
		served:  {{Name: "h100", Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}},
		never:   {{Name: "b200", Models: []string{"B200"}}, {Name: "h200", Models: []string{"H200"}}},
		waiting: {{Name: "l4", Models: []string{"L4"}}},
	} {
		p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AcceleratorPolicySpec{Tiers: tiers}}
		if err := b.Client.Create(ctx, p); err != nil {
			return fmt.Errorf("creating policy %s, %w", name, err)
		}
		if err := workload.WaitUsable(ctx, b.Client, name, name, patience); err != nil {
			return err
		}
	}
	if err := workload.WaitUsable(ctx, b.Client, waiting, holders, patience); err != nil {
		return err
	}
	tracker, err := workload.Track(ctx, b.Kube, holders, workload.Bound, b.Now)
	if err != nil {
		return err
	}
	defer tracker.Stop()
	if err := workload.CreateAll(ctx, b.Kube, writers, podsOf(holders, waiting, o.held())...); err != nil {
		return err
	}
	if err := tracker.Wait(ctx, o.held(), patience+time.Duration(o.held())*time.Second); err != nil {
		return fmt.Errorf("taking every L4, %w", err)
	}
	return nil
}

func podsOf(namespace, policy string, count int) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, count)
	for i := range count {
		pods = append(pods, workload.Pod(namespace, fmt.Sprintf("p-%04d", i), policy))
	}
	return pods
}

// come creates the storm and returns when each Pod of it has been told that it
// waits.
func (m *measurement) come(ctx context.Context) error {
	start := m.Now()
	for _, part := range []struct {
		namespace string
		count     int
	}{{never, m.o.Storm - m.o.waiting()}, {waiting, m.o.waiting()}} {
		tracker, err := workload.Track(ctx, m.Kube, part.namespace, workload.Told, m.Now)
		if err != nil {
			return err
		}
		err = workload.CreateAll(ctx, m.Kube, writers, podsOf(part.namespace, part.namespace, part.count)...)
		if err == nil {
			err = tracker.Wait(ctx, part.count, stormPatience)
		}
		tracker.Stop()
		if err != nil {
			return fmt.Errorf("raising the storm, %w", err)
		}
	}
	took := m.Now().Sub(start)
	m.result.ComingSeconds = append(m.result.ComingSeconds, took.Seconds())
	m.say("the storm is there after %.0f s: %d Pods", took.Seconds(), m.o.Storm)
	return nil
}

// runs makes the runs of half a round.
func (m *measurement) runs(ctx context.Context, round int, storm bool) error {
	for n := 1; n <= m.o.Runs; n++ {
		beside, name := "alone", fmt.Sprintf("-%d-%d-alone.pprof", round, n)
		if storm {
			beside, name = fmt.Sprintf("beside a storm of %d", m.o.Storm), fmt.Sprintf("-%d-%d-beside.pprof", round, n)
		}
		run, err := m.place(ctx, name)
		if err != nil {
			return err
		}
		run.Round, run.Run, run.Storm = round, n, storm
		m.result.Runs = append(m.result.Runs, run)
		m.say("round %d, run %d, %s: %d Pods in %.2f s, scheduler %.2f s of CPU, %.0f attempts in vain",
			round, n, beside, m.o.Served, run.Seconds, run.SchedulerCPU, run.Vain)
	}
	return nil
}

// profile has the parts profiled from now on, and returns what waits for the
// profiles and keeps them under names that end so.
func (m *measurement) profile(ctx context.Context, suffix string) func() error {
	if m.o.Profiles == "" || suffix == "" {
		return func() error { return nil }
	}
	profiles := make([][]byte, len(parts.Metrics))
	group, ctx := errgroup.WithContext(ctx)
	for i, part := range parts.Metrics {
		group.Go(func() (err error) {
			profiles[i], err = m.Cluster.Profile(ctx, part, profileSpan)
			return err
		})
	}
	return func() error {
		if err := group.Wait(); err != nil {
			return err
		}
		if err := os.MkdirAll(m.o.Profiles, 0o755); err != nil {
			return fmt.Errorf("keeping profiles, %w", err)
		}
		for i, part := range parts.Metrics {
			if err := os.WriteFile(filepath.Join(m.o.Profiles, part+suffix), profiles[i], 0o644); err != nil {
				return fmt.Errorf("keeping profiles, %w", err)
			}
		}
		return nil
	}
}

// place creates the Pods that can be served, waits for their nodes and removes
// them again.
func (m *measurement) place(ctx context.Context, profile string) (Run, error) {
	if err := m.quiet(ctx); err != nil {
		return Run{}, err
	}
	tracker, err := workload.Track(ctx, m.Kube, served, workload.Bound, m.Now)
	if err != nil {
		return Run{}, err
	}
	defer tracker.Stop()
	before, err := measure.Read(ctx, m.Cluster, parts, m.Now)
	if err != nil {
		return Run{}, err
	}
	profiled := m.profile(ctx, profile)
	start := m.Now()
	if err := workload.CreateAll(ctx, m.Kube, writers, podsOf(served, served, m.o.Served)...); err != nil {
		return Run{}, err
	}
	if err := tracker.Wait(ctx, m.o.Served, stormPatience); err != nil {
		return Run{}, err
	}
	last := start
	for _, at := range tracker.Met() {
		if at.After(last) {
			last = at
		}
	}
	cost, err := m.counted(ctx, before)
	if err != nil {
		return Run{}, err
	}
	if err := profiled(); err != nil {
		return Run{}, err
	}
	placed, vain := attempts(cost)
	run := Run{
		Seconds: last.Sub(start).Seconds(), SchedulerCPU: cost.CPU(lab.LadderScheduler).Seconds(),
		APIServerCPU: cost.CPU(lab.APIServer).Seconds(), OthersCPU: map[string]float64{}, Placed: placed, Vain: vain,
	}
	for _, part := range others {
		run.OthersCPU[part] = cost.CPU(part).Seconds()
	}
	return run, workload.Clear(ctx, m.Kube, stormPatience, served)
}

// counted is the cost of a run once the scheduler has counted every Pod that it
// placed: the API server knows of a Pod's node a moment before that.
func (m *measurement) counted(ctx context.Context, before measure.Reading) (measure.Cost, error) {
	deadline := m.Now().Add(patience)
	for {
		after, err := measure.Read(ctx, m.Cluster, parts, m.Now)
		if err != nil {
			return measure.Cost{}, err
		}
		cost := after.Since(before)
		if placed, _ := attempts(cost); placed >= float64(m.o.Served) || m.Now().After(deadline) {
			return cost, nil
		}
		if err := sleep(ctx, countInterval); err != nil {
			return measure.Cost{}, err
		}
	}
}

// countInterval is the wait between two looks at what the scheduler counted.
const countInterval = 100 * time.Millisecond

// attempts are those of the scheduler that placed a Pod, and the others.
func attempts(cost measure.Cost) (placed, vain float64) {
	const metric = "scheduler_scheduling_attempt_duration_seconds"
	placed = cost.Histogram(lab.LadderScheduler, metric, measure.Labels{"result": "scheduled"}).Count
	return placed, cost.Histogram(lab.LadderScheduler, metric, nil).Count - placed
}

const (
	// quietFor is how long the scheduler must have done next to nothing before
	// something is measured, quietCPU what next to nothing is.
	quietFor = 2 * time.Second
	quietCPU = 100 * time.Millisecond
)

// quiet waits until the scheduler has come to rest: devices that came free wake
// those of the storm that wait for any.
func (m *measurement) quiet(ctx context.Context) error {
	only := measure.Parts{Processes: []string{lab.LadderScheduler}}
	deadline := m.Now().Add(quietPatience)
	for {
		before, err := measure.Read(ctx, m.Cluster, only, m.Now)
		if err != nil {
			return err
		}
		if err := sleep(ctx, quietFor); err != nil {
			return err
		}
		after, err := measure.Read(ctx, m.Cluster, only, m.Now)
		if err != nil {
			return err
		}
		used := after.Since(before).CPU(lab.LadderScheduler)
		if used <= quietCPU {
			return nil
		}
		if m.Now().After(deadline) {
			return fmt.Errorf("waiting for the scheduler to come to rest for %s, it still uses %s in %s", quietPatience, used, quietFor)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idle does nothing for a while and says what happened all the same.
func (m *measurement) idle(ctx context.Context, d time.Duration) (Idle, error) {
	if err := m.quiet(ctx); err != nil {
		return Idle{}, err
	}
	before, err := measure.Read(ctx, m.Cluster, parts, m.Now)
	if err != nil {
		return Idle{}, err
	}
	if err := sleep(ctx, d); err != nil {
		return Idle{}, err
	}
	after, err := measure.Read(ctx, m.Cluster, parts, m.Now)
	if err != nil {
		return Idle{}, err
	}
	return idleOf(after.Since(before)), nil
}

// largest is how many kinds of writes are named.
const largest = 3

func idleOf(cost measure.Cost) Idle {
	minute := func(n float64) float64 { return measure.PerMinute(n, cost.Took()) }
	placed, vain := attempts(cost)
	calls := cost.Calls(lab.LadderScheduler)
	all := 0.0
	writes := cost.ServedWrites(lab.APIServer)
	for _, n := range writes {
		all += n
	}
	var named []string
	for _, what := range measure.Largest(writes, largest, 1) {
		named = append(named, fmt.Sprintf("%s %.1f", what, minute(writes[what])))
	}
	return Idle{
		Seconds:        cost.Took().Seconds(),
		SchedulerCPU:   minute(cost.CPU(lab.LadderScheduler).Seconds()),
		APIServerCPU:   minute(cost.CPU(lab.APIServer).Seconds()),
		AttemptsInAll:  placed + vain,
		Attempts:       minute(placed + vain),
		Reads:          minute(calls.Reads),
		Writes:         minute(calls.Writes),
		ServedAll:      minute(all),
		ServedLargest:  strings.Join(named, ", "),
		SchedulerBytes: cost.To.Processes[lab.LadderScheduler].RSS,
	}
}
