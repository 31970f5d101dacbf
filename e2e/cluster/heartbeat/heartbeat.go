// Package heartbeat lets work that takes long say that it goes on.
package heartbeat

import (
	"sync"
	"time"
)

// Start calls say once in each interval, with the time since the start, until
// the returned function is called; that returns when no call is under way.
func Start(interval time.Duration, say func(elapsed time.Duration)) (stop func()) {
	start := time.Now()
	done := make(chan struct{})
	var beat sync.WaitGroup
	beat.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				say(time.Since(start))
			}
		}
	})
	return func() {
		close(done)
		beat.Wait()
	}
}
