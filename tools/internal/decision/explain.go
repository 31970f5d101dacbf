package decision

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/cluster"
	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/revise"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	files     command.Files
	cluster   cluster.Flags
	format    command.Format
	now       string
	bundle    string
	examples  int
	all       bool
	namespace string
	pod       string
}

// NewExplainCommand returns `ladder explain`.
func NewExplainCommand(s command.Streams) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain POD [-n NAMESPACE]",
		Short: "Say why a Pod got what it got, or why it waits",
		Long: `Explain shows the record of a Pod's last decision: the tier, node and devices
first, then tier by tier what became of every other device.

The record comes from the cluster (the Pod's AllocationDecision), from files
(-f: decided as ` + "`decide`" + ` does, or an AllocationDecision among them), or from a
bundle or scheduler journal (--bundle). Records in the cluster name a few
devices for each reason; --all, with files or a bundle, names every one.

A Pod at a scheduling gate, such as that of its tenant, has no record: no
scheduler has looked at it. Explain says so; why it waits there is for
` + "`quota explain`" + ` to say.`,
		Example: `  {{ladder}} explain train-0 -n team-a
  {{ladder}} explain team-a/train-0 -f cluster.yaml --all
  {{ladder}} explain train-0 -n team-a --bundle run.jsonl -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.complete(args[0]); err != nil {
				return command.BadInput(err)
			}
			d, err := f.find(cmd.Context(), s)
			if err != nil {
				return err
			}
			return command.Printed(f.format.Write(s.Out, d, func(w io.Writer) error {
				p := printer{Streams: s}
				p.full(d)
				return p.flush(w)
			}))
		},
	}
	f.files.Flags(cmd)
	f.cluster.Flags(cmd)
	f.format.Flag(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "the Pod's namespace")
	cmd.Flags().StringVar(&f.bundle, "bundle", "", "read this bundle or scheduler journal")
	cmd.Flags().StringVar(&f.now, "now", "", "with -f: evaluation time in RFC 3339 (default: the newest time in the input)")
	cmd.Flags().IntVar(&f.examples, "examples", 3, "how many devices to name for each reason")
	cmd.Flags().BoolVar(&f.all, "all", false, "name every device")
	cmd.MarkFlagsMutuallyExclusive("examples", "all")
	cmd.MarkFlagsMutuallyExclusive("filename", "bundle")
	return cmd
}

// complete takes the Pod's name apart.
func (f *explainFlags) complete(pod string) error {
	f.pod = strings.TrimPrefix(strings.TrimPrefix(pod, "pod/"), "pods/")
	if namespace, name, ok := strings.Cut(f.pod, "/"); ok {
		if f.namespace != "" && f.namespace != namespace {
			return fmt.Errorf("the Pod is in namespace %s by its name and in %s by -n; leave one out", namespace, f.namespace)
		}
		f.namespace, f.pod = namespace, name
	}
	if f.pod == "" {
		return errors.New("explain needs the name of a Pod")
	}
	if f.all {
		f.examples = allExamples
		return nil
	}
	return checkExamples(f.examples)
}

// find gets the decision from wherever the flags say.
func (f *explainFlags) find(ctx context.Context, s command.Streams) (*decide.Decision, error) {
	switch {
	case f.bundle != "":
		return f.fromBundle(ctx)
	case len(f.files.Paths) > 0:
		return f.fromFiles(ctx, s)
	}
	return f.fromCluster(ctx, s)
}

func (f *explainFlags) fromCluster(ctx context.Context, s command.Streams) (*decide.Decision, error) {
	client, err := f.cluster.Connect()
	if err != nil {
		return nil, command.Failed(err)
	}
	if f.namespace == "" {
		f.namespace = client.Namespace
	}
	pod, err := client.Pod(ctx, f.namespace, f.pod)
	if err != nil {
		pod = nil // it may be gone, or not for everybody to read; the record says what it was
	}
	record, err := client.LastDecision(ctx, f.namespace, f.pod, pod)
	switch {
	case err != nil:
		return nil, command.Failed(err)
	case pod == nil:
	case len(pod.Spec.SchedulingGates) > 0:
		// Gates can be put on a new Pod only, so one with gates was never decided on.
		s.Warn("the record is of an earlier Pod of this name; the one that is there now %s", cluster.AtGates(cluster.Gates(pod)))
	case cluster.IsEarlier(record, pod):
		s.Warn("the record is of an earlier Pod of this name, with the UID %s; there is none of the one that is there now, with the UID %s", record.Spec.PodUID, pod.UID)
	}
	if f.all {
		s.Warn("records in the cluster name a few devices for each reason; for every one use --bundle with the scheduler's journal%s", at(record))
	}
	f.shorten(record)
	return &decide.Decision{Namespace: record.Namespace, AllocationDecisionSpec: record.Spec}, nil
}

// shorten leaves no more examples in a record than are wanted. A record can't
// be made to name more than it does.
func (f *explainFlags) shorten(record *v1alpha1.AllocationDecision) {
	if f.examples == allExamples {
		return
	}
	for _, tier := range record.Spec.Tiers {
		for i := range tier.Rejections {
			r := &tier.Rejections[i]
			r.Examples = r.Examples[:min(len(r.Examples), f.examples)]
		}
	}
}

func at(record *v1alpha1.AllocationDecision) string {
	if record.Spec.Journal == "" {
		return ""
	}
	return " (" + record.Spec.Journal + ")"
}

func (f *explainFlags) fromFiles(ctx context.Context, s command.Streams) (*decide.Decision, error) {
	now, err := parseNow(f.now)
	if err != nil {
		return nil, command.BadInput(err)
	}
	set, err := f.files.Read(ctx, s)
	if err != nil {
		return nil, err
	}
	d, err := f.recorded(set, s)
	if d != nil || err != nil {
		return d, err
	}
	decisions, err := Run(ctx, set, Settings{Now: now, Examples: f.examples, Warn: s.Warn})
	if err != nil {
		return nil, command.Failed(err)
	}
	for _, d := range decisions {
		if f.is(d.Namespace, d.Pod) {
			return d, nil
		}
	}
	return nil, command.Failed(f.absent(set))
}

// recorded is the newest AllocationDecision of the Pod among the files, if there
// is one that is not about an earlier Pod of its name. Where several namespaces
// have a Pod of the name, with a record or to be decided, that is an error.
func (f *explainFlags) recorded(set *manifest.Set, s command.Streams) (*decide.Decision, error) {
	namespaces := map[string]bool{}
	for pod := range manifest.All[*corev1.Pod](set) {
		if f.is(pod.Namespace, pod.Name) && manifest.Undecided(pod) && asks(pod) {
			namespaces[pod.Namespace] = true
		}
	}
	var newest *v1alpha1.AllocationDecision
	for r := range manifest.All[*v1alpha1.AllocationDecision](set) {
		if !f.is(r.Namespace, r.Spec.Pod) {
			continue
		}
		namespaces[r.Namespace] = true
		if o, ok := set.Find("Pod", r.Namespace, r.Spec.Pod); ok && cluster.IsEarlier(r, o.Object.(*corev1.Pod)) {
			continue
		}
		if newest == nil || cluster.Newer(r, newest) {
			newest = r
		}
	}
	switch {
	case len(namespaces) > 1:
		return nil, command.BadInput(fmt.Errorf("several namespaces have a Pod %s; say which with -n", f.pod))
	case newest == nil:
		return nil, nil
	}
	if o, ok := set.Find("Pod", newest.Namespace, newest.Spec.Pod); ok {
		if pod := o.Object.(*corev1.Pod); manifest.Undecided(pod) && revise.Edited(set, pod.Labels[v1alpha1.LabelPolicy]) {
			s.Warn("this is the record that is in the input, made before the policy was changed there; take the AllocationDecisions out to have the Pod decided")
		}
	}
	f.shorten(newest)
	return &decide.Decision{Namespace: newest.Namespace, AllocationDecisionSpec: newest.Spec}, nil
}

// absent says why there is no decision for the Pod in the files.
func (f *explainFlags) absent(set *manifest.Set) error {
	for pod := range manifest.All[*corev1.Pod](set) {
		if !f.is(pod.Namespace, pod.Name) {
			continue
		}
		switch {
		case pod.Spec.NodeName != "":
			return fmt.Errorf("the Pod %s/%s is on node %s already; give its AllocationDecision or the scheduler's journal to see why", pod.Namespace, pod.Name, pod.Spec.NodeName)
		case !manifest.Undecided(pod):
			return fmt.Errorf("the Pod %s/%s is done or being deleted", pod.Namespace, pod.Name)
		case slices.Contains(cluster.Gates(pod), v1alpha1.GateQuota):
			return fmt.Errorf("the Pod %s/%s %s, and no scheduler looks at it; ask why with `ladder quota explain %s -n %s` and the same input",
				pod.Namespace, pod.Name, cluster.AtGates(cluster.Gates(pod)), pod.Name, pod.Namespace)
		case len(pod.Spec.SchedulingGates) > 0:
			return fmt.Errorf("the Pod %s/%s %s, and no scheduler looks at it", pod.Namespace, pod.Name, cluster.AtGates(cluster.Gates(pod)))
		}
		return fmt.Errorf("the Pod %s/%s asks for no devices: it has neither the label %s nor resourceClaims", pod.Namespace, pod.Name, v1alpha1.LabelPolicy)
	}
	return fmt.Errorf("no Pod %s in the input%s", f.pod, in(f.namespace))
}

func (f *explainFlags) fromBundle(ctx context.Context) (*decide.Decision, error) {
	file, err := os.Open(f.bundle)
	if err != nil {
		return nil, command.BadInput(err)
	}
	defer file.Close()
	var last *journal.Step
	namespaces := map[string]bool{}
	_, err = journal.Walk(command.Interruptible(ctx, file), journal.Options{Examples: &f.examples, OnDecision: func(step journal.Step) {
		if f.is(step.Query.Pod.Namespace, step.Query.Pod.Name) {
			namespaces[step.Query.Pod.Namespace] = true
			last = &step
		}
	}})
	switch {
	case err != nil:
		return nil, command.BadInput(fmt.Errorf("%s: %w", f.bundle, err))
	case last == nil:
		return nil, command.Failed(fmt.Errorf("%s: no decision about a Pod %s%s", f.bundle, f.pod, in(f.namespace)))
	case len(namespaces) > 1:
		return nil, command.BadInput(fmt.Errorf("several namespaces have a Pod %s; say which with -n", f.pod))
	case last.Err != nil:
		return nil, command.Failed(fmt.Errorf("%s: line %d: Pod %s could not be decided: %w", f.bundle, last.Line, types.NamespacedName(last.Query.Pod), last.Err))
	}
	return last.Decision, nil
}

// is says whether a Pod is the one that is asked about.
func (f *explainFlags) is(namespace, name string) bool {
	return name == f.pod && (f.namespace == "" || namespace == f.namespace)
}

func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}
