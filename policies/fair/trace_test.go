package fair_test

// The engine under the load of a trace: no placement, only the engine's own
// cost. LADDER_TRACE names a file of the Philly format; without it the jobs are
// drawn from a fixed sequence.

import (
	"bufio"
	"compress/gzip"
	"container/heap"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// job of a trace.
type job struct {
	id       string
	tenant   string
	created  time.Time
	duration time.Duration
	gpus     int64
}

// end of a running job.
type end struct {
	at  time.Time
	id  string
	run int
}

type ends []end

func (h ends) Len() int { return len(h) }
func (h ends) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].id < h[j].id
}
func (h ends) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *ends) Push(x any)   { *h = append(*h, x.(end)) }
func (h *ends) Pop() any     { x := (*h)[len(*h)-1]; *h = (*h)[:len(*h)-1]; return x }

func jobs(t testing.TB) []job {
	file := os.Getenv("LADDER_TRACE")
	if file == "" {
		return drawnJobs()
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []job
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		created, err := time.Parse(time.DateTime, cells[0])
		if err != nil {
			continue
		}
		seconds, _ := strconv.ParseFloat(cells[1], 64)
		gpus, _ := strconv.ParseInt(cells[2], 10, 64)
		if gpus > 0 {
			out = append(out, job{fmt.Sprintf("job-%05d", len(out)), cells[4], created, time.Duration(seconds * float64(time.Second)), gpus})
		}
	}
	slices.SortFunc(out, func(a, b job) int { return a.created.Compare(b.created) })
	return out
}

// drawnJobs is a sequence without chance that keeps 480 devices busy.
func drawnJobs() []job {
	var out []job
	x := uint64(1)
	draw := func(n uint64) int64 {
		x = x*6364136223846793005 + 1442695040888963407
		return int64((x >> 33) % n)
	}
	at := start
	for i := range 3000 {
		at = at.Add(time.Duration(draw(120)) * time.Second)
		gpus := []int64{1, 1, 1, 1, 1, 1, 2, 4, 8, 16}[draw(10)]
		out = append(out, job{fmt.Sprintf("job-%05d", i), fmt.Sprintf("team-%d", draw(8)), at, time.Duration(600+draw(20000)) * time.Second, gpus})
	}
	return out
}

// TestTrace: every job gets its turn, no limit is passed, and the same trace
// twice gives the same actions.
func TestTrace(t *testing.T) {
	all := jobs(t)
	for _, mode := range []fair.Mode{fair.FIFO, fair.PriorityOnly, fair.LadderWithoutAging, fair.Ladder} {
		t.Run(mode.String(), func(t *testing.T) {
			began := time.Now()
			first := replay(t, mode, all)
			t.Logf("%d jobs in %v, %+v", len(all), time.Since(began), first)
			if os.Getenv("LADDER_TRACE") == "" && first != replay(t, mode, all) {
				t.Error("the same trace twice differs")
			}
		})
	}
}

// result of a replay.
type result struct {
	ended, evicted, events int
	longest                time.Duration
	waited                 float64 // seconds, all jobs
}

func replay(t testing.TB, mode fair.Mode, all []job) result {
	st := newState(t, fair.Config{Mode: mode, Models: models})
	guarantee(t, st, all)
	byID := map[string]job{}
	runs := map[string]int{}
	var running ends
	var r result
	settle := func(now time.Time) {
		for _, a := range st.Next(now) {
			j := byID[a.ID]
			switch a.Kind {
			case fair.Open:
				var devices []fair.Devices
				for _, p := range a.Placements {
					devices = append(devices, fair.Devices{Model: p.Model, Count: p.Count})
				}
				apply(t, st, now, fair.Allocated{ID: a.ID, Devices: devices})
				runs[a.ID]++
				r.longest = max(r.longest, now.Sub(j.created))
				r.waited += now.Sub(j.created).Seconds()
				heap.Push(&running, end{now.Add(j.duration), a.ID, runs[a.ID]})
			case fair.Evict:
				runs[a.ID]++
				apply(t, st, now, fair.Requeued{ID: a.ID})
				r.evicted++
			case fair.Notice, fair.Cancel:
			}
			r.events++
		}
	}
	for i := 0; r.ended < len(all); {
		var now time.Time
		wake, again := st.Wake(now.AddDate(1999, 0, 0))
		switch {
		case i < len(all) && (len(running) == 0 || !all[i].created.After(running[0].at)) && (!again || !all[i].created.After(wake)):
			now = all[i].created
		case len(running) > 0 && (!again || !running[0].at.After(wake)):
			now = running[0].at
		case again:
			now = wake
		default:
			t.Fatalf("%d of %d jobs ended and nothing goes on", r.ended, len(all))
		}
		for ; i < len(all) && !all[i].created.After(now); i++ {
			byID[all[i].id] = all[i]
			apply(t, st, now, fair.Arrived{Entry: entryOf(all[i])})
		}
		for len(running) > 0 && !running[0].at.After(now) {
			e := heap.Pop(&running).(end)
			if runs[e.id] == e.run {
				apply(t, st, now, fair.Finished{ID: e.id})
				r.ended++
			}
		}
		settle(now)
		settle(now)
	}
	return r
}

func entryOf(j job) fair.Entry {
	members, count := int64(1), j.gpus
	if j.gpus > 8 {
		members, count = j.gpus/8, 8
	}
	return fair.Entry{
		ID: j.id, Tenant: j.tenant, Members: members, Created: j.created, Preemptible: true, Preempts: v1alpha1.PreemptsBorrowed,
		Requests: []fair.Request{{Alternatives: []fair.Alternative{
			{Models: []string{"H100"}, Count: count}, {Models: []string{"A100"}, Count: count}, {Models: []string{"L4"}, Count: count},
		}}},
	}
}

// guarantee gives every tenant an equal part of a fleet of 480 devices.
func guarantee(t testing.TB, st *fair.State, all []job) {
	tenants := map[string]bool{}
	for _, j := range all {
		tenants[j.tenant] = true
	}
	fleet := map[string]int64{"H100": 160, "A100": 160, "L4": 160}
	for model, n := range fleet {
		apply(t, st, start, fair.CapacitySet{Model: model, Devices: n})
	}
	for name := range tenants {
		q := fair.Quota{Tenant: name}
		for model, n := range fleet {
			q.Models = append(q.Models, fair.ModelQuota{Model: model, Guaranteed: n / int64(len(tenants))})
		}
		apply(t, st, start, fair.QuotaSet{Quota: q})
	}
}
