package health

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Results of an action.
const (
	resultDone     = "done"
	resultHeldBack = "held_back"
	resultFailed   = "failed"
)

var (
	told = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ladder_unhealthy_pods_total",
		Help: "Bound Pods that were told that a device of theirs has failed, by what their policy does about it.",
	}, []string{"action"})
	actions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ladder_unhealthy_actions_total",
		Help: "What was tried about Pods with a failed device (Recreate: evictions, End: deadlines) by result: done, held_back by a disruption budget, failed.",
	}, []string{"action", "result"})
)

func init() { metrics.Registry.MustRegister(told, actions) }
