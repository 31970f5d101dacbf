package quota

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/policies/tenants"
	"gpuladder.dev/ladder/tools/internal/command"
)

// outcome is what the controller would do at once.
type outcome struct {
	Opens    []string `json:"opens"`
	Reclaims []string `json:"reclaims"`
	Waiting  []line   `json:"waiting"`
}

// line is how many of a tenant's Pods wait on.
type line struct {
	Tenant  string `json:"tenant"`
	Waiting int32  `json:"waiting"`
}

func newWhatIfCommand(s command.Streams) *cobra.Command {
	var in input
	var changed command.Files
	cmd := &cobra.Command{
		Use:   "what-if",
		Short: "Compare what happens at once with the quotas as they are, and with others",
		Long: `What-if asks the quota controller's engine twice what it would do at once: with
the quotas of the input, and with those of --quota in the place of the ones of
the same name. It says whose gate opens and whose devices would be taken back.
What happens later, when work ends, is the business of ladder simulate.`,
		Example: `  {{ladder}} quota what-if -f cluster.yaml --quota team-train.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			quotas, err := readQuotas(cmd.Context(), changed, s, in.files.MaxInput)
			if err != nil {
				return err
			}
			st, err := in.read(cmd.Context(), s)
			if err != nil {
				return err
			}
			before, err := ask(st)
			if err != nil {
				return err
			}
			after, err := ask(st, quotas...)
			if err != nil {
				return err
			}
			v := map[string]*outcome{"now": before, "then": after}
			return command.Printed(in.format.Write(s.Out, v, func(w io.Writer) error { return compareText(w, before, after) }))
		},
	}
	in.flags(cmd)
	cmd.Flags().StringArrayVar(&changed.Paths, "quota", nil, "file with TenantQuotas to try; may be repeated")
	if err := cmd.MarkFlagRequired("quota"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

func readQuotas(ctx context.Context, files command.Files, s command.Streams, limit string) ([]*v1alpha1.TenantQuota, error) {
	files.MaxInput = limit
	set, err := files.Read(ctx, s)
	if err != nil {
		return nil, err
	}
	var quotas []*v1alpha1.TenantQuota
	for q := range manifest.All[*v1alpha1.TenantQuota](set) {
		quotas = append(quotas, q)
	}
	if len(quotas) == 0 {
		return nil, command.BadInput(fmt.Errorf("there is no TenantQuota in %q", files.Paths))
	}
	return quotas, nil
}

// ask the engine what it would do.
func ask(st *state, instead ...*v1alpha1.TenantQuota) (*outcome, error) {
	m, err := st.mirror(instead...)
	if err != nil {
		return nil, err
	}
	out := &outcome{Opens: []string{}, Reclaims: []string{}, Waiting: []line{}}
	for _, a := range m.Next(st.now) {
		namespace, name, _, _ := tenants.SplitID(a.ID)
		switch a.Kind {
		case fair.Open:
			out.Opens = append(out.Opens, namespace+"/"+name)
		case fair.Notice, fair.Evict:
			out.Reclaims = append(out.Reclaims, namespace+"/"+name)
		case fair.Cancel, fair.Widen:
		}
	}
	for _, q := range m.Quotas() {
		out.Waiting = append(out.Waiting, line{q.Name, m.Status(q).Waiting})
	}
	return out, nil
}

func compareText(w io.Writer, before, after *outcome) error {
	p := printer{w: w}
	for _, x := range []struct {
		name string
		*outcome
	}{{"As it is", before}, {"With the other quotas", after}} {
		p.line("%s:", x.name)
		for _, pod := range x.Opens {
			p.line("  opens        %s", pod)
		}
		for _, pod := range x.Reclaims {
			p.line("  takes back   %s", pod)
		}
		for _, l := range x.Waiting {
			p.line("  waiting      %d of %s", l.Waiting, l.Tenant)
		}
	}
	return p.err
}
