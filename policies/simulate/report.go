package simulate

// This file makes the result of what was played: by set-up.

import (
	"math"
	"slices"
	"time"
)

// Report is the result. Every number in it follows from the input.
type Report struct {
	Trace TraceInfo `json:"trace"`
	Fleet FleetInfo `json:"fleet"`
	Rules Rules     `json:"rules"`
	// Setups in the order in which they were asked for.
	Setups []Setup `json:"setups"`
}

// TraceInfo says what was played.
type TraceInfo struct {
	Format Format `json:"format"`
	Jobs   int    `json:"jobs"`
	// Skipped rows ask for no GPU.
	Skipped     int       `json:"skipped"`
	FirstJob    time.Time `json:"firstJob"`
	LastJob     time.Time `json:"lastJob"`
	LargestGPUs int       `json:"largestJobGPUs"`
	// GPUSeconds of work, as the trace has it.
	GPUSeconds float64 `json:"gpuSeconds"`
}

// FleetInfo says on what.
type FleetInfo struct {
	Nodes   int              `json:"nodes"`
	Devices map[string]int64 `json:"devices"`
	Costs   map[string]int64 `json:"costs"`
}

// Rules are the options, in seconds.
type Rules struct {
	AgingSeconds         float64 `json:"agingSeconds"`
	ReserveAfterSeconds  float64 `json:"reserveAfterSeconds"`
	KeepAfterSeconds     float64 `json:"keepAfterSeconds"`
	PriorityAgingSeconds float64 `json:"priorityAgingSeconds"`
	NoticeSeconds        float64 `json:"noticeSeconds"`
	CooldownSeconds      float64 `json:"cooldownSeconds"`
	LendAfterSeconds     float64 `json:"lendAfterSeconds"`
	ReleaseSeconds       float64 `json:"releaseSeconds"`
	CheckpointSeconds    float64 `json:"checkpointSeconds"`
}

// Spread is where values lie: half of them, and 99 of 100, are no larger than
// P50 and P99. All are zero where there are none.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Point of a distribution: this part of the values is no larger.
type Point struct {
	Part  float64 `json:"part"`
	Value float64 `json:"value"`
}

// Setup is what became of the trace in one set-up.
type Setup struct {
	Name string `json:"name"`
	Jobs int    `json:"jobs"`
	// Unfinished jobs never ended: nothing could ever serve them.
	Unfinished int `json:"unfinished"`
	// Jain's index of what part of its due each tenant got: 1 where all got the
	// same part.
	Jain float64 `json:"jain"`
	// WaitSeconds of the jobs that ended.
	WaitSeconds Spread `json:"waitSeconds"`
	// OverDay is the number of jobs that waited more than a day.
	OverDay int `json:"overDay"`
	// Smallest is the tenant of the smallest entitlement that has jobs, of
	// equals the one with the fewest.
	Smallest Smallest `json:"smallestTenant"`
	// FallbackRate is the part of the jobs that did not get their first tier.
	FallbackRate    float64 `json:"fallbackRate"`
	MakespanSeconds float64 `json:"makespanSeconds"`
	// Utilisation is the part of the devices that was held, from the first
	// arrival to the last end, and while any job waited.
	Utilisation          float64 `json:"utilisation"`
	ContendedUtilisation float64 `json:"contendedUtilisation"`
	ContendedSeconds     float64 `json:"contendedSeconds"`
	Evictions            int     `json:"evictions"`
	// EvictedJobs were evicted at least once, and MostEvictions is what befell
	// the one that was evicted most often.
	EvictedJobs   int `json:"evictedJobs"`
	MostEvictions int `json:"mostEvictions"`
	// LostDeviceSeconds is the work that evictions lost.
	LostDeviceSeconds float64 `json:"lostDeviceSeconds"`
	// Promise says how long jobs waited for what they were guaranteed.
	Promise Promise `json:"promise"`
	// FinishTimeFairness and Private compare with private clusters; they are
	// missing where those were not played.
	FinishTimeFairness *Fairness `json:"finishTimeFairness,omitempty"`
	Private            *Excess   `json:"private,omitempty"`
	// WaitDistribution is that of WaitSeconds.
	WaitDistribution []Point  `json:"waitDistribution"`
	Tenants          []Tenant `json:"tenants"`
	Timeline         Timeline `json:"timeline"`
}

// Smallest names a tenant.
type Smallest struct {
	Name        string `json:"name"`
	WaitSeconds Spread `json:"waitSeconds"`
}

// Report sums up what was played. private may be nil.
func (s *Simulation) Report(private *Private, outcomes ...*Outcome) *Report {
	r := &Report{
		Trace: TraceInfo{Format: s.format, Jobs: len(s.jobs), Skipped: s.skipped, FirstJob: s.jobs[0].Created, LastJob: s.jobs[len(s.jobs)-1].Created},
		Fleet: FleetInfo{Nodes: s.fleet.NodeCount(), Devices: map[string]int64{}, Costs: map[string]int64{}},
		Rules: Rules{
			s.options.Aging.Seconds(), s.options.ReserveAfter.Seconds(), s.options.KeepAfter.Seconds(), s.options.PriorityAging.Seconds(),
			s.options.Notice.Seconds(), s.options.Cooldown.Seconds(), s.options.LendAfter.Seconds(), s.options.Release.Seconds(), s.options.Checkpoint.Seconds(),
		},
	}
	var work int64
	for i := range s.jobs {
		r.Trace.LargestGPUs = max(r.Trace.LargestGPUs, s.jobs[i].GPUs)
		work += int64(s.jobs[i].GPUs) * s.jobs[i].Duration.Milliseconds()
	}
	r.Trace.GPUSeconds = seconds(work)
	for m, model := range s.models {
		r.Fleet.Devices[model], r.Fleet.Costs[model] = s.capacity[m], s.options.cost(model)
	}
	for _, o := range outcomes {
		r.Setups = append(r.Setups, s.setup(o, private))
	}
	return r
}

// setup sums up one set-up.
func (s *Simulation) setup(o *Outcome, private *Private) Setup {
	all := s.sample(o, private, nil)
	u := Setup{
		Name: o.mode.String(), Jobs: len(s.jobs), Unfinished: all.unfinished,
		WaitSeconds: spread(all.waits, 1000), OverDay: all.overDay, FallbackRate: ratio(int64(all.fallbacks), int64(len(all.waits))),
		MakespanSeconds: seconds(o.last - o.books.first), ContendedSeconds: seconds(o.books.contended),
		Evictions: all.evictions, EvictedJobs: all.evicted, MostEvictions: all.most, LostDeviceSeconds: seconds(all.lost),
		Promise:            all.promise(s.options.Bound()),
		WaitDistribution:   distribution(all.waits, 1000),
		FinishTimeFairness: all.fairness(true), Private: all.excess(s.options.Bound()),
		Timeline: s.timeline(o.books),
	}
	var held int64
	for t := range o.books.heldFor {
		for _, n := range o.books.heldFor[t] {
			held += n
		}
	}
	u.Utilisation = ratio(held, s.devices()*(o.last-o.books.first))
	u.ContendedUtilisation = ratio(o.books.heldContended, s.devices()*o.books.contended)
	var served []float64
	for t := range s.tenants {
		tenant := s.tenant(o, private, int32(t))
		u.Tenants = append(u.Tenants, tenant)
		if o.books.due[t] > 0 {
			served = append(served, tenant.Served)
		}
	}
	u.Jain = jain(served)
	u.Smallest = smallest(u.Tenants)
	return u
}

// smallest is the tenant that is entitled to least.
func smallest(tenants []Tenant) Smallest {
	var best *Tenant
	for i := range tenants {
		t := &tenants[i]
		if t.Jobs > 0 && (best == nil || t.Entitlement < best.Entitlement || t.Entitlement == best.Entitlement && t.Jobs < best.Jobs) {
			best = t
		}
	}
	if best == nil {
		return Smallest{}
	}
	return Smallest{best.Name, best.WaitSeconds}
}

// sample is what is known of some of the jobs, in milliseconds.
type sample struct {
	jobs, unfinished, overDay, fallbacks int
	evictions, evicted, most             int
	lost                                 int64
	waits                                []int64 // ascending
	modelJobs                            []int

	entitled, overdue int
	promises          []int64 // ascending

	compared                          bool
	ratios                            []int64 // of finish times, in thousandths, ascending
	excesses, shared, alone           []int64 // ascending
	overBound, overBeyond, singleOver int
	bound, beyond, singleBeyond       int64
	causes                            Causes
	accounted                         bool
}

// sample looks at the jobs of a tenant, or at all.
func (s *Simulation) sample(o *Outcome, private *Private, of *int32) *sample {
	const day = 24 * 3600 * 1000
	a := &sample{compared: private != nil, accounted: o.accounted != nil, modelJobs: make([]int, len(s.models)), bound: s.options.Bound().Milliseconds()}
	for i := range s.jobs {
		if of != nil && s.tenantOf[i] != *of {
			continue
		}
		st := &o.states[i]
		a.jobs++
		a.evictions += int(st.evicted)
		a.most = max(a.most, int(st.evicted))
		if st.evicted > 0 {
			a.evicted++
		}
		a.keep(st)
		a.lost += st.lost
		wait := s.wait(o, i)
		if wait == unfinished {
			a.unfinished++
			continue
		}
		a.waits = append(a.waits, wait)
		if wait > day {
			a.overDay++
		}
		if st.fallback {
			a.fallbacks++
		}
		for m := range s.models {
			if st.models&(1<<min(m, 63)) != 0 {
				a.modelJobs[m]++
			}
		}
		if private != nil {
			a.compare(&s.jobs[i], wait, private.waits[i], private.lengthened[i])
			if o.accounted != nil {
				a.explain(st, wait, private.lengthened[i], o.accounted[i])
			}
		}
	}
	slices.Sort(a.waits)
	slices.Sort(a.ratios)
	slices.Sort(a.excesses)
	slices.Sort(a.shared)
	slices.Sort(a.alone)
	slices.Sort(a.promises)
	return a
}

// quantile is the smallest of the ascending values that this part of them, in
// ten thousandths, is not above.
func quantile(ascending []int64, part int64) int64 {
	if len(ascending) == 0 {
		return 0
	}
	n := int64(len(ascending))
	at := (n*part + 9999) / 10000
	return ascending[max(at, 1)-1]
}

// spread of ascending values, each divided by unit.
func spread(ascending []int64, unit float64) Spread {
	at := func(part int64) float64 { return float64(quantile(ascending, part)) / unit }
	return Spread{at(5000), at(9900), at(10000)}
}

// parts at which distributions are given, in ten thousandths.
func parts() []int64 {
	var out []int64
	for p := int64(0); p < 9000; p += 200 {
		out = append(out, p)
	}
	for p := int64(9000); p < 9900; p += 50 {
		out = append(out, p)
	}
	for p := int64(9900); p <= 10000; p += 5 {
		out = append(out, p)
	}
	return out
}

func distribution(ascending []int64, unit float64) []Point {
	points := []Point{}
	if len(ascending) == 0 {
		return points
	}
	for _, p := range parts() {
		points = append(points, Point{float64(p) / 10000, float64(quantile(ascending, p)) / unit})
	}
	return points
}

// jain is the index of Jain, Chiu and Hawe (1984): 1 where all are equal, 1/n
// where one has everything. Of none it is 1.
func jain(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return round(sum * sum / (float64(len(values)) * squares))
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

func msDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// ratio of two counts; zero over zero is zero.
func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return round(float64(a) / float64(b))
}

// round keeps six digits, so that the last bit of a sum, which machines may
// round in different ways, is not seen.
func round(v float64) float64 { return math.Round(v*1e6) / 1e6 }
