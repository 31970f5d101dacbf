package policy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/cluster"
	"gpuladder.dev/ladder/tools/internal/command"
)

// shown is what `ladder policy show` prints.
type shown struct {
	Name string `json:"name"`
	// ActiveRevision is what a new Pod gets; 0: none, it is refused.
	ActiveRevision int64 `json:"activeRevision"`
	// Ready is what ladder-controller says; nil where it has said nothing.
	Ready *readiness `json:"ready,omitempty"`
	Hash  string     `json:"hash"`
	// Revisions are in order of number.
	Revisions []revision                     `json:"revisions,omitempty"`
	Spec      v1alpha1.AcceleratorPolicySpec `json:"spec"`
}

type revision struct {
	Revision int64                  `json:"revision"`
	Hash     string                 `json:"hash"`
	State    v1alpha1.RevisionState `json:"state"`
}

type readiness struct {
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	// Stale: the policy was changed since.
	Stale bool `json:"stale,omitempty"`
}

func newShowCommand(s command.Streams) *cobra.Command {
	format := command.Text
	var files command.Files
	var flags cluster.Flags
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a policy: its tiers, constraints, revisions and hash",
		Example: `  {{ladder}} policy show h100-first
  {{ladder}} policy show h100-first -f my-policies/ -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, revisions, err := findPolicy(cmd.Context(), files, flags, s, args[0])
			if err != nil {
				return err
			}
			v := show(p, revisions)
			return command.Printed(format.Write(s.Out, v, func(w io.Writer) error { return v.text(w, s) }))
		},
	}
	files.Flags(cmd)
	flags.Flags(cmd)
	format.Flag(cmd)
	return cmd
}

// findPolicy gets the policy from the files, or without any from the cluster.
func findPolicy(ctx context.Context, files command.Files, flags cluster.Flags, s command.Streams, name string) (*v1alpha1.AcceleratorPolicy, []*v1alpha1.PolicyRevision, error) {
	if len(files.Paths) == 0 {
		client, err := flags.Connect()
		if err != nil {
			return nil, nil, command.Failed(err)
		}
		p, revisions, err := client.Policy(ctx, name)
		if err != nil {
			return nil, nil, command.Failed(err)
		}
		p.Default()
		return p, revisions, nil
	}
	set, err := files.Read(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	o, ok := set.Find("AcceleratorPolicy", "", name)
	if !ok {
		return nil, nil, command.Failed(fmt.Errorf("no AcceleratorPolicy %s in the input", name))
	}
	var revisions []*v1alpha1.PolicyRevision
	for r := range manifest.All[*v1alpha1.PolicyRevision](set) {
		if r.Spec.Policy == name {
			revisions = append(revisions, r)
		}
	}
	return o.Object.(*v1alpha1.AcceleratorPolicy), revisions, nil
}

func show(p *v1alpha1.AcceleratorPolicy, revisions []*v1alpha1.PolicyRevision) shown {
	slices.SortFunc(revisions, func(a, b *v1alpha1.PolicyRevision) int { return cmp.Compare(a.Spec.Revision, b.Spec.Revision) })
	v := shown{Name: p.Name, Hash: p.Spec.ContentHash(), Spec: p.Spec, ActiveRevision: active(p, revisions)}
	for _, r := range revisions {
		v.Revisions = append(v.Revisions, revision{r.Spec.Revision, r.Spec.Hash, r.Spec.State})
	}
	if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		v.Ready = &readiness{ready.Status, ready.Reason, ready.Message, p.Status.ObservedGeneration != p.Generation}
	}
	return v
}

// active is the revision that new Pods get, or 0. Where ladder-controller has
// looked at the policy admission goes by its status. Elsewhere it is what the
// controller would choose: the one that is named, else the newest, and none in
// the place of one that is withdrawn or not there. Written by hand and without
// revisions a policy is revision 1 itself.
func active(p *v1alpha1.AcceleratorPolicy, revisions []*v1alpha1.PolicyRevision) int64 {
	var wanted *v1alpha1.PolicyRevision
	for _, r := range revisions {
		if n := p.Spec.ActiveRevision; n == nil || *n == r.Spec.Revision {
			wanted = r // the newest comes last
		}
	}
	switch {
	case p.Status.ObservedGeneration > 0:
		return p.Status.ActiveRevision
	case wanted != nil && wanted.Spec.State != v1alpha1.RevisionWithdrawn && wanted.DeletionTimestamp.IsZero():
		return wanted.Spec.Revision
	case len(revisions) == 0 && !manifest.FromCluster(p):
		return 1
	}
	return 0
}

// sharing is how devices are shared, in a line.
func sharing(s *v1alpha1.Sharing) string {
	said := string(s.Strategy)
	if s.Strategy == v1alpha1.SharingTimeSlicing {
		return said + ", interval " + string(s.Interval())
	}
	if s.MPS == nil {
		return said
	}
	if p := s.MPS.ActiveThreadPercentage; p != nil {
		said += fmt.Sprintf(", %d %% of the threads", *p)
	}
	if limit := s.MPS.PinnedDeviceMemoryLimit; limit != nil {
		said += ", " + limit.String() + " of the memory"
	}
	return said
}

func (v shown) text(w io.Writer, s command.Streams) error {
	var b strings.Builder
	fmt.Fprintf(&b, "AcceleratorPolicy %s\n", s.Paint(command.Strong, v.Name))
	fact := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	fact("hash", "%s", v.Hash)
	number := "none"
	if v.ActiveRevision > 0 {
		number = fmt.Sprint(v.ActiveRevision)
	}
	fact("revision", "%s%s", number, v.others())
	if r := v.Ready; r != nil {
		stale := ""
		if r.Stale {
			stale = "; it was changed since ladder-controller looked at it"
		}
		fact("ready", "%s, %s: %s%s", r.Status, r.Reason, r.Message, stale)
	}
	fact("driver", "%s", v.Spec.Driver)
	fact("ranking", "%s", v.Spec.Ranking)
	fact("mixModels", "%s", v.Spec.MixModels)
	if v.Spec.MixTiers != "" {
		fact("mixTiers", "%s", v.Spec.MixTiers)
	}
	fact("preempts", "%s", v.Spec.Preempts)
	fact("onUnhealthy", "%s", v.Spec.OnUnhealthy.Action)
	if !v.Spec.Sharing.IsExclusive() {
		fact("sharing", "%s", sharing(v.Spec.Sharing))
	}
	if constraints := v.constraints(); len(constraints) > 0 {
		b.WriteString("\nConstraints, in every tier:\n")
		for _, c := range constraints {
			fact(c[0], "%s", c[1])
		}
	}
	b.WriteString("\nTiers, the most wanted first:\n")
	t := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "  TIER\tMODELS\tCOUNT\tAFTER\tSELECTORS")
	for i := range v.Spec.Tiers {
		tier := &v.Spec.Tiers[i]
		models, after := "any", "-"
		if len(tier.Models) > 0 {
			models = strings.Join(tier.Models, ", ")
		}
		if tier.After != nil {
			after = brief(tier.After.Duration)
		}
		selectors := "-"
		if len(tier.Selectors) > 0 {
			selectors = strings.Join(tier.Selectors, " && ")
		}
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%s\n", tier.Name, models, v.Spec.CountOf(tier), after, selectors)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// others names the revisions that there are.
func (v shown) others() string {
	if len(v.Revisions) == 0 {
		return ""
	}
	var names []string
	for _, r := range v.Revisions {
		name := fmt.Sprint(r.Revision)
		if r.State == v1alpha1.RevisionWithdrawn {
			name += " (withdrawn)"
		}
		names = append(names, name)
	}
	return " active, of " + strings.Join(names, ", ")
}

func (v shown) constraints() [][2]string {
	c := v.Spec.Constraints
	var out [][2]string
	add := func(name, value string) {
		if value != "" {
			out = append(out, [2]string{name, value})
		}
	}
	if c.MinMemory != nil {
		add("memory", "at least "+c.MinMemory.String())
	}
	if c.MinComputeCapability != "" {
		add("compute", "capability at least "+c.MinComputeCapability)
	}
	if c.MinDriverVersion != "" {
		add("driver", "version at least "+c.MinDriverVersion)
	}
	if len(c.Architectures) > 0 {
		add("architecture", strings.Join(c.Architectures, " or "))
	}
	add("isolation", string(c.Isolation))
	for _, sel := range c.Selectors {
		add("selector", sel)
	}
	if len(c.MatchAttributes) > 0 {
		add("topology", "the same "+strings.Join(c.MatchAttributes, " and "))
	}
	return out
}
