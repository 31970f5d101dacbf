package nvml

// This file counts what only this hardware has.

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"gpuladder.dev/ladder/drivers/inventory"
)

type metrics struct {
	xids      *prometheus.CounterVec
	available prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ladder_driver_xids_total",
			Help: "XIDs that NVIDIA's driver has told of, by code and by what they mean for the device: healthy (an application's own), suspect, failed.",
		}, []string{"xid", "severity"}),
		available: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ladder_driver_nvml_available",
			Help: "1 while NVIDIA's driver can be reached, 0 while it can't.",
		}),
	}
	for _, c := range []prometheus.Collector{m.xids, m.available} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics, %w", err)
		}
	}
	return m, nil
}

// maxXID bounds the label: the catalog ends far below.
const maxXID = 999

func (m *metrics) xid(code uint64, severity inventory.Severity) {
	label := "other"
	if code <= maxXID {
		label = strconv.FormatUint(code, 10)
	}
	m.xids.WithLabelValues(label, severity.String()).Inc()
}
