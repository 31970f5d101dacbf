package simulate

// Small traces whose results can be worked out by hand.

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

func TestHandPlayed(t *testing.T) {
	h100 := func(count, gpus int) Input { return Input{Fleet: fleetOf(nodes(count, gpus, "H100"))} }
	with := func(in Input, rows ...row) Input {
		in.Trace = traceOf(rows...)
		return in
	}
	two := func(rows ...row) Input {
		in := with(h100(1, 2), rows...)
		in.Quotas = []*v1alpha1.TenantQuota{quotaOf("a", 1, "H100"), quotaOf("b", 1, "H100")}
		in.Options.Cooldown = -time.Millisecond
		return in
	}
	option := func(in Input, change func(*Options)) Input {
		change(&in.Options)
		return in
	}
	reclaim := []row{{0, 1000, 1, "b", 0}, {0, 1000, 1, "b", 0}, {100, 100, 1, "a", 0}}
	for name, tc := range map[string]struct {
		in    Input
		waits map[fair.Mode][]float64
	}{
		"a job that fits starts at once": {
			with(h100(1, 2), row{0, 100, 2, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {0}, fair.Ladder: {0}},
		},
		"fifo holds back what would fit, the others pass over": {
			with(h100(1, 2), row{0, 100, 1, "a", 0}, row{10, 50, 2, "a", 0}, row{20, 10, 1, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {0, 90, 130}, fair.PriorityOnly: {0, 90, 0}, fair.LadderWithoutAging: {0, 90, 0}, fair.Ladder: {0, 90, 0}},
		},
		"the higher priority goes first": {
			with(h100(1, 1), row{0, 100, 1, "a", 0}, row{10, 10, 1, "a", 0}, row{20, 10, 1, "a", 7}),
			map[fair.Mode][]float64{fair.FIFO: {0, 90, 90}, fair.PriorityOnly: {0, 100, 80}, fair.Ladder: {0, 100, 80}},
		},
		"what waits long has devices set aside": {
			with(h100(1, 2), row{0, 1000, 1, "a", 0}, row{1, 50, 2, "a", 0}, row{700, 1000, 1, "a", 0}),
			map[fair.Mode][]float64{fair.LadderWithoutAging: {0, 1699, 0}, fair.Ladder: {0, 999, 350}},
		},
		"a gang of Pods on two nodes": {
			with(h100(2, 2), row{0, 100, 4, "a", 0}, row{1, 10, 1, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {0, 99}, fair.Ladder: {0, 99}},
		},
		"a gang that does not divide is made of smaller Pods": {
			with(h100(2, 2), row{0, 100, 3, "a", 0}, row{1, 10, 1, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {0, 0}, fair.Ladder: {0, 0}},
		},
		"more than the fleet has never starts, and holds nobody back": {
			with(h100(2, 2), row{0, 100, 5, "a", 0}, row{1, 10, 1, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {-1, 0}, fair.Ladder: {-1, 0}},
		},
		"devices that are scattered": {
			// Packed: the first two share a node, the next two the other. At 100
			// two devices are free, one on each; at 200 the first node is.
			with(
				h100(2, 2), row{0, 100, 1, "a", 0}, row{1, 199, 1, "a", 0}, row{2, 98, 1, "a", 0}, row{3, 297, 1, "a", 0},
				row{50, 10, 2, "a", 0}, row{110, 10, 1, "a", 0},
			),
			map[fair.Mode][]float64{fair.FIFO: {0, 0, 0, 0, 150, 90}, fair.Ladder: {0, 0, 0, 0, 150, 90}},
		},
		"work without duration": {
			with(h100(1, 1), row{0, 0, 1, "a", 0}, row{0, 0, 1, "a", 0}, row{0, 5, 1, "a", 0}),
			map[fair.Mode][]float64{fair.FIFO: {0, 0, 0}, fair.Ladder: {0, 0, 0}},
		},
		"what is borrowed comes back after the notice": {
			// At 160 the second of b's jobs is evicted, at 260 it begins again.
			two(reclaim...),
			map[fair.Mode][]float64{fair.FIFO: {0, 0, 900}, fair.LadderWithoutAging: {0, 260, 60}, fair.Ladder: {0, 260, 60}},
		},
		"who was evicted does not borrow for a while": {
			option(two(reclaim...), func(o *Options) { o.Cooldown = 0 }),
			map[fair.Mode][]float64{fair.FIFO: {0, 0, 900}, fair.LadderWithoutAging: {0, 760, 60}, fair.Ladder: {0, 760, 60}},
		},
		"what an owner used is kept for it": {
			option(two(row{0, 10, 1, "a", 0}, row{0, 100, 1, "b", 0}, row{1, 100, 1, "b", 0}), func(o *Options) { o.LendAfter = 30 * time.Second }),
			map[fair.Mode][]float64{fair.Ladder: {0, 0, 30}},
		},
		"devices take time to be released": {
			option(two(reclaim...), func(o *Options) { o.Release = 10 * time.Second }),
			map[fair.Mode][]float64{fair.Ladder: {0, 270, 70}},
		},
		"without notice": {
			option(two(reclaim...), func(o *Options) { o.Notice = -time.Millisecond }),
			map[fair.Mode][]float64{fair.Ladder: {0, 200, 0}},
		},
		"checkpoints keep work": {
			// 160 s were done, 150 of them are kept: 850 s from 260 on.
			option(two(reclaim...), func(o *Options) { o.Checkpoint = 50 * time.Second }),
			map[fair.Mode][]float64{fair.Ladder: {0, 110, 60}},
		},
		"a limit holds in every set-up": {
			func() Input {
				in := with(h100(1, 4), row{0, 100, 1, "a", 0}, row{0, 100, 1, "a", 0}, row{0, 100, 3, "a", 0})
				in.Quotas = []*v1alpha1.TenantQuota{limited(quotaOf("a", 0, "H100"), 1)}
				return in
			}(),
			map[fair.Mode][]float64{fair.FIFO: {0, 100, -1}, fair.PriorityOnly: {0, 100, -1}, fair.Ladder: {0, 100, -1}},
		},
		"a model that the quota does not list": {
			func() Input {
				in := with(h100(1, 1), row{0, 100, 1, "a", 0}, row{0, 100, 1, "a", 0})
				in.Fleet = fleetOf(nodes(1, 1, "H100"), nodes(1, 1, "L4"))
				in.Quotas = []*v1alpha1.TenantQuota{quotaOf("a", 0, "L4")}
				return in
			}(),
			map[fair.Mode][]float64{fair.FIFO: {0, 100}, fair.Ladder: {0, 100}},
		},
	} {
		for mode, want := range tc.waits {
			t.Run(name+"/"+mode.String(), func(t *testing.T) {
				if got := waitsOf(t, tc.in, mode); !slices.Equal(got, want) {
					t.Errorf("waits %v, want %v", got, want)
				}
			})
		}
	}
}

// What one trace says of everything that is told.
func TestSummary(t *testing.T) {
	in := Input{
		Fleet:  fleetOf(nodes(1, 1, "H100"), nodes(1, 1, "L4")),
		Quotas: []*v1alpha1.TenantQuota{quotaOf("a", 1, "H100"), quotaOf("b", 0, "H100", "L4")},
		Trace:  traceOf(row{0, 100, 1, "a", 0}, row{0, 100, 1, "b", 0}, row{0, 50, 1, "b", 0}),
		Options: Options{
			Costs: map[string]int64{"H100": 3},
		},
	}
	u := played(t, in, fair.FIFO)
	// a gets the H100, b's shorter job the L4, b's other job the L4 at 50... or
	// the H100 at 100: the L4 comes free first.
	if u.Jobs != 3 || u.Unfinished != 0 || u.WaitSeconds != (Spread{0, 50, 50}) || u.MakespanSeconds != 150 {
		t.Errorf("jobs %d, unfinished %d, waits %+v, makespan %v", u.Jobs, u.Unfinished, u.WaitSeconds, u.MakespanSeconds)
	}
	a, b := u.tenant(t, "a"), u.tenant(t, "b")
	if a.DeviceSeconds["H100"] != 100 || len(a.DeviceSeconds) != 1 || b.DeviceSeconds["L4"] != 150 || len(b.DeviceSeconds) != 1 {
		t.Errorf("device seconds %v and %v", a.DeviceSeconds, b.DeviceSeconds)
	}
	if a.FallbackRate != 0 || b.FallbackRate != 1 || u.FallbackRate != 0.666667 || b.JobsOnModel["L4"] != 2 {
		t.Errorf("fallback %v, %v, %v", a.FallbackRate, b.FallbackRate, u.FallbackRate)
	}
	// The fleet is worth 4, of which 3 are guaranteed to a; the L4 is shared.
	if a.Entitlement != 0.875 || b.Entitlement != 0.125 || a.Share != 0.666667 || b.Share != 0.333333 {
		t.Errorf("entitlement %v and %v, share %v and %v", a.Entitlement, b.Entitlement, a.Share, b.Share)
	}
	// Two devices, one guaranteed: b's due is half a device, which it had.
	if a.Served != 1 || b.Served != 1 || u.Jain != 1 {
		t.Errorf("served %v and %v, Jain %v", a.Served, b.Served, u.Jain)
	}
	// 250 device seconds of 300; while somebody waited both were held.
	if u.Utilisation != 0.833333 || u.ContendedUtilisation != 1 || u.ContendedSeconds != 50 {
		t.Errorf("utilisation %v, %v in %v s", u.Utilisation, u.ContendedUtilisation, u.ContendedSeconds)
	}
	if u.Smallest.Name != "b" || u.Smallest.WaitSeconds.Max != 50 {
		t.Errorf("smallest %+v", u.Smallest)
	}
}

func TestEvictionsAreCounted(t *testing.T) {
	in := Input{
		Fleet:  fleetOf(nodes(1, 2, "H100")),
		Quotas: []*v1alpha1.TenantQuota{quotaOf("a", 1, "H100"), quotaOf("b", 1, "H100")},
		Trace:  traceOf(row{0, 1000, 1, "b", 0}, row{0, 1000, 1, "b", 0}, row{100, 100, 1, "a", 0}),
	}
	u := played(t, in, fair.Ladder)
	b := u.tenant(t, "b")
	if u.Evictions != 1 || u.LostDeviceSeconds != 160 || b.Evictions != 1 || b.LostDeviceSeconds != 160 || b.DeviceSeconds["H100"] != 2160 {
		t.Errorf("%d evictions, %v lost; b %+v", u.Evictions, u.LostDeviceSeconds, b)
	}
	if a := u.tenant(t, "a"); a.LongestBareSeconds != 60 {
		t.Errorf("a had work and no device for %v s", a.LongestBareSeconds)
	}
}

// The first policy that takes a namespace counts; its own counts and waits too.
func TestPolicies(t *testing.T) {
	only := ladderOf("L4")
	only.Name, only.Spec.NamespaceSelector = "only-l4", &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "b"}}
	pairs := ladderOf("H100", "L4")
	pairs.Spec.Tiers[1].Count, pairs.Spec.Tiers[1].After = ptr.To(int32(2)), &metav1.Duration{Duration: 30 * time.Second}
	in := Input{
		Fleet: fleetOf(nodes(1, 1, "H100"), nodes(1, 4, "L4")), Policies: []*v1alpha1.AcceleratorPolicy{only, pairs},
		Trace: traceOf(row{0, 100, 1, "b", 0}, row{0, 100, 1, "a", 0}, row{1, 100, 1, "a", 0}),
	}
	u := played(t, in, fair.Ladder)
	a, b := u.tenant(t, "a"), u.tenant(t, "b")
	if b.DeviceSeconds["L4"] != 100 || b.FallbackRate != 0 {
		t.Errorf("b %+v", b)
	}
	if a.DeviceSeconds["H100"] != 100 || a.DeviceSeconds["L4"] != 200 || a.WaitSeconds.Max != 30 || a.FallbackRate != 0.5 {
		t.Errorf("a %+v", a)
	}
}

// A job that names its models gets no other.
func TestNarrowed(t *testing.T) {
	in := Input{Fleet: fleetOf(nodes(1, 2, "H100"), nodes(1, 2, "L4")), Trace: traceOf(row{0, 10, 1, "a", 0}, row{1, 10, 1, "a", 0}, row{2, 10, 1, "a", 0})}
	in.Trace.Jobs[0].Models = []string{"L4"}
	in.Trace.Jobs[1].Models = []string{"V100"}
	u := played(t, in, fair.Ladder)
	a := u.tenant(t, "a")
	if u.Unfinished != 1 || a.DeviceSeconds["L4"] != 10 || a.DeviceSeconds["H100"] != 10 || a.FallbackRate != 0.5 {
		t.Errorf("%+v", a)
	}
	open := ladderOf("H100")
	open.Spec.Tiers = []v1alpha1.Tier{{Name: "any"}}
	in.Policies = []*v1alpha1.AcceleratorPolicy{open}
	if a := played(t, in, fair.Ladder).tenant(t, "a"); a.Unfinished != 1 || a.DeviceSeconds["L4"] < 10 {
		t.Errorf("with a tier for any: %+v", a)
	}
}

func TestPrivateClusters(t *testing.T) {
	in := Input{
		Fleet:  fleetOf(nodes(1, 2, "H100")),
		Quotas: []*v1alpha1.TenantQuota{quotaOf("a", 1, "H100"), quotaOf("b", 1, "H100")},
		// Alone a's second job waits 100 s, its third of two GPUs never runs.
		Trace: traceOf(row{0, 100, 1, "a", 0}, row{0, 100, 1, "a", 0}, row{500, 100, 2, "a", 0}, row{600, 50, 1, "b", 0}),
	}
	s := newSimulation(t, in)
	p, err := s.Private(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []int64{0, 100_000, unfinished, 0}; !slices.Equal(p.waits, want) {
		t.Errorf("alone they wait %v, want %v", p.waits, want)
	}
	// With a minute more for each job in front.
	if want := []int64{0, 160_000, unfinished, 0}; !slices.Equal(p.lengthened, want) {
		t.Errorf("alone, lengthened, they wait %v, want %v", p.lengthened, want)
	}
	o, err := s.Run(t.Context(), fair.Ladder)
	if err != nil {
		t.Fatal(err)
	}
	u := s.Report(p, o).Setups[0]
	if f := u.FinishTimeFairness; f.Jobs != 3 || f.P50 != 1 || f.Max != 1 || f.WorseOff != 0 {
		t.Errorf("finish times %+v", f)
	}
	if e := u.Private; e.Jobs != 3 || e.BoundSeconds != 60 || e.ExcessSeconds.Max != 0 || e.OverBound != 0 || e.OverBeyond != 0 {
		t.Errorf("excess %+v", e)
	}
	// fifo makes b wait for a's borrowed device.
	in.Trace = traceOf(row{0, 5000, 1, "a", 0}, row{0, 5000, 1, "a", 0}, row{10, 50, 1, "b", 0})
	s = newSimulation(t, in)
	if p, err = s.Private(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o, err = s.Run(t.Context(), fair.FIFO); err != nil {
		t.Fatal(err)
	}
	u = s.Report(p, o).Setups[0]
	if e := u.Private; e.ExcessSeconds.Max != 4990 || e.OverBound != 1 || e.OverBeyond != 1 || e.BeyondSeconds != 4930 || e.SingleOverBeyond != 1 {
		t.Errorf("excess with fifo %+v", e)
	}
	if f := u.tenant(t, "b").FinishTimeFairness; f.Max != 100.8 || f.WorseOff != 1 {
		t.Errorf("finish times of b %+v", f)
	}
}

// A run ends when it is told to.
func TestInterrupted(t *testing.T) {
	s := newSimulation(t, Input{Fleet: fleetOf(nodes(1, 1, "H100")), Trace: traceOf(row{0, 10, 1, "a", 0})})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, fair.FIFO); !errors.Is(err, context.Canceled) {
		t.Errorf("a run goes on: %v", err)
	}
	if _, err := s.Private(ctx); err != nil {
		t.Errorf("there is no private cluster to play: %v", err)
	}
}

func TestWhatCannotBeSimulated(t *testing.T) {
	plain := fleetOf(nodes(1, 1, "A100"))
	parsed, err := fleetFromText("apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups: [{name: m, nodes: 1, board: A100-SXM4-40GB, gpus: 1, mig: {}}]\n")
	if err != nil {
		t.Fatal(err)
	}
	foreign := ladderOf("H100")
	foreign.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	jobs := traceOf(row{0, 10, 1, "a", 0})
	for name, tc := range map[string]struct {
		in   Input
		want string
	}{
		"MIG":             {Input{Fleet: parsed, Trace: jobs}, "groups[0].mig: the simulator knows whole GPUs only; leave it out"},
		"no GPUs":         {Input{Fleet: fleetOf(nodesWithout(1)), Trace: jobs}, "groups: no node has GPUs"},
		"no job":          {Input{Fleet: plain, Trace: &Trace{}}, "there is no job"},
		"hopeless policy": {Input{Fleet: plain, Trace: jobs, Policies: []*v1alpha1.AcceleratorPolicy{ladderOf("H100")}}, "AcceleratorPolicy ladder: no node of the fleet can serve any of its tiers"},
		"nobody's job":    {Input{Fleet: plain, Trace: jobs, Policies: []*v1alpha1.AcceleratorPolicy{foreign}}, "line 2: no policy takes namespace a: none has a namespaceSelector that matches it"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.in.Policies == nil {
				tc.in.Policies = []*v1alpha1.AcceleratorPolicy{ladderOf("A100")}
			}
			_, err := New(tc.in)
			var wrong *Error
			if !errors.As(err, &wrong) || err.Error() != tc.want {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
	for _, o := range []Options{
		{Aging: -time.Second},
		{Release: time.Microsecond},
		{Costs: map[string]int64{"H100": 0}},
	} {
		if err := o.Validate(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
