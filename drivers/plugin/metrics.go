package plugin

// This file holds the driver's metrics.

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/inventory"
)

// seconds are buckets from an fsync to kubelet's patience.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

type metrics struct {
	prepare, unprepare               prometheus.Histogram
	prepareFailures, unprepareFailed *prometheus.CounterVec
	held                             prometheus.Gauge
	devices                          *prometheus.GaugeVec
	transitions, recoveries          *prometheus.CounterVec
	boots, collected, publishErrors  prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	name := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "ladder", Subsystem: "driver", Name: name, Help: help}
	}
	counter := func(of, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(name(of, help)))
	}
	vector := func(of, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(name(of, help)), []string{label})
	}
	histogram := func(of, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "ladder", Subsystem: "driver", Name: of, Help: help, Buckets: seconds})
	}
	m := &metrics{
		prepare:         histogram("prepare_seconds", "Time to prepare one claim, failures too."),
		unprepare:       histogram("unprepare_seconds", "Time to unprepare one claim, failures too."),
		prepareFailures: vector("prepare_failures_total", "Claims that were not prepared when kubelet asked.", "class"),
		unprepareFailed: vector("unprepare_failures_total", "Claims that were not unprepared when kubelet asked.", "class"),
		held:            prometheus.NewGauge(prometheus.GaugeOpts(name("held_claims", "Claims that hold devices of this node."))),
		devices:         prometheus.NewGaugeVec(prometheus.GaugeOpts(name("devices", "Devices of this node by health.")), []string{"health"}),
		transitions:     vector("health_transitions_total", "Devices that came into another state of health.", "to"),
		recoveries:      vector("checkpoint_recoveries_total", "Times the checkpoint was made again, by what was left of it.", "origin"),
		boots:           counter("boots_total", "Boots of the node that ended what was prepared."),
		collected:       counter("collected_claims_total", "Claims that were over and that kubelet did not unprepare."),
		publishErrors:   counter("publish_errors_total", "Failed attempts to publish slices, and other errors in the background."),
	}
	for _, class := range engine.Classes() {
		m.prepareFailures.WithLabelValues(string(class))
		m.unprepareFailed.WithLabelValues(string(class))
	}
	for _, severity := range []inventory.Severity{inventory.Healthy, inventory.Suspect, inventory.Failed} {
		m.transitions.WithLabelValues(severity.String())
		m.devices.WithLabelValues(severity.String())
	}
	for _, origin := range []checkpoint.Origin{checkpoint.Fresh, checkpoint.Previous, checkpoint.Lost} {
		m.recoveries.WithLabelValues(string(origin))
	}
	for _, collector := range []prometheus.Collector{
		m.prepare, m.unprepare, m.prepareFailures, m.unprepareFailed, m.held, m.devices, m.transitions, m.recoveries,
		m.boots, m.collected, m.publishErrors,
	} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("registering metrics, %w", err)
		}
	}
	return m, nil
}

// count counts devices by health.
func (m *metrics) count(d devices, report kubeletplugin.DeviceHealthReport) {
	counts := map[inventory.Severity]int{inventory.Healthy: 0, inventory.Suspect: 0, inventory.Failed: 0}
	for i := range report.Devices {
		severity, _ := d.Trouble(report.Devices[i].DeviceName)
		counts[severity]++
	}
	for severity, count := range counts {
		m.devices.WithLabelValues(severity.String()).Set(float64(count))
	}
}
