package quota

// What is measured of tenants. No label names a Pod, a namespace or a node.

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var (
	devicesUsed      = gauge("devices_used", "Devices that are allocated to a tenant, by model.", "tenant", "model")
	devicesCharged   = gauge("devices_charged", "Devices that a tenant is charged: allocated ones, and those of Pods whose gate is open.", "tenant", "model")
	devicesBorrowed  = gauge("devices_borrowed", "Devices that a tenant is charged above its guarantee, by model.", "tenant", "model")
	firstChoicePods  = gauge("first_choice_pods", "Pods with devices, by the model that they ask for first.", "tenant", "model")
	fallbackPods     = gauge("fallback_pods", "Pods with devices of a lower tier, by the model that they ask for first.", "tenant", "model")
	waitingPods      = gauge("waiting_pods", "Pods that wait for their tenant's turn.", "tenant")
	longestWait      = gauge("longest_wait_seconds", "How long the Pod waits that has waited longest.", "tenant")
	share            = gauge("share", "A tenant's share of the fleet by worth, divided by its weight.", "tenant")
	gatesOpened      = counter("gates_opened_total", "Gates that were opened.", "tenant")
	reclaims         = counter("reclaims_total", "Steps of taking devices back: noticed, cancelled, evicted.", "tenant", "step")
	byTenant         = []*prometheus.GaugeVec{waitingPods, longestWait, share}
	byTenantAndModel = []*prometheus.GaugeVec{devicesUsed, devicesCharged, devicesBorrowed, firstChoicePods, fallbackPods}

	waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "ladder", Subsystem: "tenant", Name: "wait_seconds", Help: "From a Pod's creation until its gate was opened.",
		Buckets: prometheus.ExponentialBuckets(0.25, 4, 10), // to 18 h
	}, []string{"tenant"})
)

func init() {
	metrics.Registry.MustRegister(waits, gatesOpened, reclaims)
	for _, g := range byTenant {
		metrics.Registry.MustRegister(g)
	}
	for _, g := range byTenantAndModel {
		metrics.Registry.MustRegister(g)
	}
}

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ladder", Subsystem: "tenant", Name: name, Help: help}, labels)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "ladder", Subsystem: "tenant", Name: name, Help: help}, labels)
}

// measure shows a status as metrics.
func measure(tenant string, s *v1alpha1.TenantQuotaStatus, now time.Time) {
	for _, g := range byTenantAndModel {
		g.DeletePartialMatch(prometheus.Labels{"tenant": tenant})
	}
	for _, m := range s.Models {
		devicesUsed.WithLabelValues(tenant, m.Model).Set(float64(m.Used))
		devicesCharged.WithLabelValues(tenant, m.Model).Set(float64(m.Charged))
		devicesBorrowed.WithLabelValues(tenant, m.Model).Set(float64(m.Borrowed))
		firstChoicePods.WithLabelValues(tenant, m.Model).Set(float64(m.FirstChoice))
		fallbackPods.WithLabelValues(tenant, m.Model).Set(float64(m.Fallbacks))
	}
	waitingPods.WithLabelValues(tenant).Set(float64(s.Waiting))
	share.WithLabelValues(tenant).Set(float64(s.SharePermille) / 1000)
	longest := time.Duration(0)
	if s.WaitingSince != nil {
		longest = max(now.Sub(s.WaitingSince.Time), 0)
	}
	longestWait.WithLabelValues(tenant).Set(longest.Seconds())
}

// forget drops the metrics of a tenant that has no quota any more.
func forget(tenant string) {
	for _, g := range slices.Concat(byTenant, byTenantAndModel) {
		g.DeletePartialMatch(prometheus.Labels{"tenant": tenant})
	}
	waits.DeletePartialMatch(prometheus.Labels{"tenant": tenant})
	gatesOpened.DeletePartialMatch(prometheus.Labels{"tenant": tenant})
	reclaims.DeletePartialMatch(prometheus.Labels{"tenant": tenant})
}
