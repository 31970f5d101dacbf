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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// patience bounds each wait.
const patience = 60 * time.Second

const (
	namespace = "placement"
	policy    = "h100-first"
	// firstTier is the policy's first tier.
	firstTier = "h100"
)

// Options say what is measured.
type Options struct {
	// Nodes in all, 8 GPUs each; the first H100Nodes of them carry H100, half
	// of the others A100, the rest L4.
	Nodes, H100Nodes int
	// Pods of one GPU each.
	Pods int
	// Runs of Ladder, and of each stock set-up.
	LadderRuns, StockRuns int
	// Progress gets a line for each run.
	Progress io.Writer
}

// Fleet is the fleet that the options describe.
func (o Options) Fleet() *fleet.Fleet {
	rest := o.Nodes - o.H100Nodes
	return fleet.New(
		fleet.Group{Name: "h100", Nodes: o.H100Nodes, Board: "H100-SXM5-80GB", GPUs: 8},
		fleet.Group{Name: "a100", Nodes: rest / 2, Board: "A100-SXM4-80GB", GPUs: 8},
		fleet.Group{Name: "l4", Nodes: rest - rest/2, Board: "L4", GPUs: 8},
	)
}

// Setup is one scheduler to measure.
type Setup struct {
	// Name as in the report.
	Name string
	// Scheduler is the name that Pods ask for; with Labelled they carry the
	// policy's label instead, and admission fills the rest in.
	Scheduler string
	Labelled  bool
	Runs      int
}

// Run is one measured run.
type Run struct {
	Setup       string  `json:"setup"`
	Number      int     `json:"run"`
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
	for n := 1; n <= s.Runs; n++ {
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
		run := Run{Setup: s.Name, Number: n, Pods: len(placed), Map: mapHash(placed), Seconds: took.Seconds()}
		for _, p := range placed {
			if p.Tier == firstTier {
				run.FirstChoice++
			}
		}
		runs = append(runs, run)
		fmt.Fprintf(o.Progress, "%s, run %d: %d of %d got an H100, map %s, %.1f s\n", s.Name, n, run.FirstChoice, run.Pods, run.Map, run.Seconds)
		if err := workload.DeleteAll(ctx, c, patience, namespace); err != nil {
			return runs, err
		}
	}
	return runs, nil
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
	p := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{
			{Name: firstTier, Models: []string{"H100"}}, {Name: "a100", Models: []string{"A100"}}, {Name: "l4", Models: []string{"L4"}},
		}},
	}
	for _, o := range []client.Object{ns, p} {
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
// while there were enough, and the same device each time.
func Check(o Options, runs []Run) error {
	want := min(o.Pods, o.H100Nodes*8)
	var first string
	for _, r := range runs {
		if r.Setup != "Ladder" {
			continue
		}
		if r.FirstChoice != want {
			return fmt.Errorf("run %d of Ladder gave %d of %d Pods an H100, want %d", r.Number, r.FirstChoice, r.Pods, want)
		}
		if first == "" {
			first = r.Map
		}
		if r.Map != first {
			return fmt.Errorf("run %d of Ladder made the map %s, want %s as in run 1", r.Number, r.Map, first)
		}
	}
	return nil
}

// Report writes the runs as Markdown.
func Report(w io.Writer, o Options, runs []Run) error {
	fmt.Fprintf(w, `# Placement: first choices and repeatability

%d Pods of one GPU each, created one after another, on %d nodes with 8 GPUs each, of which %d neighbouring ones carry H100. The policy's tiers are H100, A100, L4. Measured by `+"`go tool mage placement`"+` in the lab: real etcd, kube-apiserver and kube-controller-manager v1.37.2 and the scheduler under test as processes on one machine; nodes and Pods by kwok; slices by the fake driver. The seconds depend on what else the machine does and are no benchmark.

| scheduler | runs | got an H100 (min – max) | different Pod-to-device maps |
|---|---|---|---|
`, o.Pods, o.Nodes, o.H100Nodes)
	var names []string
	for _, r := range runs {
		if !slices.Contains(names, r.Setup) {
			names = append(names, r.Setup)
		}
	}
	for _, name := range names {
		low, high, n, maps := o.Pods, 0, 0, map[string]bool{}
		for _, r := range runs {
			if r.Setup == name {
				low, high, n, maps[r.Map] = min(low, r.FirstChoice), max(high, r.FirstChoice), n+1, true
			}
		}
		fmt.Fprintf(w, "| %s | %d | %d – %d of %d | %d |\n", name, n, low, high, o.Pods, len(maps))
	}
	fmt.Fprintf(w, "\n## Each run\n\n| scheduler | run | got an H100 | map | seconds |\n|---|---|---|---|---|\n")
	for _, r := range runs {
		if _, err := fmt.Fprintf(w, "| %s | %d | %d of %d | `%s` | %.1f |\n", r.Setup, r.Number, r.FirstChoice, r.Pods, r.Map, r.Seconds); err != nil {
			return err
		}
	}
	return nil
}
