package simulate

// Helpers of the tests: fleets, policies, quotas and traces in a few words.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// dawn is when the traces of the tests begin.
var dawn = time.Date(2017, 10, 2, 0, 0, 0, 0, time.UTC)

type fatal interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// row is a job of the tests: times in seconds.
type row struct {
	at, seconds, gpus int
	tenant            string
	priority          int32
}

func traceOf(rows ...row) *Trace {
	t := &Trace{Format: Philly}
	for i, r := range rows {
		t.Jobs = append(t.Jobs, Job{
			Namespace: r.tenant, Created: dawn.Add(time.Duration(r.at) * time.Second), Duration: time.Duration(r.seconds) * time.Second,
			GPUs: r.gpus, Priority: r.priority, Line: i + 2,
		})
	}
	return t
}

// nodes is a group of a fleet; the board's model is what the policies name.
func nodes(count, gpus int, model string) fleet.Group {
	board := map[string]string{"H100": "H100-SXM5-80GB", "A100": "A100-SXM4-80GB", "L4": "L4"}[model]
	return fleet.Group{Name: strings.ToLower(model) + fmt.Sprintf("-x%d", gpus), Nodes: count, Board: board, GPUs: gpus}
}

// ladderOf is a policy with one tier for each model.
func ladderOf(models ...string) *v1alpha1.AcceleratorPolicy {
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "ladder"}}
	p.Spec.Preempts = v1alpha1.PreemptsBorrowed
	for _, m := range models {
		p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: strings.ToLower(m), Models: []string{m}})
	}
	p.Default()
	return p
}

// quotaOf guarantees so many devices of each model.
func quotaOf(tenant string, guaranteed int32, models ...string) *v1alpha1.TenantQuota {
	q := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: tenant}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{tenant}}}
	for _, m := range models {
		q.Spec.Models = append(q.Spec.Models, v1alpha1.ModelQuota{Model: m, Guaranteed: guaranteed})
	}
	q.Default()
	return q
}

func limited(q *v1alpha1.TenantQuota, limit int32) *v1alpha1.TenantQuota {
	for i := range q.Spec.Models {
		q.Spec.Models[i].Limit = ptr.To(limit)
	}
	return q
}

// nodesWithout carry no GPUs.
func nodesWithout(count int) fleet.Group { return fleet.Group{Name: "cpu", Nodes: count} }

func fleetFromText(text string) (*fleet.Fleet, error) {
	return fleet.Parse("fleet.yaml", strings.NewReader(text))
}

func fleetOf(groups ...fleet.Group) *fleet.Fleet { return fleet.New(groups...) }

func newSimulation(t fatal, in Input) *Simulation {
	t.Helper()
	if in.Policies == nil {
		in.Policies = []*v1alpha1.AcceleratorPolicy{ladderOf("H100", "A100", "L4")}
	}
	s, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// played runs one set-up and gives its summary.
func played(t *testing.T, in Input, mode fair.Mode) *Setup {
	t.Helper()
	s := newSimulation(t, in)
	o, err := s.Run(t.Context(), mode)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Report(nil, o)
	return &r.Setups[0]
}

// waitsOf are the waits of the jobs in the order of jobs, in seconds; -1: none.
func waitsOf(t *testing.T, in Input, mode fair.Mode) []float64 {
	t.Helper()
	s := newSimulation(t, in)
	o, err := s.Run(t.Context(), mode)
	if err != nil {
		t.Fatal(err)
	}
	var out []float64
	for i := range s.jobs {
		wait := s.wait(o, i)
		if wait == unfinished {
			out = append(out, -1)
			continue
		}
		out = append(out, seconds(wait))
	}
	return out
}

func (u *Setup) tenant(t fatal, name string) *Tenant {
	t.Helper()
	for i := range u.Tenants {
		if u.Tenants[i].Name == name {
			return &u.Tenants[i]
		}
	}
	t.Fatalf("no tenant %s", name)
	return nil
}

func jsonOf(t fatal, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// modes are all set-ups.
var modes = []fair.Mode{fair.FIFO, fair.PriorityOnly, fair.LadderWithoutAging, fair.Ladder}
