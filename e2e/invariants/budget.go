package invariants

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	attemptsBudget = "I11 failed attempts stay within the budget"
	eventsBudget   = "I11 events stay within the budget"
)

// defaultAttempts is what a policy allows that does not say.
const defaultAttempts = 5

// AttemptsWithinBudget checks the first half of I11: in no version of a Pod does
// its condition count more failed attempts between decision and bind than the
// policy's retry allows, or name another limit. Without faults of the API server
// there are none.
func AttemptsWithinBudget(h History) Report {
	checked := 0
	var violations []string
	c := newCluster()
	for _, e := range h.ByVersion() {
		c.apply(e)
		if e.Pod == nil {
			continue
		}
		failed, limit, says := attempts(e.Pod)
		if !says {
			continue
		}
		checked++
		allowed := attemptsOf(c, e.Pod)
		if failed > limit || limit != allowed {
			violations = append(violations, fmt.Sprintf("%s: Pod %s/%s says %d failed attempts of %d, its policy allows %d",
				e.At.Format(stamp), e.Pod.Namespace, e.Pod.Name, failed, limit, allowed))
		}
	}
	r := conclude(attemptsBudget, checked, violations, h.Gaps())
	r.Rare = true
	if checked == 0 && r.Verdict == Inconclusive {
		r.Findings = append(h.Gaps(), "no attempt failed between decision and bind")
	}
	return r
}

// EventsWithinBudget checks the second half of I11: no outcome of a Pod is told by
// more of Ladder's Events than there were schedulers while the Pod was there. A
// scheduler that starts does not know what was told, and may tell it once more.
// Outcomes that differ only in how many devices each reason stands for are one.
func EventsWithinBudget(h History) Report {
	told, excess := h.events()
	return conclude(eventsBudget, told, excess, h.Gaps())
}

// counted matches what the condition says of failed attempts.
var counted = regexp.MustCompile(` \[failed (\d+) of (\d+) attempts, `)

// attempts reads what a Pod says of its failed attempts.
func attempts(pod *corev1.Pod) (failed, limit int, says bool) {
	condition := v1alpha1.AcceleratorCondition(pod)
	if condition == nil {
		return 0, 0, false
	}
	m := counted.FindStringSubmatch(condition.Message)
	if m == nil {
		return 0, 0, false
	}
	failed, err := strconv.Atoi(m[1])
	if err != nil {
		return 0, 0, false
	}
	limit, err = strconv.Atoi(m[2])
	return failed, limit, err == nil
}

// attemptsOf is what the Pod's policy allows.
func attemptsOf(c *cluster, pod *corev1.Pod) int {
	policy := pod.Labels[v1alpha1.LabelPolicy]
	if r := c.revisions[policy][revisionOf(pod, policy)]; r != nil && r.Spec.PolicySpec.Retry.MaxAttempts != nil {
		return int(*r.Spec.PolicySpec.Retry.MaxAttempts)
	}
	return defaultAttempts
}

// ours is how the reasons of Ladder's Events begin.
const ours = "Accelerator"

// outcome is one thing that Events tell of a Pod.
type outcome struct {
	pod          types.UID
	reason, note string
}

// events counts Ladder's Events and finds the outcomes that are told too often.
func (h History) events() (told int, excess []string) {
	times := map[outcome]int{}
	counts := map[types.UID]int{} // of each Event
	var order []outcome
	names := map[types.UID]string{}
	starts, lives := h.lives()
	for _, e := range h {
		if e.Event == nil || e.Type == watch.Deleted || e.Event.Regarding.Kind != "Pod" || !strings.HasPrefix(e.Event.Reason, ours) {
			continue
		}
		key := outcome{e.Event.Regarding.UID, e.Event.Reason, normal(e.Event.Note)}
		names[key.pod] = e.Event.Regarding.Namespace + "/" + e.Event.Regarding.Name
		now := timesOf(e.Event)
		if _, known := times[key]; !known {
			order = append(order, key)
		}
		times[key] += now - counts[e.Event.UID]
		told += now - counts[e.Event.UID]
		counts[e.Event.UID] = now
	}
	for _, key := range order {
		if most := schedulers(starts, lives[key.pod]); times[key] > most {
			excess = append(excess, fmt.Sprintf("Pod %s: %s (%s) was told by %d Events, there were %d schedulers in its time",
				names[key.pod], key.reason, key.note, times[key], most))
		}
	}
	return told, excess
}

// timesOf is how often something was told by one Event.
func timesOf(event *eventsv1.Event) int {
	if event.Series != nil {
		return int(event.Series.Count)
	}
	return 1
}

// life is how long a Pod was there.
type life struct{ from, to time.Time }

// lives are when schedulers were started, and the times of Pods.
func (h History) lives() (starts []time.Time, lives map[types.UID]life) {
	lives = map[types.UID]life{}
	for _, e := range h {
		switch {
		case e.Started:
			starts = append(starts, e.At)
		case e.Pod != nil:
			l, known := lives[e.Pod.UID]
			if !known {
				l.from = e.At
			}
			if e.Type == watch.Deleted {
				l.to = e.At
			}
			lives[e.Pod.UID] = l
		}
	}
	return starts, lives
}

// schedulers is how many schedulers there were in a Pod's time: the one that it
// found, and those that were started later.
func schedulers(starts []time.Time, l life) int {
	n := 1
	for _, at := range starts {
		if at.After(l.from) && (l.to.IsZero() || at.Before(l.to)) {
			n++
		}
	}
	return n
}

// numbersOf are the counts in front of reason codes.
var numbersOf = regexp.MustCompile(`\b\d+ ([A-Z])`)

// normal is a note without the counts, and with devices that are about to be
// used as used.
func normal(note string) string {
	note = numbersOf.ReplaceAllString(note, "# $1")
	note = strings.ReplaceAll(note, string(v1alpha1.ReasonReserved), string(v1alpha1.ReasonInUse))
	return strings.ReplaceAll(note, "# InUse, # InUse", "# InUse")
}

// FailedAttempts is how many failed attempts a Pod tells of.
func FailedAttempts(pod *corev1.Pod) int {
	failed, _, _ := attempts(pod)
	return failed
}
