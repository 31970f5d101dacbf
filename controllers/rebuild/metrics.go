package rebuild

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var rebuiltRecords = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "ladder_records_rebuilt_total",
	Help: "AllocationDecisions that the scheduler did not write and that were put together from Pods and claims.",
})

func init() { metrics.Registry.MustRegister(rebuiltRecords) }
