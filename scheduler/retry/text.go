package retry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// This file writes a State at the end of a condition's message and reads it
// from there. The message is the only place: a scheduler may write Pods'
// conditions but not their annotations. Times lose their fractions, the next
// attempt's to the later second.

// written matches what Text writes.
var written = regexp.MustCompile(` \[failed (\d+) of (\d+) attempts, first (\S+?)(?:, next (\S+?))?(?:, gave up: ([a-z ]+))?, key ([0-9a-f]{12})\]$`)

// Text returns the state in brackets, with a leading space, for the end of a
// message. Without a failure it is empty. An attempt that began already is not
// announced.
func (s State) Text(now time.Time) string {
	if s.Failures == 0 {
		return ""
	}
	text := fmt.Sprintf(" [failed %d of %d attempts, first %s", s.Failures, s.Limit, s.First.UTC().Format(time.RFC3339))
	if s.Next.After(now) {
		next := s.Next.UTC()
		if whole := next.Truncate(time.Second); whole.Before(next) {
			next = whole.Add(time.Second)
		}
		text += ", next " + next.Format(time.RFC3339)
	}
	if s.GaveUp != "" {
		text += ", gave up: " + string(s.GaveUp)
	}
	return text + ", key " + s.Key + "]"
}

// Parse reads the state that a message ends with. It says whether there is one.
func Parse(message string) (State, bool) {
	m := written.FindStringSubmatch(message)
	if m == nil {
		return State{}, false
	}
	s := State{GaveUp: GaveUp(m[5]), Key: m[6]}
	failures, err := strconv.ParseInt(m[1], 10, 32)
	if err != nil || failures < 1 {
		return State{}, false
	}
	limit, err := strconv.ParseInt(m[2], 10, 32)
	if err != nil {
		return State{}, false
	}
	s.Failures, s.Limit = int32(failures), int32(limit)
	if s.First, err = time.Parse(time.RFC3339, m[3]); err != nil {
		return State{}, false
	}
	if m[4] != "" {
		if s.Next, err = time.Parse(time.RFC3339, m[4]); err != nil {
			return State{}, false
		}
	}
	if s.GaveUp != "" && s.GaveUp != AttemptsUsed && s.GaveUp != DeadlinePassed {
		return State{}, false
	}
	return s, true
}

// Strip returns a message without the state at its end.
func Strip(message string) string { return written.ReplaceAllString(message, "") }

// Key shortens an idempotency key, which may be long, to what a message shows.
func Key(idempotencyKey string) string {
	sum := sha256.Sum256([]byte(idempotencyKey))
	return hex.EncodeToString(sum[:6])
}
