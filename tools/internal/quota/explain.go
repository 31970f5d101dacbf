package quota

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/tenants"
	"gpuladder.dev/ladder/tools/internal/command"
)

// explanation is where a Pod stands, as `ladder quota explain` prints it.
type explanation struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	Reason    fair.Reason `json:"reason"`
	Detail    string      `json:"detail,omitempty"`
	// Entitled: the tenant's guarantee has room for it.
	Entitled bool `json:"entitled"`
	// Ahead are the Pods of the tenant that go first.
	Ahead int `json:"ahead"`
	// Turn of a Pod that waits; the earlier goes first.
	Turn *time.Time `json:"turn,omitempty"`
	Ways []way      `json:"ways,omitempty"`
}

// way is one model that would serve, and why it can't now.
type way struct {
	Tier   int         `json:"tier"`
	Model  string      `json:"model,omitempty"`
	Needed int64       `json:"needed"`
	Reason fair.Reason `json:"reason"`
}

func newExplainCommand(s command.Streams) *cobra.Command {
	var in input
	namespace := metav1.NamespaceDefault
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Say why a Pod waits at its tenant's gate",
		Example: `  {{ladder}} quota explain train-6 -n team-train -f cluster.yaml
  {{ladder}} quota explain train-6 -n team-train -f cluster.yaml --now 2026-11-01T01:00:00Z`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := in.read(cmd.Context(), s)
			if err != nil {
				return err
			}
			m, err := st.mirror()
			if err != nil {
				return err
			}
			x, err := explain(m, namespace, args[0])
			if err != nil {
				return command.Failed(err)
			}
			return command.Printed(in.format.Write(s.Out, x, x.text))
		},
	}
	in.flags(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "namespace of the Pod")
	return cmd
}

func explain(m *tenants.Mirror, namespace, pod string) (*explanation, error) {
	x, blocked, ok := m.Explain(namespace, pod)
	out := &explanation{Namespace: namespace, Pod: pod, Reason: blocked}
	if !ok {
		if blocked == "" {
			return nil, fmt.Errorf("no Pod %s/%s in the input waits for devices or has any that count", namespace, pod)
		}
		return out, nil
	}
	out.Reason, out.Detail, out.Entitled, out.Ahead = x.Reason, x.Detail, x.Entitled, x.Ahead
	if !x.Turn.IsZero() {
		out.Turn = &x.Turn
	}
	for _, w := range x.Ways {
		out.Ways = append(out.Ways, way{w.Alternative + 1, w.Model, w.Needed, w.Reason})
	}
	return out, nil
}

func (x *explanation) text(w io.Writer) error {
	p := printer{w: w}
	p.line("Pod %s/%s: %s", x.Namespace, x.Pod, x.Reason)
	if x.Detail != "" {
		p.line("  %-10s %s", "why", x.Detail)
	}
	if x.Turn != nil {
		p.line("  %-10s %s; %d of its tenant go first", "turn", x.Turn.Format(time.RFC3339), x.Ahead)
	}
	if x.Entitled {
		p.line("  %-10s its tenant's guarantee has room for it", "entitled")
	}
	for _, way := range x.Ways {
		model := way.Model
		if model == "" {
			model = "any model"
		}
		p.line("  tier %-5d %d %s: %s", way.Tier, way.Needed, model, way.Reason)
	}
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
