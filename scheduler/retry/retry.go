// Package retry decides whether and when a Pod is tried again after a failure
// between decision and bind, and says so on the Pod in words that a later
// scheduler can read. It is pure: the time is an argument.
package retry

import (
	"slices"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// retryable are the classes that may be over by themselves.
var retryable = []v1alpha1.FailureClass{
	v1alpha1.FailureBindConflict,
	v1alpha1.FailureStaleSlice,
	v1alpha1.FailureDeviceBecameUnhealthy,
	v1alpha1.FailureNodeLost,
	v1alpha1.FailureAPIUnavailable,
}

// Retryable says whether a failure of this class is worth another try without
// anything having happened. The others park the Pod at once.
func Retryable(class v1alpha1.FailureClass) bool { return slices.Contains(retryable, class) }

// Limits are a policy's bounds for retries.
type Limits struct {
	// MaxAttempts is how many attempts there are in all, the first included.
	MaxAttempts int32
	// InitialBackoff is the wait after the first failure. It doubles with each
	// further one, up to MaxBackoff.
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	// Deadline is how long after the first failure another attempt may begin.
	Deadline time.Duration
}

// LimitsOf returns a policy's bounds; what it leaves out is as the API server
// would have it.
func LimitsOf(p v1alpha1.RetryPolicy) Limits {
	p = *p.DeepCopy()
	p.Default()
	return Limits{
		MaxAttempts:    *p.MaxAttempts,
		InitialBackoff: p.InitialBackoff.Duration,
		MaxBackoff:     p.MaxBackoff.Duration,
		Deadline:       p.Deadline.Duration,
	}
}

// State is what is remembered about the failures of one Pod.
type State struct {
	// Key is what the attempts had in common: the claim and the policy's
	// revision. The failures of another key do not count.
	Key string
	// Failures is how many attempts failed, of the Limit that there may be.
	Failures int32
	Limit    int32
	// First is when the first of them failed.
	First time.Time
	// Next is when the next attempt may begin; zero if there is none to wait
	// for.
	Next time.Time
	// GaveUp says why there is no further attempt; empty while there is one.
	GaveUp GaveUp
}

// GaveUp is why no further attempt is made.
type GaveUp string

const (
	// AttemptsUsed: the policy's attempts are used up.
	AttemptsUsed GaveUp = "no attempt is left"
	// DeadlinePassed: the next attempt would begin after the policy's deadline.
	DeadlinePassed GaveUp = "the deadline has passed"
)

// Reason is the label of it in metrics.
func (g GaveUp) Reason() string {
	if g == DeadlinePassed {
		return "deadline"
	}
	return "attempts"
}

// Failed returns the state after another failure of a retryable class.
func (s State) Failed(l Limits, key string, now time.Time) State {
	if s.Key != key || s.First.IsZero() || s.First.After(now) {
		s = State{Key: key, First: now}
	}
	s.Limit = l.MaxAttempts
	s.Failures++
	s.Next, s.GaveUp = now.Add(l.backoff(s.Failures)), ""
	switch {
	case s.Failures >= l.MaxAttempts:
		s.Next, s.GaveUp = time.Time{}, AttemptsUsed
	case s.Next.After(s.First.Add(l.Deadline)):
		s.Next, s.GaveUp = time.Time{}, DeadlinePassed
	}
	return s
}

// backoff is the wait after so many failures.
func (l Limits) backoff(failures int32) time.Duration {
	wait := l.InitialBackoff
	for range failures - 1 {
		if wait >= l.MaxBackoff/2 {
			return l.MaxBackoff
		}
		wait *= 2
	}
	return min(wait, l.MaxBackoff)
}
