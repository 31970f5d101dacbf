package simulate

// This file compares what jobs got with what they were promised: the devices of
// their tenant's guarantee, and a private cluster of them.

import (
	"math"
	"slices"
	"time"
)

// Fairness is the finish-time fairness of Mahajan et al. (Themis, NSDI 2020) by
// job: its time from creation to end, over the same in the tenant's private
// cluster. Above 1 the job would have been better off alone.
type Fairness struct {
	// Jobs that can be compared: they end in both, and took some time alone.
	Jobs int `json:"jobs"`
	Spread
	// WorseOff is the part of them that is above 1.05.
	WorseOff     float64 `json:"worseOff"`
	Distribution []Point `json:"distribution,omitempty"`
}

// Excess is how much longer jobs waited than in the private cluster.
type Excess struct {
	// Jobs that ended in both.
	Jobs int `json:"jobs"`
	// SharedSeconds is how long they waited, AloneSeconds how long in the private
	// cluster; the means beside them, rounded down to milliseconds.
	SharedSeconds     Spread  `json:"sharedSeconds"`
	SharedMeanSeconds float64 `json:"sharedMeanSeconds"`
	AloneSeconds      Spread  `json:"aloneSeconds"`
	AloneMeanSeconds  float64 `json:"aloneMeanSeconds"`
	// BoundSeconds is the notice and the release: what guaranteed work may wait
	// for devices to be taken back.
	BoundSeconds float64 `json:"boundSeconds"`
	// ExcessSeconds is the wait beyond that in the private cluster; zero for
	// jobs that waited less.
	ExcessSeconds Spread `json:"excessSeconds"`
	// OverBound is the number of jobs whose excess is above the bound.
	OverBound int `json:"overBound"`
	// Beyond is the worst excess above the bound where every job in the private
	// cluster takes the bound longer, and OverBeyond how many jobs have one:
	// the invariant is that there is none.
	BeyondSeconds float64 `json:"beyondSeconds"`
	OverBeyond    int     `json:"overBeyond"`
	// SingleBeyondSeconds and SingleOverBeyond are the same of jobs of one GPU,
	// which never find their devices scattered.
	SingleBeyondSeconds float64 `json:"singleBeyondSeconds"`
	SingleOverBeyond    int     `json:"singleOverBeyond"`
	// Causes of what is counted under OverBeyond; missing where nobody looked
	// for them.
	Causes *Causes `json:"causes,omitempty"`
}

// Causes says of the jobs that break the invariant why. Each counts once, under
// the first cause that is as large as what it waited too long.
type Causes struct {
	// Reclaimed: the time of its own runs that evictions stopped.
	Reclaimed int `json:"reclaimed"`
	// Scattered: that, and the time in which its gate was open and its devices
	// were free on no one node.
	Scattered int `json:"scattered"`
	// Ahead: the same of the jobs of its tenant in front of it. Alone, with jobs
	// that take longer by what sharing cost them, it would have waited as long.
	Ahead int `json:"ahead"`
	// Other: none of these. Its tenant's jobs ran in another order. OtherSeconds is
	// the worst of them.
	Other        int     `json:"other"`
	OtherSeconds float64 `json:"otherSeconds"`
}

// Promise is how long jobs waited while their tenant's guarantee had room for
// them, where that led to an opening.
type Promise struct {
	// Openings within a guarantee, and how many came later than the bound.
	Openings     int     `json:"openings"`
	Overdue      int     `json:"overdue"`
	BoundSeconds float64 `json:"boundSeconds"`
	// WaitSeconds is the longest such wait of each job that has one.
	WaitSeconds Spread `json:"waitSeconds"`
}

// compare holds a job's wait against those in the private cluster.
func (a *sample) compare(job *Job, wait, alone, lengthened int64) {
	if alone == unfinished {
		return
	}
	duration := job.Duration.Milliseconds()
	if alone+duration > 0 {
		a.ratios = append(a.ratios, thousandths(wait+duration, alone+duration))
	}
	a.shared, a.alone = append(a.shared, wait), append(a.alone, alone)
	a.excesses = append(a.excesses, max(wait-alone, 0))
	if wait-alone > a.bound {
		a.overBound++
	}
	if lengthened == unfinished {
		return
	}
	if beyond := wait - lengthened - a.bound; beyond > 0 {
		a.overBeyond++
		a.beyond = max(a.beyond, beyond)
		if job.GPUs == 1 {
			a.singleOver++
			a.singleBeyond = max(a.singleBeyond, beyond)
		}
	}
}

// thousandths is a over b, rounded down.
func thousandths(a, b int64) int64 {
	if a > math.MaxInt64/1000 {
		return a / b * 1000
	}
	return a * 1000 / b
}

func (a *sample) fairness(points bool) *Fairness {
	if !a.compared {
		return nil
	}
	f := &Fairness{Jobs: len(a.ratios), Spread: spread(a.ratios, 1000)}
	at, _ := slices.BinarySearch(a.ratios, 1051)
	f.WorseOff = ratio(int64(len(a.ratios)-at), int64(len(a.ratios)))
	if points {
		f.Distribution = distribution(a.ratios, 1000)
	}
	return f
}

func (a *sample) excess(bound time.Duration) *Excess {
	if !a.compared {
		return nil
	}
	return &Excess{
		Jobs:          len(a.excesses),
		SharedSeconds: spread(a.shared, 1000), SharedMeanSeconds: mean(a.shared),
		AloneSeconds: spread(a.alone, 1000), AloneMeanSeconds: mean(a.alone),
		BoundSeconds: bound.Seconds(), ExcessSeconds: spread(a.excesses, 1000), OverBound: a.overBound,
		BeyondSeconds: seconds(a.beyond), OverBeyond: a.overBeyond,
		SingleBeyondSeconds: seconds(a.singleBeyond), SingleOverBeyond: a.singleOver, Causes: a.why(),
	}
}

// mean of times in milliseconds, in seconds.
func mean(list []int64) float64 {
	var sum int64
	for _, ms := range list {
		sum += ms
	}
	return seconds(sum / max(int64(len(list)), 1))
}

// explain looks for the cause of a job's wait beyond the invariant.
func (a *sample) explain(st *state, wait, lengthened, accounted int64) {
	beyond := wait - lengthened - a.bound
	if lengthened == unfinished || beyond <= 0 {
		return
	}
	other := beyond
	if accounted != unfinished {
		other = wait - accounted - a.bound - st.cost()
	}
	switch {
	case st.stopped >= beyond:
		a.causes.Reclaimed++
	case st.cost() >= beyond:
		a.causes.Scattered++
	case other <= 0:
		a.causes.Ahead++
	default:
		a.causes.Other++
		a.causes.OtherSeconds = max(a.causes.OtherSeconds, seconds(other))
	}
}

func (a *sample) why() *Causes {
	if !a.accounted {
		return nil
	}
	return &a.causes
}

// keep counts how long a job waited for what it was guaranteed.
func (a *sample) keep(st *state) {
	a.entitled += int(st.entitled)
	a.overdue += int(st.overdue)
	if st.entitled > 0 {
		a.promises = append(a.promises, st.promised)
	}
}

func (a *sample) promise(bound time.Duration) Promise {
	return Promise{Openings: a.entitled, Overdue: a.overdue, BoundSeconds: bound.Seconds(), WaitSeconds: spread(a.promises, 1000)}
}
