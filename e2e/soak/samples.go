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
	// RSS and Heap are bytes; Heap is what is allocated and not yet collected.
	RSS        float64 `json:"rss"`
	Heap       float64 `json:"heap"`
	Goroutines float64 `json:"goroutines"`
	// CPU is processor time in all, in seconds.
	CPU float64 `json:"cpu"`
}

// Samples are those of each process, in the order of time.
type Samples map[string][]Sample

// figures are what must stay flat.
var figures = []struct {
	name string
	unit float64
	of   func(Sample) float64
}{
	{"resident memory, MiB", 1 << 20, func(s Sample) float64 { return s.RSS }},
	{"heap in use, MiB", 1 << 20, func(s Sample) float64 { return s.Heap }},
	{"goroutines", 1, func(s Sample) float64 { return s.Goroutines }},
}

// trend is that of a figure of a process.
func (s Samples) trend(process string, of func(Sample) float64) measure.Trend {
	var values []float64
	for _, sample := range s[process] {
		values = append(values, of(sample))
	}
	return measure.TrendOf(values)
}

// Check says which process grew: the median of the last third of the samples of
// a figure may be at most so many times that of the second third.
func (s Samples) Check(most float64, processes ...string) error {
	var errs []error
	for _, process := range processes {
		for _, figure := range figures {
			switch t := s.trend(process, figure.of); {
			case !t.Told():
				errs = append(errs, fmt.Errorf("%s, %s: %d samples are too few to tell whether it grows", process, figure.name, t.Samples))
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
				Heap: r.Metrics[name].Total("go_memstats_heap_alloc_bytes", nil), Goroutines: r.Metrics[name].Total("go_goroutines", nil),
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
