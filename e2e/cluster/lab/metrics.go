package lab

// What the parts tell of themselves while they run.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// ErrNoMetrics says that a part's metrics can't be read here.
var ErrNoMetrics = errors.New("its metrics are not served to the administrator")

// Metrics returns what a part that is up serves at /metrics, in Prometheus'
// text format. etcd and kwok have none for us: [ErrNoMetrics].
func (l *Lab) Metrics(ctx context.Context, component string) ([]byte, error) {
	if _, err := l.part(component); err != nil {
		return nil, err
	}
	url, err := l.layout.metrics(component)
	if err != nil {
		return nil, err
	}
	text, err := l.read(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of %s, %w", component, err)
	}
	return text, nil
}

// Profile returns where a part of Kubernetes, or the scheduler, spends its
// processor time in the next while, in pprof's format.
func (l *Lab) Profile(ctx context.Context, component string, span time.Duration) ([]byte, error) {
	if _, err := l.part(component); err != nil {
		return nil, err
	}
	profile, err := l.read(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", l.layout.url(component), int(span.Seconds())))
	if err != nil {
		return nil, fmt.Errorf("profiling %s, %w", component, err)
	}
	return profile, nil
}

// read asks a part as the administrator.
func (l *Lab) read(ctx context.Context, url string) ([]byte, error) {
	client, err := rest.HTTPClientFor(l.config)
	if err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return get(ctx, client, url)
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %.200s", url, response.Status, text)
	}
	return text, err
}

// metrics is the address of a part's metrics.
func (l layout) metrics(component string) (string, error) {
	switch component {
	case APIServer, ControllerManager, LadderScheduler, KubeScheduler:
		return l.url(component) + "/metrics", nil
	case LadderController:
		return "http://" + loopback(l.ports[portControllerMetrics]) + "/metrics", nil
	}
	return "", fmt.Errorf("reading the metrics of %s, %w", component, ErrNoMetrics)
}

// PID is the number of the process that a part runs in now; 0 while it is down.
func (l *Lab) PID(component string) (int, error) {
	p, err := l.part(component)
	if err != nil {
		return 0, err
	}
	return p.status().PID, nil
}
