// Package demo runs the main job on a real control plane: Pods of two tenants
// ask for H100, then A100, then other boards; ladder-scheduler places them, and
// `ladder explain` says for each why it got what it got.
package demo

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// The demo's manifests; they can be applied by hand as well.
var (
	//go:embed manifests/fleet.yaml
	fleetYAML []byte
	//go:embed manifests/tenants.yaml
	tenantsYAML []byte
	//go:embed manifests/policies.yaml
	policiesYAML []byte
)

// patience bounds each wait for one decision.
const patience = 60 * time.Second

const (
	train = "team-train"
	serve = "team-serve"
)

// Fleet is the demo's fleet.
func Fleet() (*fleet.Fleet, error) {
	return fleet.Parse("fleet.yaml", bytes.NewReader(fleetYAML))
}

// Cluster is what the demo needs of the cluster that it runs on.
type Cluster struct {
	Client client.Client
	// Ladder runs the ladder CLI against the cluster and returns its output
	// and exit code.
	Ladder func(ctx context.Context, args ...string) (string, int, error)
	// Journal is the file that the scheduler writes its journal to.
	Journal string
}

// Options say how the demo runs.
type Options struct {
	// BundleDir is where the journal is copied to, for `ladder replay`.
	BundleDir string
	// Out gets the story.
	Out io.Writer
}

// request is one Pod of the demo.
type request struct{ namespace, name, policy string }

// requests are made one after another; each is decided before the next.
var requests = []request{
	{train, "train-0", "h100-first"},
	{train, "train-1", "h100-first"},
	{serve, "chat-0", "h100-first"},
	{train, "train-2", "h100-first"},
	{train, "train-3", "h100-first"},
	{serve, "chat-1", "h100-first"},
	{train, "train-4", "h100-first"},
	{train, "train-5", "h100-first"},
	{train, "train-6", "h100-first"},
	{serve, "embed-0", "small-first"},
	{serve, "embed-1", "small-first"},
	{serve, "frontier-0", "b200-only"},
}

// demo is one run.
type demo struct {
	Cluster
	Options
	step int
}

// Run tells the story on out and returns an error as soon as the cluster does
// something else than the story says.
func Run(ctx context.Context, cluster Cluster, opts Options) error {
	d := &demo{Cluster: cluster, Options: opts}
	for _, chapter := range []func(context.Context) error{
		d.applyObjects, d.placePods, d.explainFallback, d.explainPending, d.explainUnsatisfiable, d.reuse, d.replay,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Fprintf(d.Out, "\n%d. %s\n", d.step, fmt.Sprintf(format, args...))
}

func (d *demo) applyObjects(ctx context.Context) error {
	d.say("Two tenants, three policies. The policy controller turns each into a revision and a claim template.")
	for _, m := range []struct {
		name    string
		content []byte
	}{{"tenants.yaml", tenantsYAML}, {"policies.yaml", policiesYAML}} {
		objects, err := apply.Decode(m.name, m.content)
		if err != nil {
			return err
		}
		if err := apply.Objects(ctx, d.Client, objects...); err != nil {
			return err
		}
	}
	return workload.WaitFor(ctx, patience, "policies to be ready", func(ctx context.Context) (bool, string, error) {
		var policies v1alpha1.AcceleratorPolicyList
		if err := d.Client.List(ctx, &policies); err != nil {
			return false, "", err
		}
		var missing []string
		for _, p := range policies.Items {
			if p.Status.TemplateName == "" {
				missing = append(missing, p.Name)
			}
		}
		return len(policies.Items) >= 3 && len(missing) == 0, "not ready: " + strings.Join(missing, ", "), nil
	})
}

func (d *demo) placePods(ctx context.Context) error {
	d.say("A dozen Pods, one after another. Each carries only a label; admission adds the claim and the scheduler.")
	for _, r := range requests {
		pod := workload.Pod(r.namespace, r.name, r.policy)
		if err := workload.CreateAdmitted(ctx, d.Client, pod, patience); err != nil {
			return err
		}
		if _, err := workload.WaitDecided(ctx, d.Client, pod, patience); err != nil {
			return err
		}
	}
	if err := d.table(ctx); err != nil {
		return err
	}
	return d.expect(ctx, map[string]string{
		"train-0": "h100", "train-1": "h100", "chat-0": "h100", "train-2": "h100",
		"train-3": "a100", "chat-1": "a100", "train-4": "a100", "train-5": "a100",
		"train-6": "", "embed-0": "t4", "embed-1": "t4", "frontier-0": "",
	})
}

func (d *demo) explainFallback(ctx context.Context) error {
	d.say("Why did train-3 not get an H100?")
	return d.explain(ctx, train, "train-3", "InUse")
}

func (d *demo) explainPending(ctx context.Context) error {
	d.say("Why does train-6 wait, although four A100 are free? They have 40 GB, and no fallback relaxes memory.")
	return d.explain(ctx, train, "train-6", "MemoryTooSmall")
}

func (d *demo) explainUnsatisfiable(ctx context.Context) error {
	d.say("Why can frontier-0 never run here?")
	return d.explain(ctx, serve, "frontier-0", "Unsatisfiable")
}

func (d *demo) explain(ctx context.Context, namespace, pod, mustSay string) error {
	var out string
	err := workload.WaitFor(ctx, patience, "the record of "+pod, func(ctx context.Context) (bool, string, error) {
		var code int
		var err error
		out, code, err = d.Ladder(ctx, "explain", pod, "-n", namespace)
		return code == 0 && strings.Contains(out, mustSay), strings.TrimSpace(out), err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "   $ ladder explain %s -n %s\n%s", pod, namespace, indent(out))
	return nil
}

func (d *demo) reuse(ctx context.Context) error {
	d.say("train-0 ends. Its H100 goes to train-6, which has waited.")
	before, err := d.placement(ctx, "train-0")
	if err != nil {
		return err
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = train, "train-0"
	if err := d.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("deleting train-0, %w", err)
	}
	var after workload.Placement
	err = workload.WaitFor(ctx, patience, "train-6 to be placed", func(ctx context.Context) (bool, string, error) {
		var err error
		after, err = d.placement(ctx, "train-6")
		return after.Node != "", "no node yet", err
	})
	if err != nil {
		return err
	}
	was, is := strings.Join(before.Devices, ","), strings.Join(after.Devices, ",")
	if was != is {
		return fmt.Errorf("train-6 got %s, want the device that train-0 had: %s", is, was)
	}
	return d.table(ctx)
}

func (d *demo) replay(ctx context.Context) error {
	d.say("The scheduler's journal, decided again: the same answers, the same digests.")
	if err := os.MkdirAll(d.BundleDir, 0o755); err != nil {
		return err
	}
	content, err := d.journal(ctx)
	if err != nil {
		return err
	}
	bundle := filepath.Join(d.BundleDir, "journal.jsonl")
	if err := os.WriteFile(bundle, content, 0o644); err != nil {
		return err
	}
	out, code, err := d.Ladder(ctx, "replay", bundle)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "   $ ladder replay %s\n%s", bundle, indent(out))
	if code != 0 {
		return fmt.Errorf("replaying the journal, it ended with code %d", code)
	}
	return nil
}

// journal reads the scheduler's journal once it holds the last decision.
func (d *demo) journal(ctx context.Context) (content []byte, err error) {
	err = workload.WaitFor(ctx, patience, "the journal to hold train-6's device", func(context.Context) (bool, string, error) {
		if content, err = os.ReadFile(d.Journal); err != nil {
			return false, "", fmt.Errorf("reading the journal, %w", err)
		}
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, `"pod":"train-6"`) && strings.Contains(line, `"outcome":"Allocated"`) {
				return true, "", nil
			}
		}
		return false, "not yet", nil
	})
	return content, err
}

func (d *demo) placement(ctx context.Context, pod string) (workload.Placement, error) {
	all, err := workload.Placements(ctx, d.Client, train, serve)
	for _, p := range all {
		if p.Pod == pod {
			return p, err
		}
	}
	return workload.Placement{}, err
}

// expect compares the tier of each Pod with the story; empty means none.
func (d *demo) expect(ctx context.Context, tiers map[string]string) error {
	all, err := workload.Placements(ctx, d.Client, train, serve)
	if err != nil {
		return err
	}
	for _, p := range all {
		if want, ok := tiers[p.Pod]; ok && p.Tier != want {
			return fmt.Errorf("Pod %s got tier %q, want %q", p.Pod, p.Tier, want)
		}
		delete(tiers, p.Pod)
	}
	if len(tiers) > 0 {
		return fmt.Errorf("%d Pods of the demo are not there", len(tiers))
	}
	return nil
}

func (d *demo) table(ctx context.Context) error {
	all, err := workload.Placements(ctx, d.Client, train, serve)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "   TENANT\tPOD\tPOLICY\tTIER\tDEVICE\tSAYS")
	for _, p := range all {
		says := ""
		if p.Condition != nil {
			says = p.Condition.Reason
		}
		fmt.Fprintf(w, "   %s\t%s\t%s\t%s\t%s\t%s\n", p.Namespace, p.Pod, p.Policy, orDash(p.Tier), orDash(strings.Join(p.Devices, ",")), says)
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func indent(s string) string {
	s = strings.TrimRight(s, "\n")
	return "   " + strings.ReplaceAll(s, "\n", "\n   ") + "\n"
}
