package lab

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMetricsAddress(t *testing.T) {
	l := layout{ports: map[string]int{APIServer: 1, LadderScheduler: 2, LadderController: 3, portControllerMetrics: 4}}
	for component, want := range map[string]string{
		APIServer:        "https://127.0.0.1:1/metrics",
		LadderScheduler:  "https://127.0.0.1:2/metrics",
		LadderController: "http://127.0.0.1:4/metrics",
	} {
		if got, err := l.metrics(component); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", component, got, err, want)
		}
	}
	for _, component := range []string{Etcd, Kwok} {
		if _, err := l.metrics(component); !errors.Is(err, ErrNoMetrics) || !strings.Contains(err.Error(), component) {
			t.Errorf("%s: %v", component, err)
		}
	}
}

func TestGetTellsRefusals(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.Error(w, "not for you", http.StatusForbidden)
			return
		}
		fmt.Fprintln(w, "up 1")
	}))
	t.Cleanup(server.Close)
	if text, err := get(t.Context(), server.Client(), server.URL+"/metrics"); err != nil || string(text) != "up 1\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if _, err := get(t.Context(), server.Client(), server.URL+"/other"); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "not for you") {
		t.Errorf("a refusal is told as %v", err)
	}
}

// A lab without the part has nothing to tell of it.
func TestMetricsOfNoPart(t *testing.T) {
	l := &Lab{}
	if _, err := l.Metrics(t.Context(), LadderScheduler); err == nil || !strings.Contains(err.Error(), LadderScheduler) {
		t.Errorf("Metrics = %v", err)
	}
	if _, err := l.PID(LadderScheduler); err == nil {
		t.Error("a part that is not there has a process")
	}
}
