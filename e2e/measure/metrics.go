// Package measure reads what the parts of a cluster cost: processor time and
// memory from the kernel, requests and durations from the metrics that they
// serve. It knows sums, medians and tables, so that the reports of the lab count
// in one way.
package measure

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics is what one part told in one moment, by the name of the metric.
type Metrics map[string]*dto.MetricFamily

// Labels are the values of some labels.
type Labels map[string]string

// Parse reads Prometheus' text format.
func Parse(text []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading metrics, %w", err)
	}
	return families, nil
}

// Total adds up the series of a counter or gauge that have these labels. What
// is not there is zero: a counter appears with its first count.
func (m Metrics) Total(name string, with Labels) float64 {
	var sum float64
	for _, metric := range m[name].GetMetric() {
		if with.match(metric) {
			sum += value(metric)
		}
	}
	return sum
}

// By adds up a counter or gauge by the values of some labels, which are joined
// by a space.
func (m Metrics) By(name string, labels ...string) map[string]float64 {
	sums := map[string]float64{}
	for _, metric := range m[name].GetMetric() {
		var key []string
		for _, label := range labels {
			if v := valueOf(metric, label); v != "" {
				key = append(key, v)
			}
		}
		sums[strings.Join(key, " ")] += value(metric)
	}
	return sums
}

// Histogram adds up the series of a histogram that have these labels.
func (m Metrics) Histogram(name string, with Labels) Histogram {
	var all Histogram
	for _, metric := range m[name].GetMetric() {
		if h := metric.GetHistogram(); h != nil && with.match(metric) {
			all.add(h)
		}
	}
	return all
}

func (l Labels) match(metric *dto.Metric) bool {
	for name, want := range l {
		if valueOf(metric, name) != want {
			return false
		}
	}
	return true
}

func valueOf(metric *dto.Metric, label string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == label {
			return pair.GetValue()
		}
	}
	return ""
}

func value(metric *dto.Metric) float64 {
	switch {
	case metric.GetCounter() != nil:
		return metric.GetCounter().GetValue()
	case metric.GetGauge() != nil:
		return metric.GetGauge().GetValue()
	default:
		return metric.GetUntyped().GetValue()
	}
}

// Histogram is how often something took how long, in seconds.
type Histogram struct {
	Count, Sum float64
	// Buckets are in ascending order; each counts what took no longer.
	Buckets []Bucket
}

// Bucket counts what took at most UpTo.
type Bucket struct{ UpTo, Count float64 }

func (h *Histogram) add(other *dto.Histogram) {
	h.Count += float64(other.GetSampleCount())
	h.Sum += other.GetSampleSum()
	for _, b := range other.GetBucket() {
		i, found := slices.BinarySearchFunc(h.Buckets, b.GetUpperBound(), func(b Bucket, upTo float64) int {
			switch {
			case b.UpTo < upTo:
				return -1
			case b.UpTo > upTo:
				return 1
			}
			return 0
		})
		if !found {
			h.Buckets = slices.Insert(h.Buckets, i, Bucket{UpTo: b.GetUpperBound()})
		}
		h.Buckets[i].Count += float64(b.GetCumulativeCount())
	}
}

// Since is what was added after an earlier reading of the same process.
func (h Histogram) Since(before Histogram) Histogram {
	since := Histogram{Count: h.Count - before.Count, Sum: h.Sum - before.Sum, Buckets: slices.Clone(h.Buckets)}
	for i := range since.Buckets {
		for _, b := range before.Buckets {
			if b.UpTo == since.Buckets[i].UpTo {
				since.Buckets[i].Count -= b.Count
			}
		}
	}
	return since
}

// Mean is NaN where nothing was counted.
func (h Histogram) Mean() float64 { return h.Sum / h.Count }

// Quantile is the value that the share q was not above, as far as the buckets
// tell: a bucket counts as filled evenly. NaN where nothing was counted; what
// lies above the last bound is told as that bound.
func (h Histogram) Quantile(q float64) float64 {
	if h.Count <= 0 {
		return math.NaN()
	}
	rank, low, below := q*h.Count, 0.0, 0.0
	for _, b := range h.Buckets {
		if b.Count >= rank {
			switch {
			case math.IsInf(b.UpTo, 1):
				return low
			case b.Count == below:
				return b.UpTo
			}
			return low + (b.UpTo-low)*(rank-below)/(b.Count-below)
		}
		low, below = b.UpTo, b.Count
	}
	return low
}
