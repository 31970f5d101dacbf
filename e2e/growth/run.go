package growth

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/lab"
	"gpuladder.dev/ladder/e2e/measure"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	patience    = 60 * time.Second
	podPatience = 15 * time.Minute

	namespace = "growth"
	policy    = "growth"
	firstTier = "h100"
	// writers is how many Pods are created at once.
	writers = 8

	// A cluster is at rest when the scheduler has sent nothing for restLooks
	// looks that are restInterval apart: then its records are written.
	restLooks    = 4
	restInterval = 500 * time.Millisecond
	restPatience = 3 * time.Minute
)

var parts = measure.Parts{
	Processes: []string{lab.LadderScheduler, lab.APIServer, lab.Etcd, lab.ControllerManager, lab.LadderController, lab.Kwok},
	Metrics:   []string{lab.LadderScheduler, lab.APIServer},
}

// Bench is a cluster that is up with a fleet of the given size.
type Bench struct {
	Cluster measure.Cluster
	Client  client.Client
	Kube    kubernetes.Interface
	Now     func() time.Time
	Nodes   int
	// Idle is how long it is watched doing nothing.
	Idle time.Duration
}

// Measure makes the runs on one fleet and adds them to the result.
func Measure(ctx context.Context, b Bench, o Options, result *Result) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if _, err := b.single(ctx, min(o.Single, 5)); err != nil { // warms up
		return fmt.Errorf("warming up, %w", err)
	}
	idle, err := b.idle(ctx)
	if err != nil {
		return err
	}
	result.Idles = append(result.Idles, Idle{
		Nodes:        b.Nodes,
		SchedulerCPU: milliseconds(idle.CPU(lab.LadderScheduler)) / idle.Took().Seconds(),
		APIServerCPU: milliseconds(idle.CPU(lab.APIServer)) / idle.Took().Seconds(),
		Served:       sum(idle.Served(lab.APIServer)) / idle.Took().Seconds(),
	})
	for n := 1; n <= o.Runs; n++ {
		run, err := b.single(ctx, o.Single)
		if err != nil {
			return err
		}
		if err := b.atOnce(ctx, o, idle, &run); err != nil {
			return err
		}
		run.Nodes, run.Run = b.Nodes, n
		result.Runs = append(result.Runs, run)
		fmt.Fprintf(o.Progress, "%d nodes, run %d: one by one %.1f ms (attempt %.1f ms); at once %.1f ms a Pod (decision %.2f ms), CPU of the scheduler %.1f ms, of the API server %.1f ms, %.1f calls\n",
			run.Nodes, run.Run, run.Wait, run.Attempt, run.Wall, run.Decision, run.SchedulerCPU, run.APIServerCPU, run.Calls.Total())
	}
	return nil
}

func (b Bench) prepare(ctx context.Context) error {
	p := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{
			{Name: firstTier, Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}, {Name: "l4", Models: []string{"L4"}},
		}},
	}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, p} {
		if err := b.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s, %w", o, o.GetName(), err)
		}
	}
	return workload.WaitUsable(ctx, b.Client, policy, namespace, patience)
}

// single places Pods one after another and removes them.
func (b Bench) single(ctx context.Context, pods int) (Run, error) {
	if _, err := b.rest(ctx); err != nil {
		return Run{}, err
	}
	tracker, err := workload.Track(ctx, b.Kube, namespace, workload.Bound, b.Now)
	if err != nil {
		return Run{}, err
	}
	defer tracker.Stop()
	before, err := measure.Read(ctx, b.Cluster, parts, b.Now)
	if err != nil {
		return Run{}, err
	}
	var waits []float64
	for i := range pods {
		pod := workload.Pod(namespace, fmt.Sprintf("single-%04d", i), policy)
		start := b.Now()
		if err := workload.CreateAll(ctx, b.Kube, 1, pod); err != nil {
			return Run{}, err
		}
		if err := tracker.Wait(ctx, i+1, patience); err != nil {
			return Run{}, err
		}
		waits = append(waits, milliseconds(tracker.Met()[pod.Name].Sub(start)))
	}
	after, err := measure.Read(ctx, b.Cluster, parts, b.Now)
	if err != nil {
		return Run{}, err
	}
	run := Run{Wait: measure.Median(waits), Attempt: 1000 * scheduled(after.Since(before)).Mean()}
	return run, workload.Clear(ctx, b.Kube, podPatience, namespace)
}

// atOnce places Pods that were created at once, fills in what that cost and
// removes them.
func (b Bench) atOnce(ctx context.Context, o Options, idle measure.Cost, run *Run) error {
	before, err := b.rest(ctx)
	if err != nil {
		return err
	}
	tracker, err := workload.Track(ctx, b.Kube, namespace, workload.Bound, b.Now)
	if err != nil {
		return err
	}
	defer tracker.Stop()
	pods := make([]*corev1.Pod, 0, o.Pods)
	for i := range o.Pods {
		pods = append(pods, workload.Pod(namespace, fmt.Sprintf("p-%04d", i), policy))
	}
	start := b.Now()
	if err := workload.CreateAll(ctx, b.Kube, writers, pods...); err != nil {
		return err
	}
	if err := tracker.Wait(ctx, o.Pods, podPatience); err != nil {
		return err
	}
	last := start
	for _, at := range tracker.Met() {
		if at.After(last) {
			last = at
		}
	}
	after, err := b.rest(ctx)
	if err != nil {
		return err
	}
	run.cost(o.Pods, last.Sub(start), after.Since(before), idle)
	placed, err := workload.Placements(ctx, b.Client, namespace)
	if err != nil {
		return err
	}
	for _, p := range placed {
		if p.Tier == firstTier {
			run.FirstTier++
		}
	}
	return workload.Clear(ctx, b.Kube, podPatience, namespace)
}

// cost fills in what so many Pods cost.
func (r *Run) cost(pods int, wall time.Duration, cost, idle measure.Cost) {
	n := float64(pods)
	cpu := func(components ...string) float64 {
		var all float64
		for _, c := range components {
			spent := milliseconds(cost.CPU(c))
			spent -= milliseconds(idle.CPU(c)) * cost.Took().Seconds() / idle.Took().Seconds()
			all += max(spent, 0)
		}
		return all / n
	}
	r.Wall = milliseconds(wall) / n
	r.Decision = 1000 * cost.Histogram(lab.LadderScheduler, "scheduler_scheduling_algorithm_duration_seconds", nil).Mean()
	r.Engine = 1000 * cost.Histogram(lab.LadderScheduler, "ladder_decision_seconds", nil).Sum / n
	r.SchedulerCPU, r.APIServerCPU, r.EtcdCPU = cpu(lab.LadderScheduler), cpu(lab.APIServer), cpu(lab.Etcd)
	r.OthersCPU = cpu(lab.ControllerManager, lab.LadderController, lab.Kwok)
	calls := cost.Calls(lab.LadderScheduler)
	r.Calls = measure.Calls{Reads: calls.Reads / n, Writes: calls.Writes / n}
	r.Served = maps.Clone(cost.Served(lab.APIServer))
	background := idle.Served(lab.APIServer)
	for what := range r.Served {
		net := r.Served[what] - background[what]*cost.Took().Seconds()/idle.Took().Seconds()
		r.Served[what] = max(net, 0) / n
	}
}

// scheduled are the attempts that placed a Pod.
func scheduled(cost measure.Cost) measure.Histogram {
	return cost.Histogram(lab.LadderScheduler, "scheduler_scheduling_attempt_duration_seconds", measure.Labels{"result": "scheduled"})
}

// idle watches the cluster do nothing.
func (b Bench) idle(ctx context.Context) (measure.Cost, error) {
	before, err := b.rest(ctx)
	if err != nil {
		return measure.Cost{}, err
	}
	if err := sleep(ctx, b.Idle); err != nil {
		return measure.Cost{}, err
	}
	after, err := measure.Read(ctx, b.Cluster, parts, b.Now)
	return after.Since(before), err
}

// rest waits until the scheduler has nothing more to write and returns how
// things stand then.
func (b Bench) rest(ctx context.Context) (measure.Reading, error) {
	only := measure.Parts{Metrics: []string{lab.LadderScheduler}}
	deadline := b.Now().Add(restPatience)
	last, since := -1.0, 0
	for since < restLooks {
		r, err := measure.Read(ctx, b.Cluster, only, b.Now)
		if err != nil {
			return r, err
		}
		// Reads go on: watches end and are opened again.
		writes := r.Since(measure.Reading{}).Calls(lab.LadderScheduler).Writes
		if since++; writes != last {
			last, since = writes, 0
		}
		if b.Now().After(deadline) {
			return r, fmt.Errorf("waiting for the scheduler to come to rest, it still writes after %s", restPatience)
		}
		if err := sleep(ctx, restInterval); err != nil {
			return r, err
		}
	}
	return measure.Read(ctx, b.Cluster, parts, b.Now)
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

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func sum(numbers map[string]float64) float64 {
	var all float64
	for _, n := range numbers {
		all += n
	}
	return all
}
