package invariants

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// span is the time from the first sight of a running container of the Pod to
// the Pod's end. The kubelet lets a Pod go only after its containers ended.
type span struct {
	from, to time.Time // to is zero while it runs
}

func (s span) overlaps(o span) bool {
	return (o.to.IsZero() || s.from.Before(o.to)) && (s.to.IsZero() || o.from.Before(s.to))
}

// containers finds Pods that saw the same device of the same node while both
// were running, and that share no claim. It returns how many sights it had.
func containers(h History) (checked int, violations []string) {
	spans := map[types.UID]*span{}
	for _, e := range h {
		if e.Pod != nil {
			follow(spans, e)
		}
	}
	type sight struct {
		*Probe
		span
	}
	byDevice := map[[2]string][]sight{}
	for _, e := range h {
		if e.Probe == nil {
			continue
		}
		s := spans[e.Probe.Pod]
		if s == nil {
			continue
		}
		for _, device := range e.Probe.Devices {
			checked++
			key := [2]string{e.Probe.Node, device}
			now := sight{e.Probe, *s}
			for _, other := range byDevice[key] {
				if other.Pod != now.Pod && other.overlaps(now.span) && !shareClaim(other.Probe, now.Probe) {
					violations = append(violations, fmt.Sprintf("%s: %s and %s both saw device %s of node %s",
						e.At.Format(stamp), other.Name, now.Name, device, e.Probe.Node))
				}
			}
			byDevice[key] = append(byDevice[key], now)
		}
	}
	return checked, violations
}

func follow(spans map[types.UID]*span, e Entry) {
	s := spans[e.Pod.UID]
	if s == nil {
		if e.Type == watch.Deleted || !anyRunning(e.Pod) {
			return
		}
		spans[e.Pod.UID] = &span{from: e.At}
		return
	}
	ended := e.Type == watch.Deleted || e.Pod.Status.Phase == corev1.PodSucceeded || e.Pod.Status.Phase == corev1.PodFailed
	if ended && s.to.IsZero() {
		s.to = e.At
	}
}

func anyRunning(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func shareClaim(a, b *Probe) bool {
	return slices.ContainsFunc(a.Claims, func(uid types.UID) bool { return slices.Contains(b.Claims, uid) })
}
