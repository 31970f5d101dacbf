package quota

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/tenants"
	"gpuladder.dev/ladder/tools/internal/command"
)

// tenant is one tenant, as `ladder quota show` prints it.
type tenant struct {
	Name   string                     `json:"name"`
	Spec   v1alpha1.TenantQuotaSpec   `json:"spec"`
	Status v1alpha1.TenantQuotaStatus `json:"status"`
}

func newShowCommand(s command.Streams) *cobra.Command {
	var in input
	cmd := &cobra.Command{
		Use:   "show [TENANT]",
		Short: "Show what tenants are given, hold and wait for",
		Long: `Show counts what tenants hold and are charged, as the quota controller does,
and lists the Pods whose turn comes next with the reason why they wait.`,
		Example: `  kubectl get nodes,pods,resourceslices,devicetaintrules,resourceclaims,acceleratorpolicies,policyrevisions,tenantquotas -A -o yaml | {{ladder}} quota show -f -
  {{ladder}} quota show team-train -f cluster.yaml -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := in.read(cmd.Context(), s)
			if err != nil {
				return err
			}
			m, err := st.mirror()
			if err != nil {
				return err
			}
			list := tenantsOf(m, args...)
			if len(args) > 0 && len(list) == 0 {
				return command.Failed(fmt.Errorf("no TenantQuota %s in the input", args[0]))
			}
			return command.Printed(in.format.Write(s.Out, map[string]any{"tenants": list}, func(w io.Writer) error {
				return showText(w, list, st.now)
			}))
		},
	}
	in.flags(cmd)
	return cmd
}

// tenantsOf lists all tenants, or those that are named.
func tenantsOf(m *tenants.Mirror, names ...string) []tenant {
	list := []tenant{}
	for _, q := range m.Quotas() {
		if len(names) == 0 || names[0] == q.Name {
			list = append(list, tenant{q.Name, q.Spec, m.Status(q)})
		}
	}
	return list
}

func showText(w io.Writer, list []tenant, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No TenantQuota in the input.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "TENANT\tMODEL\tGUARANTEED\tLIMIT\tUSED\tCHARGED\tBORROWED\tFALLBACKS\tSHARE\tWAITING\tSINCE")
	for _, x := range list {
		share, waiting, since := fmt.Sprintf("%.1f%%", float64(x.Status.SharePermille)/10), fmt.Sprint(x.Status.Waiting), "-"
		if at := x.Status.WaitingSince; at != nil {
			since = now.Sub(at.Time).Round(time.Second).String()
		}
		name := x.Name
		for _, m := range x.Status.Models {
			guaranteed, limit := "-", "-"
			for _, q := range x.Spec.Models {
				if q.Model == m.Model {
					guaranteed = fmt.Sprint(q.Guaranteed)
					if q.Limit != nil {
						limit = fmt.Sprint(*q.Limit)
					}
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d of %d\t%s\t%s\t%s\n", name, m.Model, guaranteed, limit,
				m.Used, m.Charged, m.Borrowed, m.Fallbacks, m.FirstChoice, share, waiting, since)
			name, share, waiting, since = "", "", "", ""
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return nextText(w, list)
}

// nextText prints who waits, and what is wrong.
func nextText(w io.Writer, list []tenant) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, x := range list {
		for i, p := range x.Status.Next {
			if i == 0 {
				fmt.Fprintf(t, "\nNext of %s:\n", x.Name)
			}
			fmt.Fprintf(t, "  %d\t%s/%s\t%s\t%s\n", p.Position, p.Namespace, p.Name, p.Reason, p.Message)
		}
		for _, c := range x.Status.Conditions {
			if bad := c.Type == v1alpha1.ConditionReady && c.Status != "True" || c.Type == v1alpha1.ConditionFirstChoiceRare && c.Status == "True"; bad {
				fmt.Fprintf(t, "\n%s: %s=%s, %s: %s\n", x.Name, c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	return t.Flush()
}
