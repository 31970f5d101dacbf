package measure

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// Cluster is what is measured.
type Cluster interface {
	// Metrics is what a part serves at /metrics.
	Metrics(ctx context.Context, component string) ([]byte, error)
	// PID is the number of a part's process, 0 while it is down.
	PID(component string) (int, error)
}

// Parts name what is read.
type Parts struct {
	// Processes are those whose processor time and memory are read, Metrics
	// those whose metrics are.
	Processes, Metrics []string
}

// Reading is how things stood in one moment.
type Reading struct {
	At        time.Time
	Processes map[string]Process
	Metrics   map[string]Metrics
}

// Read reads all parts, which must be up.
func Read(ctx context.Context, c Cluster, parts Parts, now func() time.Time) (Reading, error) {
	r := Reading{At: now(), Processes: map[string]Process{}, Metrics: map[string]Metrics{}}
	for _, name := range parts.Processes {
		pid, err := c.PID(name)
		if err != nil {
			return r, err
		}
		if r.Processes[name], err = ReadProcess(pid); err != nil {
			return r, fmt.Errorf("reading %s, %w", name, err)
		}
	}
	for _, name := range parts.Metrics {
		text, err := c.Metrics(ctx, name)
		if err != nil {
			return r, err
		}
		if r.Metrics[name], err = Parse(text); err != nil {
			return r, fmt.Errorf("reading %s, %w", name, err)
		}
	}
	return r, nil
}

// Cost is what happened between two readings. Counters are only comparable
// while the processes stay the same.
type Cost struct{ From, To Reading }

// Since is the cost after an earlier reading.
func (r Reading) Since(before Reading) Cost { return Cost{From: before, To: r} }

// Took is the time between the readings.
func (c Cost) Took() time.Duration { return c.To.At.Sub(c.From.At) }

// CPU is the processor time that a part used.
func (c Cost) CPU(component string) time.Duration {
	return c.To.Processes[component].since(c.From.Processes[component])
}

// By is how much was added to a counter of a part, by the values of labels.
// What was not counted is left out.
func (c Cost) By(component, metric string, labels ...string) map[string]float64 {
	sums := c.To.Metrics[component].By(metric, labels...)
	for key, before := range c.From.Metrics[component].By(metric, labels...) {
		sums[key] -= before
	}
	maps.DeleteFunc(sums, func(_ string, n float64) bool { return n == 0 })
	return sums
}

// Histogram is what was added to a histogram of a part.
func (c Cost) Histogram(component, metric string, with Labels) Histogram {
	return c.To.Metrics[component].Histogram(metric, with).Since(c.From.Metrics[component].Histogram(metric, with))
}

// Calls counts requests to the API server.
type Calls struct{ Reads, Writes float64 }

// Total counts both.
func (c Calls) Total() float64 { return c.Reads + c.Writes }

// Calls counts the requests that a part sent as a client, as it counts them
// itself.
func (c Cost) Calls(component string) Calls {
	return callsBy(c.By(component, "rest_client_requests_total", "method"))
}

func callsBy(methods map[string]float64) Calls {
	var calls Calls
	for method, n := range methods {
		switch method {
		case "POST", "PUT", "PATCH", "DELETE":
			calls.Writes += n
		default:
			calls.Reads += n
		}
	}
	return calls
}

// Served counts the requests of all clients that the API server answered, by
// verb, resource and subresource.
func (c Cost) Served(apiServer string) map[string]float64 {
	return c.By(apiServer, "apiserver_request_total", "verb", "resource", "subresource")
}

// ServedWrites are those of them that write.
func (c Cost) ServedWrites(apiServer string) map[string]float64 {
	served := c.Served(apiServer)
	maps.DeleteFunc(served, func(what string, _ float64) bool { return !writes(what) })
	return served
}

// writes says whether a verb, or what begins with one, changes something.
func writes(what string) bool {
	var verb string
	if _, err := fmt.Sscan(what, &verb); err != nil {
		return false
	}
	switch verb {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		return true
	}
	return false
}

// PerMinute is a number of something that happened within a time, for a minute.
func PerMinute(n float64, within time.Duration) float64 { return n / within.Minutes() }
