package retry

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

var (
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	limits = Limits{MaxAttempts: 5, InitialBackoff: time.Second, MaxBackoff: 4 * time.Second, Deadline: time.Hour}
	key    = Key("claim/1")
)

func TestLimitsOf(t *testing.T) {
	assert.Equal(t, Limits{MaxAttempts: 5, InitialBackoff: time.Second, MaxBackoff: 30 * time.Second, Deadline: time.Hour}, LimitsOf(v1alpha1.RetryPolicy{}))
	given := v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](2), Deadline: &metav1.Duration{Duration: time.Minute}}
	assert.Equal(t, Limits{MaxAttempts: 2, InitialBackoff: time.Second, MaxBackoff: 30 * time.Second, Deadline: time.Minute}, LimitsOf(given))
	assert.Nil(t, given.MaxBackoff, "the policy itself stays as it is")
}

// Every class is one or the other, and the documentation of the classes says
// which.
func TestRetryable(t *testing.T) {
	for class, want := range map[v1alpha1.FailureClass]bool{
		v1alpha1.FailureBindConflict: true, v1alpha1.FailureStaleSlice: true, v1alpha1.FailureDeviceBecameUnhealthy: true,
		v1alpha1.FailureNodeLost: true, v1alpha1.FailureAPIUnavailable: true,
		v1alpha1.FailureUnsatisfiable: false, v1alpha1.FailurePolicyInvalid: false,
		v1alpha1.FailureQuotaNeverFits: false, v1alpha1.FailureClaimGone: false,
	} {
		assert.Equal(t, want, Retryable(class), class)
	}
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	var s State
	now := start
	for i, wait := range []time.Duration{1, 2, 4, 4} {
		s = s.Failed(limits, key, now)
		assert.Equal(t, int32(i+1), s.Failures)
		assert.Equal(t, now.Add(wait*time.Second), s.Next)
		assert.Empty(t, s.GaveUp)
		assert.Equal(t, start, s.First)
		now = s.Next
	}
	s = s.Failed(limits, key, now)
	assert.Equal(t, AttemptsUsed, s.GaveUp)
	assert.Zero(t, s.Next)
	assert.Equal(t, int32(5), s.Failures)
}

func TestBackoffOfManyFailures(t *testing.T) {
	l := Limits{MaxAttempts: 100, InitialBackoff: time.Nanosecond, MaxBackoff: math.MaxInt64, Deadline: math.MaxInt64}
	last := time.Duration(0)
	for n := range int32(100) {
		wait := l.backoff(n + 1)
		assert.GreaterOrEqual(t, wait, last, "%d failures", n+1)
		assert.Positive(t, wait)
		last = wait
	}
	assert.Zero(t, Limits{MaxAttempts: 100}.backoff(50), "a policy may want no wait")
	assert.Equal(t, time.Second, Limits{InitialBackoff: time.Minute, MaxBackoff: time.Second}.backoff(1))
}

func TestOneAttemptMeansNoRetry(t *testing.T) {
	s := State{}.Failed(Limits{MaxAttempts: 1, InitialBackoff: time.Second, MaxBackoff: time.Second, Deadline: time.Hour}, key, start)
	assert.Equal(t, AttemptsUsed, s.GaveUp)
}

func TestDeadline(t *testing.T) {
	l := Limits{MaxAttempts: 100, InitialBackoff: 10 * time.Second, MaxBackoff: 10 * time.Second, Deadline: 25 * time.Second}
	s := State{}.Failed(l, key, start)
	s = s.Failed(l, key, start.Add(12*time.Second))
	assert.Equal(t, start.Add(22*time.Second), s.Next, "still within the deadline")
	late := s.Failed(l, key, start.Add(22*time.Second))
	assert.Equal(t, DeadlinePassed, late.GaveUp, "the next one would begin after 32 s")
	assert.Zero(t, late.Next)
	assert.Equal(t, AttemptsUsed, s.Failed(Limits{MaxAttempts: 3, Deadline: 0}, key, start.Add(22*time.Second)).GaveUp,
		"the attempts are said where both apply")
	assert.Equal(t, DeadlinePassed, State{}.Failed(Limits{MaxAttempts: 3, InitialBackoff: 1, MaxBackoff: 1}, key, start).GaveUp,
		"a deadline of nothing allows no second attempt")
}

// Another claim or revision starts from the beginning.
func TestFailuresOfAnotherKeyDoNotCount(t *testing.T) {
	s := State{}.Failed(limits, key, start)
	s = s.Failed(limits, key, start.Add(time.Second))
	s = s.Failed(limits, Key("claim/2"), start.Add(time.Minute))
	assert.Equal(t, int32(1), s.Failures)
	assert.Equal(t, start.Add(time.Minute), s.First)
}

// A clock that was set back must not give a Pod less time.
func TestFirstFailureInTheFuture(t *testing.T) {
	s := State{Key: key, Failures: 3, First: start.Add(time.Hour)}
	assert.Equal(t, int32(1), s.Failed(limits, key, start).Failures)
}

func TestText(t *testing.T) {
	s := State{}.Failed(limits, key, start)
	assert.Equal(t, " [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, next 2026-01-02T03:04:06Z, key "+key+"]", s.Text(start))
	assert.Equal(t, " [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, key "+key+"]", s.Text(s.Next), "begun already")
	s.Failures, s.Next, s.GaveUp = 5, time.Time{}, AttemptsUsed
	assert.Equal(t, " [failed 5 of 5 attempts, first 2026-01-02T03:04:05Z, gave up: no attempt is left, key "+key+"]", s.Text(start))
	assert.Empty(t, State{}.Text(start))
}

// A scheduler reads what another wrote, whatever stands before it.
func TestTextRoundTrip(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 2000 {
		l := Limits{
			MaxAttempts:    1 + r.Int31n(20),
			InitialBackoff: time.Duration(r.Int63n(int64(time.Minute))),
			MaxBackoff:     time.Duration(r.Int63n(int64(time.Hour))),
			Deadline:       time.Duration(r.Int63n(int64(2 * time.Hour))),
		}
		var s State
		now := start.Add(time.Duration(r.Int63n(int64(time.Hour))))
		for range 1 + r.Intn(10) {
			s = s.Failed(l, key, now)
			now = now.Add(time.Duration(r.Int63n(int64(time.Minute))))
		}
		message := "StaleSlice: device d [failed] is gone"
		text := s.Text(now)
		got, ok := Parse(message + text)
		require.True(t, ok, text)
		assert.Equal(t, message, Strip(message+text))
		want := s
		want.First = s.First.Truncate(time.Second)
		if !s.Next.After(now) {
			want.Next = time.Time{}
		}
		assert.WithinRange(t, got.Next, want.Next, want.Next.Add(time.Second-1))
		got.Next, want.Next = time.Time{}, time.Time{}
		assert.Equal(t, want, got)
	}
}

func TestParseWhatIsNoState(t *testing.T) {
	for _, message := range []string{
		"",
		"no tier can be met now: h100 (4 InUse)",
		" [failed 0 of 5 attempts, first 2026-01-02T03:04:05Z, key " + key + "]",
		" [failed 1 of 5 attempts, first yesterday, key " + key + "]",
		" [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, next soon, key " + key + "]",
		" [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, gave up: no idea, key " + key + "]",
		" [failed 99999999999 of 5 attempts, first 2026-01-02T03:04:05Z, key " + key + "]",
		" [failed 1 of 99999999999 attempts, first 2026-01-02T03:04:05Z, key " + key + "]",
		" [failed 1 of 5 attempts, first 2026-01-02T03:04:05Z, key " + key + "] and more",
	} {
		s, ok := Parse(message)
		assert.False(t, ok, "%q", message)
		assert.Zero(t, s)
	}
}

func TestKey(t *testing.T) {
	assert.Len(t, Key("x"), 12)
	assert.Equal(t, Key("x"), Key("x"))
	assert.NotEqual(t, Key("x"), Key("y"))
}
