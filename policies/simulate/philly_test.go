package simulate

// Parts of a real trace. It is other people's data and kept beside the project:
// in $LADDER_DATA, else in ../shared/data. Without it the tests are skipped.

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/fleet"
)

// data opens one of the traces.
func data(t *testing.T, name string) *os.File {
	t.Helper()
	dir := os.Getenv("LADDER_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("the trace is not there (set LADDER_DATA): %v", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// philly is the first jobs of the trace from a day on that a test wants.
func philly(t *testing.T, from time.Time, most int, wants func(*Job) bool) *Trace {
	t.Helper()
	trace, err := ReadTrace(data(t, "philly.csv.gz"), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Jobs) != 82_247 {
		t.Errorf("%d jobs, want 82247", len(trace.Jobs))
	}
	slices.SortStableFunc(trace.Jobs, compareJobs)
	trace.Jobs = slices.DeleteFunc(trace.Jobs, func(j Job) bool { return j.Created.Before(from) || !wants(&j) })
	trace.Jobs = trace.Jobs[:min(most, len(trace.Jobs))]
	return trace
}

// tenantsOf gives every tenant of a trace an equal part of so many devices.
func tenantsOf(trace *Trace, devices int, models ...string) []*v1alpha1.TenantQuota {
	var names []string
	for i := range trace.Jobs {
		if name := trace.Jobs[i].Namespace; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var quotas []*v1alpha1.TenantQuota
	for _, name := range names {
		quotas = append(quotas, quotaOf(name, int32(devices/len(names)), models...))
	}
	return quotas
}

// denseDay is in the middle of the trace's busiest weeks.
var denseDay = time.Date(2017, 10, 9, 0, 0, 0, 0, time.UTC)

// The invariant of sharing on jobs of the trace, where docs/fair.md says that
// it holds: jobs of one GPU, one model, no two of a tenant created at once.
func TestNotLaterThanAloneOnPhilly(t *testing.T) {
	last := map[string]time.Time{}
	trace := philly(t, denseDay, 1500, func(j *Job) bool {
		if j.GPUs > 1 || !j.Created.After(last[j.Namespace]) {
			return false
		}
		last[j.Namespace] = j.Created
		return true
	})
	in := Input{
		Fleet: fleetOf(nodes(4, 8, "H100")), Trace: trace, Quotas: tenantsOf(trace, 32, "H100"),
		Policies: []*v1alpha1.AcceleratorPolicy{ladderOf("H100")},
	}
	s := newSimulation(t, in)
	p, err := s.Private(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fair.Mode{fair.LadderWithoutAging, fair.Ladder} {
		o, err := s.Run(t.Context(), mode)
		if err != nil {
			t.Fatal(err)
		}
		u := s.Report(p, o).Setups[0]
		t.Logf("%s: %d jobs, %d evictions, excess %+v", mode, u.Jobs, u.Evictions, u.Private)
		if u.Unfinished != 0 || u.Private.Jobs != len(trace.Jobs) || u.Private.OverBeyond != 0 || u.Evictions == 0 {
			t.Errorf("%s: %d unfinished, %d evictions, %+v", mode, u.Unfinished, u.Evictions, u.Private)
		}
	}
	// The measure can fail: fifo knows no guarantees.
	o, err := s.Run(t.Context(), fair.FIFO)
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Report(p, o).Setups[0].Private; e.OverBeyond == 0 {
		t.Errorf("fifo keeps guarantees: %+v", e)
	}
}

// The whole trace, as docs/reports/simulate.md has it: no tenant waits longer than
// alone, neither in the mean nor at the median or the 99th percentile, and none of
// its jobs that fit into the guarantee of one model longer than the longest alone.
// It takes a while, so it wants LADDER_DATA to be set.
func TestNoTenantWaitsLongerThanAloneOnPhilly(t *testing.T) {
	if os.Getenv("LADDER_DATA") == "" {
		t.Skip("set LADDER_DATA to the folder of the trace to play all of it")
	}
	read := func(name string, each func(document []byte) error) {
		raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reports", "simulate", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range bytes.Split(raw, []byte("\n---\n")) {
			if err := each(document); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	in := Input{Options: Options{Costs: map[string]int64{"H100": 100, "A100": 50, "L4": 10}}}
	var err error
	if in.Fleet, err = fleet.ReadFile(filepath.Join("..", "..", "docs", "reports", "simulate", "fleet.yaml")); err != nil {
		t.Fatal(err)
	}
	read("policy.yaml", func(document []byte) error {
		policy := &v1alpha1.AcceleratorPolicy{}
		in.Policies = append(in.Policies, policy)
		if err := yaml.Unmarshal(document, policy); err != nil {
			return err
		}
		policy.Default()
		return nil
	})
	guaranteed := map[string]int32{}
	read("quota.yaml", func(document []byte) error {
		quota := &v1alpha1.TenantQuota{}
		in.Quotas = append(in.Quotas, quota)
		if err := yaml.Unmarshal(document, quota); err != nil {
			return err
		}
		quota.Default()
		for _, m := range quota.Spec.Models {
			guaranteed[quota.Name] = max(guaranteed[quota.Name], m.Guaranteed)
		}
		return nil
	})
	in.Trace = philly(t, time.Time{}, 82_247, func(*Job) bool { return true })
	s := newSimulation(t, in)
	p, err := s.Private(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for mode, holds := range map[fair.Mode]bool{fair.Ladder: true, fair.FIFO: false} {
		o, err := s.Run(t.Context(), mode)
		if err != nil {
			t.Fatal(err)
		}
		longest := map[string][2]int64{} // shared and alone
		for i := range s.jobs {
			if name := s.tenants[s.tenantOf[i]].name; s.jobs[i].GPUs <= int(guaranteed[name]) && p.waits[i] != unfinished {
				l := longest[name]
				longest[name] = [2]int64{max(l[0], s.wait(o, i)), max(l[1], p.waits[i])}
			}
		}
		var worse []string
		compared := 0
		for _, tenant := range s.Report(p, o).Setups[0].Tenants {
			e := tenant.Private
			if e == nil || tenant.Jobs == 0 {
				t.Fatalf("tenant %s was not compared", tenant.Name)
			}
			compared += e.Jobs
			b := e.BoundSeconds
			if e.SharedMeanSeconds > e.AloneMeanSeconds+b || e.SharedSeconds.P50 > e.AloneSeconds.P50+b ||
				e.SharedSeconds.P99 > e.AloneSeconds.P99+b || longest[tenant.Name][0] > longest[tenant.Name][1]+int64(1000*b) {
				worse = append(worse, tenant.Name)
			}
		}
		// The others have Pods that no node of their private cluster could hold.
		if compared != 82_131 {
			t.Errorf("%s: %d jobs were compared", mode, compared)
		}
		t.Logf("%s: %d jobs, tenants that wait longer than alone: %q", mode, len(in.Trace.Jobs), worse)
		if holds != (len(worse) == 0) {
			t.Errorf("%s: %q wait longer than alone", mode, worse)
		}
	}
}

// All jobs of a part of the trace, gangs too, on three models: none is left
// over, and two runs give the same bytes.
func TestPhilly(t *testing.T) {
	trace := philly(t, denseDay, 1200, func(*Job) bool { return true })
	in := Input{
		Fleet: fleetOf(nodes(2, 8, "A100"), nodes(2, 8, "H100"), nodes(2, 8, "L4")), Trace: trace,
		Quotas:  tenantsOf(trace, 14, "A100", "H100", "L4"),
		Options: Options{Costs: map[string]int64{"H100": 10, "A100": 5}},
	}
	for _, mode := range modes {
		var first []byte
		for range 2 {
			s := newSimulation(t, in)
			o, err := s.Run(t.Context(), mode)
			if err != nil {
				t.Fatal(err)
			}
			r := s.Report(nil, o)
			if u := &r.Setups[0]; u.Unfinished != 0 || u.Jobs != len(trace.Jobs) {
				t.Errorf("%s: %d of %d jobs are left over", mode, u.Unfinished, u.Jobs)
			}
			got := jsonOf(t, r)
			if first != nil && !bytes.Equal(first, got) {
				t.Errorf("%s: two runs differ", mode)
			}
			first = got
		}
	}
}
