package invariants

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	recorded = "I6 every allocation has its record and revision"
	rebuilt  = "I6 a record that was lost is rebuilt as it was"
)

// Recorded checks I6: every Pod of a policy that was bound names its record and
// revision, and within the given time there is that record, or one that was
// rebuilt in its place, with the node, the devices and the revision that the Pod
// got. A Pod that is gone before its time is over and has no record is not
// judged: a record that a scheduler did not live to write is rebuilt from the
// Pod.
func Recorded(h History, within time.Duration) Report {
	bound, order := h.bound()
	named := h.written()
	checked, unjudged, end := 0, 0, h.end()
	violations, missing := []string(nil), h.Gaps()
	for _, uid := range order {
		b := bound[uid]
		name := b.pod.Annotations[v1alpha1.AnnotationRecord]
		record := named[[2]string{b.pod.Namespace, name}]
		until := end
		if !b.gone.IsZero() {
			until = b.gone
		}
		note := func(format string, args ...any) {
			violations = append(violations, fmt.Sprintf("Pod %s/%s, bound at %s: ", b.pod.Namespace, b.pod.Name, b.at.Format(stamp))+fmt.Sprintf(format, args...))
		}
		switch {
		case name == "":
			checked++
			note("it names no record")
		case record != nil:
			checked++
			for _, why := range b.differs(record) {
				note("record %s %s", record.Name, why)
			}
		case until.Sub(b.at) > within:
			checked++
			note("there is no record %s %s later", name, until.Sub(b.at).Round(time.Second))
		case b.gone.IsZero():
			missing = append(missing, fmt.Sprintf("Pod %s/%s has no record, and the time for it is not over", b.pod.Namespace, b.pod.Name))
		default:
			unjudged++
		}
	}
	r := conclude(recorded, checked, violations, missing)
	r.Unjudged = unjudged
	return r
}

// Rebuilt looks at those of I6 alone whose record a scheduler did not live to
// write: what was rebuilt from the Pod must tell of what the Pod got.
func Rebuilt(h History) Report {
	bound, order := h.bound()
	named := h.written()
	checked := 0
	var violations []string
	for _, uid := range order {
		b := bound[uid]
		record := named[[2]string{b.pod.Namespace, b.pod.Annotations[v1alpha1.AnnotationRecord]}]
		if record == nil || record.Annotations[v1alpha1.AnnotationRebuilt] == "" {
			continue
		}
		checked++
		for _, why := range b.differs(record) {
			violations = append(violations, fmt.Sprintf("Pod %s/%s, bound at %s: record %s, which was rebuilt, %s",
				b.pod.Namespace, b.pod.Name, b.at.Format(stamp), record.Name, why))
		}
	}
	r := conclude(rebuilt, checked, violations, h.Gaps())
	r.Rare = true
	if checked == 0 && r.Verdict == Inconclusive {
		r.Findings = append(h.Gaps(), "no record was lost, so none was rebuilt")
	}
	return r
}

// written are the records that were, under the names that Pods know: what was
// rebuilt stands under the name of what it replaces.
func (h History) written() map[[2]string]*v1alpha1.AllocationDecision {
	named := map[[2]string]*v1alpha1.AllocationDecision{}
	for _, e := range h {
		if e.Record == nil || e.Type == watch.Deleted {
			continue
		}
		name := e.Record.Name
		if missing := e.Record.Annotations[v1alpha1.AnnotationRebuilt]; missing != "" {
			name = missing
		}
		named[[2]string{e.Record.Namespace, name}] = e.Record
	}
	return named
}

// boundPod is a Pod of a policy that got a node.
type boundPod struct {
	pod      *corev1.Pod // as it was bound
	at, gone time.Time
	devices  []DeviceID
}

// bound follows the Pods of policies.
func (h History) bound() (map[types.UID]*boundPod, []types.UID) {
	all := map[types.UID]*boundPod{}
	var order []types.UID
	devices := map[types.UID][]DeviceID{}
	for _, e := range h.ByVersion() {
		switch {
		case e.Claim != nil && e.Type != watch.Deleted && len(heldBy(e.Claim)) > 0:
			devices[madeFor(e.Claim)] = heldBy(e.Claim)
		case e.Pod != nil:
			b := all[e.Pod.UID]
			if b == nil && e.Pod.Spec.NodeName != "" && e.Pod.Labels[v1alpha1.LabelPolicy] != "" {
				// The allocation was written before the Pod was bound.
				b = &boundPod{pod: e.Pod, at: e.At, devices: devices[e.Pod.UID]}
				all[e.Pod.UID] = b
				order = append(order, e.Pod.UID)
			}
			if b != nil && e.Type == watch.Deleted {
				b.gone = e.At
			}
		}
	}
	return all, order
}

// differs says where a record tells of something else than what the Pod got.
func (b *boundPod) differs(record *v1alpha1.AllocationDecision) []string {
	var why []string
	spec := &record.Spec
	if spec.Outcome != v1alpha1.OutcomeAllocated {
		why = append(why, "tells of the outcome "+string(spec.Outcome))
	}
	if spec.PodUID != b.pod.UID {
		why = append(why, fmt.Sprintf("is of Pod %s, not of %s", spec.PodUID, b.pod.UID))
	}
	if spec.Node != b.pod.Spec.NodeName {
		why = append(why, fmt.Sprintf("names node %q, not %q", spec.Node, b.pod.Spec.NodeName))
	}
	if revision := b.pod.Annotations[v1alpha1.AnnotationRevision]; revision == "" || strconv.FormatInt(spec.PolicyRevision, 10) != revision {
		why = append(why, fmt.Sprintf("names revision %d, the Pod %q", spec.PolicyRevision, revision))
	}
	if !sameDevices(spec.Devices, b.devices) {
		var names []string
		for _, d := range spec.Devices {
			names = append(names, DeviceID{d.Driver, d.Pool, d.Device}.String())
		}
		slices.Sort(names)
		why = append(why, fmt.Sprintf("names devices %v, the claim has %v", names, b.devices))
	}
	return why
}
