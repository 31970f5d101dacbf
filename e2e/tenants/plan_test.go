package tenants

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func options() Options {
	return Options{
		Tenants: 20, Pods: 2000, Nodes: 24, Duration: 5 * time.Minute, Seed: 7, Kills: 20, Changes: 100, Reactions: 10,
		Settle: time.Second,
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"as they are":       {func(*Options) {}, ""},
		"no tenants":        {func(o *Options) { o.Tenants = 0 }, "tenants"},
		"few nodes":         {func(o *Options) { o.Nodes = 2 }, "one of each model"},
		"no Pods":           {func(o *Options) { o.Pods = 0 }, "Pods"},
		"no time":           {func(o *Options) { o.Duration = 0 }, "duration"},
		"less than 0":       {func(o *Options) { o.Kills = -1 }, "negative"},
		"no time to settle": {func(o *Options) { o.Settle = 0 }, ""},
	} {
		o := options()
		tc.change(&o)
		err := o.Validate()
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

func TestFleetHasAllModels(t *testing.T) {
	for _, nodes := range []int{3, 4, 7, 24, 100} {
		o := options()
		o.Nodes = nodes
		f := o.Fleet()
		if errs := f.Validate(); len(errs) > 0 {
			t.Fatal(errs)
		}
		if f.NodeCount() != nodes || f.DeviceCount() != o.deviceCount() || len(f.Groups) != len(models) {
			t.Errorf("%d nodes: %d, %d devices, %d groups", nodes, f.NodeCount(), f.DeviceCount(), len(f.Groups))
		}
	}
}

// What is guaranteed fits, and what is allowed does not: tenants compete.
func TestQuotas(t *testing.T) {
	for _, small := range []bool{false, true} {
		o := options()
		if small {
			o.Tenants, o.Nodes = 4, 3
		}
		guaranteed, limits := make([]int, len(models)), make([]int, len(models))
		weights := map[int32]bool{}
		for i := range o.Tenants {
			q := o.quota(i)
			q.Default()
			if errs := q.Validate(); len(errs) > 0 {
				t.Fatal(errs)
			}
			weights[*q.Spec.Weight] = true
			for m, part := range q.Spec.Models {
				guaranteed[m] += int(part.Guaranteed)
				if part.Limit == nil {
					limits[m] += o.devices()[m]
				} else {
					limits[m] += int(*part.Limit)
				}
			}
			for _, q := range []*v1alpha1.TenantQuota{closed(q), unlimited(q)} {
				if errs := q.Validate(); len(errs) > 0 {
					t.Fatal(errs)
				}
			}
		}
		for m, n := range o.devices() {
			if guaranteed[m] == 0 || guaranteed[m] > n || limits[m] <= n {
				t.Errorf("%d %s: %d are guaranteed, %d allowed", n, models[m], guaranteed[m], limits[m])
			}
		}
		if len(weights) != 4 {
			t.Errorf("weights %v", weights)
		}
	}
}

func TestPoliciesHaveThreeTiers(t *testing.T) {
	found := false
	for _, p := range policies() {
		p.Default()
		if errs := p.Spec.Validate(nil); len(errs) > 0 {
			t.Errorf("%s: %v", p.Name, errs)
		}
		if len(p.Spec.Tiers) != 3 {
			t.Errorf("%s has %d tiers", p.Name, len(p.Spec.Tiers))
		}
		found = found || p.Name == bestFirst
	}
	if !found {
		t.Errorf("there is no policy %s", bestFirst)
	}
}

func TestPlanComesFromTheSeed(t *testing.T) {
	o := options()
	a, b := NewPlan(&o), NewPlan(&o)
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed, two plans")
	}
	o.Seed++
	if reflect.DeepEqual(a, NewPlan(&o)) {
		t.Error("two seeds, one plan")
	}
}

func TestPlan(t *testing.T) {
	o := options()
	p := NewPlan(&o)
	if len(p.Arrivals) != o.Pods || len(p.Kills) != o.Kills || len(p.Changes) != o.Changes {
		t.Fatalf("%d Pods, %d kills, %d changes", len(p.Arrivals), len(p.Kills), len(p.Changes))
	}
	names, byTenant, used := map[string]bool{}, make([]int, o.Tenants), map[string]int{}
	var asked time.Duration
	impatient := 0
	for i, a := range p.Arrivals {
		if i > 0 && a.At < p.Arrivals[i-1].At || a.At > o.Duration || a.Life <= 0 {
			t.Fatalf("arrival %d: %+v", i, a)
		}
		names[a.Name] = true
		byTenant[a.Tenant]++
		used[a.Policy]++
		asked += a.Life
		if a.Patience > 0 {
			impatient++
		}
	}
	if len(names) != o.Pods || len(used) != len(policies()) {
		t.Errorf("%d names, policies %v", len(names), used)
	}
	if full := float64(asked) / float64(o.Duration) / float64(o.deviceCount()); full < 1.2 || full > 1.4 {
		t.Errorf("the Pods ask for %.2f of the fleet, want 1.3", full)
	}
	if impatient < o.Pods/20 || impatient > o.Pods/8 {
		t.Errorf("%d Pods do not wait for ever", impatient)
	}
	for i, n := range byTenant {
		if want := o.Pods * (1 + i%5) / (o.Tenants * 3); n < want/2 || n > want*2 {
			t.Errorf("tenant %d has %d Pods, want about %d", i, n, want)
		}
	}
	scheduler := 0
	for _, k := range p.Kills {
		if k.Scheduler {
			scheduler++
		}
		if k.At > o.Duration || k.Down < 0 || k.Down > longestDown {
			t.Errorf("kill %+v", k)
		}
	}
	if scheduler < o.Kills/4 || scheduler > o.Kills*3/4 {
		t.Errorf("%d of %d kills are the scheduler's", scheduler, o.Kills)
	}
}

// Changes are valid, and some are below what is usual.
func TestChanges(t *testing.T) {
	o := options()
	lower, higher := 0, 0
	for _, c := range NewPlan(&o).Changes {
		q := o.quota(c.Tenant)
		before := q.Spec.Models[c.Model].Limit
		c.apply(q)
		if errs := q.Validate(); len(errs) > 0 {
			t.Fatal(errs)
		}
		if got := q.Spec.Models[c.Model].Limit; got == nil || *got != c.Limit || *q.Spec.Weight != c.Weight {
			t.Errorf("%+v makes %+v", c, q.Spec)
		}
		switch {
		case before == nil || c.Limit < *before:
			lower++
		case c.Limit > *before:
			higher++
		}
	}
	if lower < 20 || higher < 10 {
		t.Errorf("%d limits come down, %d go up", lower, higher)
	}
}
