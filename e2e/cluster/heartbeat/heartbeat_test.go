package heartbeat

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestStartBeatsUntilItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []time.Duration
		stop := Start(20*time.Second, func(elapsed time.Duration) { said = append(said, elapsed) })
		time.Sleep(50 * time.Second)
		stop()
		time.Sleep(time.Minute)
		if want := []time.Duration{20 * time.Second, 40 * time.Second}; !slices.Equal(said, want) {
			t.Errorf("said %v, want %v", said, want)
		}
	})
}
