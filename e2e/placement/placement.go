// Package placement measures how many Pods get their first choice, and whether
// they get the same device each time: Ladder and the stock scheduler, one after
// the other, on the same fleet in the lab.
package placement

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/replay"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// patience bounds each wait.
const patience = 60 * time.Second

const (
	namespace     = "placement"
	loadNamespace = "placement-load"
	policy        = "h100-first"
	// firstTier is the policy's first tier.
	firstTier = "h100"
	// h100Group ends the names of the groups whose nodes carry H100.
	h100Group   = "h100"
	gpusPerNode = 8
)

// Options say what is measured.
type Options struct {
	// Nodes in all, 8 GPUs each; H100Nodes of them carry H100, half of the
	// others A100, the rest L4.
	Nodes, H100Nodes int
	// Spread has the nodes with H100 evenly among the others, in the order of
	// names and of creation. Otherwise they come first, next to each other.
	Spread bool
	// Loads are how much of the CPU and memory of each node with H100 other Pods
	// ask for, in percent; the runs are made with each. Default: 0 only.
	Loads []int
	// Pods of one GPU each.
	Pods int
	// Runs of Ladder, and of each stock set-up.
	LadderRuns, StockRuns int
	// Shuffle has nodes and slices created in an order drawn from Seed, another
	// one for each [RunsInOrder] runs of Ladder, with a restart of the scheduler
	// between these.
	Shuffle bool
	Seed    uint64
	// Progress gets a line for each run.
	Progress io.Writer
}

// Fleet is the fleet that the options describe.
func (o Options) Fleet() *fleet.Fleet {
	if !o.Spread {
		return fleet.New(groups("", o.H100Nodes, o.Nodes-o.H100Nodes)...)
	}
	var all []fleet.Group
	rest, left := o.Nodes-o.H100Nodes, o.Nodes-o.H100Nodes
	for i := range o.H100Nodes {
		share := rest*(i+1)/o.H100Nodes - (rest - left)
		left -= share
		all = append(all, groups(fmt.Sprintf("r%03d-", i), 1, share)...)
	}
	return fleet.New(all...)
}

// groups are some nodes with H100 and some without.
func groups(prefix string, h100, rest int) []fleet.Group {
	others := prefix
	if prefix != "" {
		others += "others-" // by name after h100
	}
	all := []fleet.Group{
		{Name: prefix + h100Group, Nodes: h100, Board: "H100-SXM5-80GB", GPUs: gpusPerNode},
		{Name: others + "a100", Nodes: rest / 2, Board: "A100-SXM4-80GB", GPUs: gpusPerNode},
		{Name: others + "l4", Nodes: rest - rest/2, Board: "L4", GPUs: gpusPerNode},
	}
	return slices.DeleteFunc(all, func(g fleet.Group) bool { return g.Nodes == 0 })
}

// Ladder is the name of Ladder's set-up.
const Ladder = "Ladder"

// RunsInOrder is how many runs are made with one order of creation: one in which
// the scheduler saw nodes and slices come, and one in which it listed them.
const RunsInOrder = 2

// Setup is one scheduler to measure.
type Setup struct {
	// Name as in the report.
	Name string
	// Scheduler is the name that Pods ask for; with Labelled they carry the
	// policy's label instead, and admission fills the rest in.
	Scheduler string
	Labelled  bool
	// Runs are made, after First others in other labs.
	First, Runs int
	// Between, where not nil, is called between two runs.
	Between func(context.Context) error
}

// Result is what was measured.
type Result struct {
	Runs []Run `json:"runs"`
	// Seed is what the order of creation was drawn from; 0 where it wasn't.
	Seed uint64 `json:"seed,omitempty"`
	// Replay is what became of Ladder's decisions when they were decided again.
	Replay replay.Result `json:"replay"`
}

// Run is one measured run.
type Run struct {
	Setup       string  `json:"setup"`
	Number      int     `json:"run"`
	Load        int     `json:"load"`
	Pods        int     `json:"pods"`
	FirstChoice int     `json:"firstChoice"`
	Map         string  `json:"map"`
	Seconds     float64 `json:"seconds"`
}

// Measure runs one set-up on a cluster that is up.
func Measure(ctx context.Context, c client.Client, s Setup, o Options, now func() time.Time) ([]Run, error) {
	if err := prepare(ctx, c); err != nil {
		return nil, err
	}
	var runs []Run
	for _, load := range o.loads() {
		more, err := measureLoad(ctx, c, s, o, load, now)
		runs = append(runs, more...)
		if err != nil {
			return runs, err
		}
	}
	return runs, nil
}

func (o Options) loads() []int {
	if len(o.Loads) == 0 {
		return []int{0}
	}
	return o.Loads
}

// measureLoad makes the runs with one load of the nodes with H100.
func measureLoad(ctx context.Context, c client.Client, s Setup, o Options, load int, now func() time.Time) ([]Run, error) {
	if err := occupy(ctx, c, o, load); err != nil {
		return nil, err
	}
	var runs []Run
	for n := s.First + 1; n <= s.First+s.Runs; n++ {
		if s.Between != nil && n > s.First+1 {
			if err := s.Between(ctx); err != nil {
				return runs, err
			}
		}
		start := now()
		for i := range o.Pods {
			if err := placeOne(ctx, c, s, fmt.Sprintf("p-%04d", i)); err != nil {
				return runs, err
			}
		}
		took := now().Sub(start)
		placed, err := workload.Placements(ctx, c, namespace)
		if err != nil {
			return runs, err
		}
		run := Run{Setup: s.Name, Number: n, Load: load, Pods: len(placed), Map: mapHash(placed), Seconds: took.Seconds()}
		for _, p := range placed {
			if p.Tier == firstTier {
				run.FirstChoice++
			}
		}
		runs = append(runs, run)
		fmt.Fprintf(o.Progress, "%s, load %d %%, run %d: %d of %d got an H100, map %s, %.1f s\n", s.Name, load, n, run.FirstChoice, run.Pods, run.Map, run.Seconds)
		if err := workload.DeleteAll(ctx, c, patience, namespace); err != nil {
			return runs, err
		}
	}
	return runs, workload.DeleteAll(ctx, c, patience, loadNamespace)
}

// occupy has one Pod on each node with H100 ask for a part of it.
func occupy(ctx context.Context, c client.Client, o Options, load int) error {
	if load == 0 {
		return nil
	}
	all := o.Fleet().Groups
	for i := range all {
		g := &all[i]
		if !strings.HasSuffix(g.Name, h100Group) {
			continue
		}
		part := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(g.CPU.MilliValue()*int64(load)/100, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(g.Memory.Value()*int64(load)/100, resource.BinarySI),
		}
		for n := range g.Nodes {
			node := g.NodeName(n)
			pod := workload.Pod(loadNamespace, "on-"+node, "", func(p *corev1.Pod) {
				p.Spec.NodeName = node
				p.Spec.Containers[0].Resources.Requests = part
			})
			if err := c.Create(ctx, pod); err != nil {
				return fmt.Errorf("loading node %s, %w", node, err)
			}
		}
	}
	return nil
}

// placeOne creates one Pod and waits until it is bound. The scheduler's cache
// hears of it through its own watch, so the next Pod sees this one.
func placeOne(ctx context.Context, c client.Client, s Setup, name string) error {
	var pod *corev1.Pod
	if s.Labelled {
		pod = workload.Pod(namespace, name, policy)
	} else {
		pod = workload.Pod(namespace, name, "", workload.FromTemplate(policy+"-1", s.Scheduler))
	}
	if err := workload.CreateAdmitted(ctx, c, pod, patience); err != nil {
		return err
	}
	return workload.WaitBound(ctx, c, pod, patience)
}

// prepare makes the namespace and the policy and waits for its template.
func prepare(ctx context.Context, c client.Client) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	others := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: loadNamespace}}
	p := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{
			{Name: firstTier, Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}, {Name: "l4", Models: []string{"L4"}},
		}},
	}
	for _, o := range []client.Object{ns, others, p} {
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s, %w", o, o.GetName(), err)
		}
	}
	return workload.WaitFor(ctx, patience, "the policy to be ready", func(ctx context.Context) (bool, string, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(p), p)
		return p.Status.TemplateName != "", "no template yet", err
	})
}

// mapHash identifies the map from Pods to devices.
func mapHash(placed []workload.Placement) string {
	h := sha256.New()
	for _, p := range placed {
		fmt.Fprintf(h, "%s %s %s\n", p.Pod, p.Node, strings.Join(p.Devices, ","))
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// Check says what Ladder promises: in every run each Pod got its first choice
// while there were enough, and the same device each time, however loaded the
// nodes are and in whatever order all was created; and each decision comes out
// the same when it is decided again.
func Check(o Options, result *Result) error {
	want := min(o.Pods, o.H100Nodes*gpusPerNode)
	var first string
	for _, r := range result.Runs {
		if r.Setup != Ladder {
			continue
		}
		if r.FirstChoice != want {
			return fmt.Errorf("run %d of Ladder, load %d %%, gave %d of %d Pods an H100, want %d", r.Number, r.Load, r.FirstChoice, r.Pods, want)
		}
		if first == "" {
			first = r.Map
		}
		if r.Map != first {
			return fmt.Errorf("run %d of Ladder, load %d %%, made the map %s, want %s as in the first run", r.Number, r.Load, r.Map, first)
		}
	}
	if first == "" {
		return nil // Ladder was left out
	}
	return result.Replay.Check()
}

// Report writes the runs as Markdown.
func Report(w io.Writer, o Options, r *Result) error {
	layout, order, runs := "neighbouring", "", r.Runs
	if o.Spread {
		layout = "evenly spread"
	}
	if o.Shuffle {
		order = fmt.Sprintf(" For each %d runs of Ladder nodes and slices were created anew, in an order drawn from seed %d, and between the two the scheduler was restarted.", RunsInOrder, o.Seed)
	}
	fmt.Fprintf(w, `# Placement: first choices and repeatability

%d Pods of one GPU each, created one after another, on %d nodes with 8 GPUs each, of which %d %s ones carry H100. The policy's tiers are H100, A100, L4. The load is what other Pods ask for of the CPU and memory of the nodes with H100. Measured by `+"`ladder-lab placement`"+` in the lab: real etcd, kube-apiserver and kube-controller-manager v1.37.2 and the scheduler under test as processes on one machine; nodes and Pods by kwok; slices by the fake driver. The seconds depend on what else the machine does and are no benchmark.%s

| scheduler | load | runs | got an H100 (min – max) | different Pod-to-device maps |
|---|---|---|---|---|
`, o.Pods, o.Nodes, o.H100Nodes, layout, order)
	for _, sum := range summaries(o, runs) {
		fmt.Fprintf(w, "| %s | %d %% | %d | %d – %d of %d | %d |\n", sum.setup, sum.load, sum.runs, sum.low, sum.high, o.Pods, len(sum.maps))
	}
	fmt.Fprintf(w, "\n## Each run\n\n| scheduler | load | run | got an H100 | map | seconds |\n|---|---|---|---|---|---|\n")
	for _, r := range runs {
		if _, err := fmt.Fprintf(w, "| %s | %d %% | %d | %d of %d | `%s` | %.1f |\n", r.Setup, r.Load, r.Number, r.FirstChoice, r.Pods, r.Map, r.Seconds); err != nil {
			return err
		}
	}
	if o.LadderRuns == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return r.Replay.Report(w)
}

// summary is the runs of one set-up with one load.
type summary struct {
	setup      string
	load, runs int
	low, high  int
	maps       map[string]bool
}

// summaries sums up the runs, in the order in which they were made.
func summaries(o Options, runs []Run) []*summary {
	var all []*summary
	for _, r := range runs {
		i := slices.IndexFunc(all, func(s *summary) bool { return s.setup == r.Setup && s.load == r.Load })
		if i < 0 {
			i = len(all)
			all = append(all, &summary{setup: r.Setup, load: r.Load, low: o.Pods, maps: map[string]bool{}})
		}
		s := all[i]
		s.runs, s.low, s.high = s.runs+1, min(s.low, r.FirstChoice), max(s.high, r.FirstChoice)
		s.maps[r.Map] = true
	}
	return all
}
