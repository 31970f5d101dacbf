package upstream

// Progress of a run, from what Ginkgo prints.

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/heartbeat"
)

// beatEvery is how often a run that goes on says so.
const beatEvery = time.Minute

// mark is what Ginkgo prints for each test that ended.
var mark = []byte("•")

// watched passes the suite's output on, counts the tests that ended and keeps
// the last lines.
type watched struct {
	name     string
	total    int
	progress io.Writer

	mu    sync.Mutex
	w     io.Writer
	ended int
	tail  []byte
}

const tailBytes = 16 << 10

func newWatched(w, progress io.Writer, name string, total int) *watched {
	if progress == nil {
		progress = io.Discard
	}
	return &watched{name: name, total: total, progress: progress, w: w}
}

// Write implements io.Writer. A mark that is torn apart is found in the tail.
func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	torn := w.tail[max(0, len(w.tail)-len(mark)+1):]
	w.ended += bytes.Count(append(bytes.Clone(torn), p...), mark)
	w.tail = append(w.tail, p...)
	w.tail = w.tail[max(0, len(w.tail)-tailBytes):]
	return w.w.Write(p)
}

func (w *watched) last(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return lastLines(w.tail, n)
}

// tell says now and then how far the run is, until stop is called.
func (w *watched) tell() (stop func()) {
	return heartbeat.Start(beatEvery, func(elapsed time.Duration) {
		w.mu.Lock()
		ended := w.ended
		w.mu.Unlock()
		fmt.Fprintf(w.progress, "%s: %d of %d tests done after %.0f minutes\n", w.name, ended, w.total, elapsed.Minutes())
	})
}
