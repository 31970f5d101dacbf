package bench

// What a run measured.

// Quantiles are of one sample, in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Heap is about the memory of the whole process, which is scheduler, API server
// and controllers. Live is what a collection leaves over. In MiB.
type Heap struct {
	// LiveBefore is taken before there are nodes and Pods, with the scheduler
	// running.
	LiveBefore float64 `json:"liveBefore"`
	// LiveAfter is taken when everything is scheduled.
	LiveAfter float64 `json:"liveAfter"`
	// Peak is the largest heap in use, with garbage, of what upstream sampled.
	Peak float64 `json:"peak"`
}

// Result is what a run measured.
type Result struct {
	Run
	// Throughput is upstream's SchedulingThroughput: the mean over seconds, in
	// Pods a second. 0 where a run was too short for it.
	Throughput float64 `json:"throughput"`
	// Threshold is what upstream wants Throughput to exceed on its machines; 0
	// where the run is not of upstream's size.
	Threshold float64 `json:"threshold,omitempty"`
	// Rate is successful decisions on the measured Pods by the time from the
	// first to the last of them, per second.
	Rate float64 `json:"rate"`
	// Decisions is how many there were; Misses how many attempts found no node.
	Decisions int `json:"decisions"`
	Misses    int `json:"misses"`
	// Decision is how long SchedulePod took, exactly: from a Pod to its node.
	Decision Quantiles `json:"decision"`
	// Attempt is from taking a Pod off the queue until it is bound, read from
	// kube-scheduler's histogram, whose buckets double.
	Attempt Quantiles `json:"attempt"`
	Heap    Heap      `json:"heap"`
	// Records is the number of AllocationDecisions, RecordsLag how many seconds
	// after the end the last of them was written.
	Records    int     `json:"records"`
	RecordsLag float64 `json:"recordsLag"`
	// Boards counts the devices that the measured Pods got, by board; for
	// workloads of ours.
	Boards map[string]int `json:"boards,omitempty"`
	// Seconds is how long the run took in all.
	Seconds float64 `json:"seconds"`
}

// PodsPerSecond is the throughput, or the rate where the run was too short.
func (r *Result) PodsPerSecond() float64 {
	if r.Throughput > 0 {
		return r.Throughput
	}
	return r.Rate
}
