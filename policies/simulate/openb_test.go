package simulate

// Alibaba's trace of 2023, whole, on a cut of its own node list that is too
// small for it: jobs that name models get only those.

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// oneOfEach is the node list with one node of each size and model.
func oneOfEach(t *testing.T) *fleet.Fleet {
	t.Helper()
	var list bytes.Buffer
	seen := map[string]bool{}
	lines := bufio.NewScanner(data(t, "openb_node_list_gpu_node.csv"))
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		if kind := strings.Join(cells[3:], ","); !seen[kind] {
			seen[kind] = true
			list.WriteString(lines.Text() + "\n")
		}
	}
	f, err := fleet.FromOpenBNodes(&list)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOpenB(t *testing.T) {
	trace, err := ReadTrace(data(t, "openb_pod_list_gpuspec33.csv"), "")
	if err != nil {
		t.Fatal(err)
	}
	if trace.Format != OpenB || len(trace.Jobs) != 7064 || trace.Skipped != 1088 {
		t.Fatalf("format %s, %d jobs, %d skipped", trace.Format, len(trace.Jobs), trace.Skipped)
	}
	policy := ladderOf("H100")
	policy.Spec.Tiers = []v1alpha1.Tier{
		{Name: "large", Models: []string{"G2", "G3"}}, {Name: "middle", Models: []string{"V100M32", "V100M16"}}, {Name: "small", Models: []string{"T4", "P100", "A10"}},
	}
	policy.Default()
	in := Input{Fleet: oneOfEach(t), Trace: trace, Policies: []*v1alpha1.AcceleratorPolicy{policy}}
	for i, tenant := range []string{"be", "ls"} {
		q := quotaOf(tenant, int32(2+2*i), "G2", "G3", "V100M16", "V100M32", "T4")
		q.Spec.Models = append(q.Spec.Models, v1alpha1.ModelQuota{Model: "A10"}, v1alpha1.ModelQuota{Model: "P100"})
		in.Quotas = append(in.Quotas, q)
	}
	for _, mode := range []fair.Mode{fair.FIFO, fair.Ladder} {
		s := newSimulation(t, in)
		w := &watch{holder: map[string]int32{}}
		o, err := s.run(t.Context(), mode, hooks{decided: w.hooks().decided, released: w.hooks().released})
		if err != nil {
			t.Fatal(err)
		}
		waited, named := 0, 0
		for i := range s.jobs {
			wait := s.wait(o, i)
			switch {
			case wait == unfinished || wait < 0:
				t.Fatalf("%s: job %+v waits %d", mode, s.jobs[i], wait)
			case wait > 0:
				waited++
			}
			if len(s.jobs[i].Models) == 0 {
				continue
			}
			named++
			for m, model := range s.models {
				if o.states[i].models&(1<<m) != 0 && !slices.Contains(s.jobs[i].Models, model) {
					t.Errorf("%s: job %+v ran on %s", mode, s.jobs[i], model)
				}
			}
		}
		t.Logf("%s: %d of %d jobs waited, %d named models", mode, waited, len(s.jobs), named)
		if waited == 0 || named == 0 {
			t.Errorf("%s: %d jobs waited, %d named models", mode, waited, named)
		}
	}
}
