// Package metrics holds what ladder-scheduler counts, beside kube-scheduler's
// own metrics. Names are a contract; none carries a Pod or a node.
package metrics

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "ladder"

var (
	// Requests counts Pods that were decided on, by how it ended.
	Requests = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "requests_total",
		Help:           "Decisions by outcome, policy, tier and device model; tier and model are empty unless devices were allocated. Retries with the same outcome count again.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"outcome", "policy", "tier", "model"})

	// Fallbacks counts allocations from a lower tier than the first.
	Fallbacks = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "fallbacks_total",
		Help:           "Allocations from a lower tier than the first, by the first tier and the tier used.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"policy", "from", "to"})

	// DecisionSeconds is the time that the engine took, with bringing its state
	// up to date.
	DecisionSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "decision_seconds",
		Help:           "Time for one step of a decision in seconds: sync (bring the state up to date), group (find the tier of a PodGroup), candidates (find the best nodes), record (build the record).",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 15),
		StabilityLevel: metrics.ALPHA,
	}, []string{"step"})

	// SearchRounds is how many parts of the order of choice one attempt needed.
	SearchRounds = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "search_rounds",
		Help:           "Parts of the order of choice that one scheduling attempt looked at.",
		Buckets:        []float64{1, 2, 3, 4, 6, 8, 12, 16, 32},
		StabilityLevel: metrics.ALPHA,
	})

	// BindFailures counts what went wrong between decision and bind.
	BindFailures = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "bind_failures_total",
		Help:           "Failures between decision and bind by class.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"class"})

	// GaveUp counts Pods that are not tried again until a change can help.
	GaveUp = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "retries_given_up_total",
		Help:           "Pods whose retries ended, by what their policy's retry ran out of: attempts, deadline.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"limit"})

	// Mismatches counts decisions that were refused because the in-tree plugin
	// or the second look at the engine said something else. It must stay zero.
	Mismatches = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "decider_mismatches_total",
		Help:           "Decisions refused at Reserve because two deciders disagreed: node (the engine), devices (the in-tree allocator).",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})

	// OutcomesDropped counts conditions and records that were never written.
	OutcomesDropped = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "outcomes_dropped_total",
		Help:           "Pod conditions and AllocationDecisions that could not be written.",
		StabilityLevel: metrics.ALPHA,
	})

	register sync.Once
)

// Register adds every metric to the registry that /metrics serves.
func Register() {
	register.Do(func() {
		legacyregistry.MustRegister(Requests, Fallbacks, DecisionSeconds, SearchRounds, BindFailures, GaveUp, Mismatches, OutcomesDropped)
	})
}
