package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/e2e/measure"
)

// Sample is what a process had at one moment.
type Sample struct {
	// At is the time since the start.
	At time.Duration `json:"at"`
	// RSS, Heap and Live are bytes; Heap is what is allocated and not yet collected,
	// Live what the last collection found to be in use.
	RSS        float64 `json:"rss"`
	Heap       float64 `json:"heap"`
	Live       float64 `json:"live"`
	Goroutines float64 `json:"goroutines"`
	// CPU is processor time in all, in seconds.
	CPU float64 `json:"cpu"`
}

// Samples are those of each process, in the order of time.
type Samples map[string][]Sample

// figure is something that must stay flat.
type figure struct {
	name string
	unit float64
	of   func(Sample) float64
	// slope has it judged by a line through all samples from the second third on,
	// otherwise by the medians of the thirds.
	slope bool
}

var figures = []figure{
	{name: "resident memory, MiB", unit: 1 << 20, of: func(s Sample) float64 { return s.RSS }},
	{name: "heap after a collection, MiB", unit: 1 << 20, of: func(s Sample) float64 { return s.Live }, slope: true},
	{name: "goroutines", unit: 1, of: func(s Sample) float64 { return s.Goroutines }},
}

// trend is that of a figure of a process.
func (s Samples) trend(process string, f figure) measure.Trend {
	samples := s[process]
	t := measure.TrendOf(f.values(samples))
	if !f.slope || !t.Told() {
		return t
	}
	third := len(samples) / 3
	at, value, perSecond := s.line(process, f)
	middle := func(part []Sample) float64 {
		return value + perSecond*((part[0].At+part[len(part)-1].At).Seconds()/2-at)
	}
	t.Second, t.Last = middle(samples[third:len(samples)-third]), middle(samples[len(samples)-third:])
	return t
}

func (f figure) values(samples []Sample) []float64 {
	var values []float64
	for _, sample := range samples {
		values = append(values, f.of(sample))
	}
	return values
}

// hourly is how much a figure grows in an hour by its line.
func (s Samples) hourly(process string, f figure) float64 {
	_, _, perSecond := s.line(process, f)
	return perSecond * time.Hour.Seconds()
}

// windows is how many a line is laid through.
const windows = 12

// line is laid through the samples from the second third on, after Theil and Sen:
// its slope is the median of those between any two windows' medians, so that
// neither one window more nor one sample more or less decides. It goes through
// the value at a time, in seconds.
func (s Samples) line(process string, f figure) (at, value, perSecond float64) {
	samples := s[process][len(s[process])/3:]
	var times, values []float64
	for i := range windows {
		part := samples[i*len(samples)/windows : (i+1)*len(samples)/windows]
		if len(part) > 0 {
			times = append(times, (part[0].At+part[len(part)-1].At).Seconds()/2)
			values = append(values, measure.Median(f.values(part)))
		}
	}
	var slopes, heights []float64
	for i := range times {
		for j := range i {
			if times[i] > times[j] {
				slopes = append(slopes, (values[i]-values[j])/(times[i]-times[j]))
			}
		}
	}
	perSecond = measure.Median(slopes)
	at = measure.Median(times)
	for i := range times {
		heights = append(heights, values[i]-perSecond*(times[i]-at))
	}
	return at, measure.Median(heights), perSecond
}

// Check says which process grew: in the last third a figure may be at most so many
// times what it was in the second third.
func (s Samples) Check(most float64, processes ...string) error {
	var errs []error
	for _, process := range processes {
		for _, figure := range figures {
			switch t := s.trend(process, figure); {
			case !t.Told():
				errs = append(errs, fmt.Errorf("%s, %s: %d samples are too few to tell whether it grows", process, figure.name, t.Samples))
			case t.Second <= 0:
				errs = append(errs, fmt.Errorf("%s, %s: %s in the second third: it is not told", process, figure.name, measure.Number(t.Second/figure.unit, 0)))
			case !t.Flat(most):
				errs = append(errs, fmt.Errorf("%s, %s: %s in the second third and %s in the last, want at most %s times as much",
					process, figure.name, measure.Number(t.Second/figure.unit, 1), measure.Number(t.Last/figure.unit, 1), measure.Number(most, 2)))
			}
		}
	}
	return errors.Join(errs...)
}

// Sampler looks at processes now and then.
type Sampler struct {
	cluster   measure.Cluster
	clock     clock.WithTicker
	processes []string
	start     time.Time

	mu      sync.Mutex
	samples Samples
	missed  int
}

// NewSampler makes one of the processes, whose metrics must be served.
func NewSampler(c measure.Cluster, clk clock.WithTicker, processes ...string) *Sampler {
	return &Sampler{cluster: c, clock: clk, processes: processes, start: clk.Now(), samples: Samples{}}
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context, every time.Duration) {
	ticker := s.clock.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			s.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look makes a sample of each process. One that is down at the moment has none.
func (s *Sampler) look(ctx context.Context) {
	for _, name := range s.processes {
		r, err := measure.Read(ctx, s.cluster, measure.Parts{Processes: []string{name}, Metrics: []string{name}}, s.clock.Now)
		s.mu.Lock()
		if err != nil {
			s.missed++
		} else {
			s.samples[name] = append(s.samples[name], Sample{
				At: r.At.Sub(s.start), RSS: float64(r.Processes[name].RSS), CPU: r.Processes[name].CPU.Seconds(),
				Heap: r.Metrics[name].Total("go_memstats_heap_alloc_bytes", nil), Live: r.Metrics[name].Total("go_gc_heap_live_bytes", nil),
				Goroutines: r.Metrics[name].Total("go_goroutines", nil),
			})
		}
		s.mu.Unlock()
	}
}

// Samples are those made until now, and how many could not be made.
func (s *Sampler) Samples() (Samples, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := Samples{}
	for name, samples := range s.samples {
		all[name] = append([]Sample(nil), samples...)
	}
	return all, s.missed
}
