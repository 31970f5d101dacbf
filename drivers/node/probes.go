package node

// This file answers probes before there is a driver to ask.

import (
	"fmt"
	"net/http"
	"sync"
)

// probes are answered by one handler after another.
type probes struct {
	mu  sync.Mutex
	now http.Handler
}

// become has another handler answer.
func (p *probes) become(handler http.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = handler
}

// ServeHTTP implements [http.Handler].
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	now := p.now
	p.mu.Unlock()
	now.ServeHTTP(w, r)
}

// before is a program without a driver yet: not ready, and alive or not. One
// that waits for others is alive, as a restart would not help.
func before(words string, alive bool) http.Handler {
	not := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, words, http.StatusServiceUnavailable) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", not)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if !alive {
			not(w, r)
			return
		}
		fmt.Fprintln(w, words)
	})
	return mux
}
