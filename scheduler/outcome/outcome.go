// Package outcome tells users what a Pod got or why not: the Pod's condition,
// one Event for each outcome, and the AllocationDecision. Nothing here is on
// the path of a scheduling decision.
package outcome

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/retry"
)

// Reasons of the condition gpuladder.dev/Accelerator.
const (
	ReasonAllocated     = "Allocated"
	ReasonPending       = "Pending"
	ReasonUnsatisfiable = "Unsatisfiable"
	// ReasonGaveUp: the attempts or the time of the policy's retry are used up.
	ReasonGaveUp = "GaveUp"
)

// Outcome is one thing to tell about a Pod.
type Outcome struct {
	Pod *corev1.Pod
	// Decision is the record; nil where no decision could be made.
	Decision *decide.Decision
	// Status, Reason and Message become the Pod's condition.
	Status  corev1.ConditionStatus
	Reason  string
	Message string
	// key tells outcomes apart; retries with the same outcome share it.
	key string
	// failures is what the message says of earlier attempts.
	failures string
}

// With returns the outcome with what is to be said of the Pod's failed attempts
// at the end of its message. Where only that changes, the condition is written
// again, and nothing else is told.
func (o Outcome) With(failures string) Outcome {
	o.Message, o.failures = v1alpha1.ClipMessageTo(o.Message, v1alpha1.MaxMessage-len(failures))+failures, failures
	return o
}

// Record is the name of the AllocationDecision that is written when the outcome
// is told for the first time, as that of a Pod that is bound always is.
func (o Outcome) Record() string { return RecordName(o.Pod, o.key, 0) }

// MessageOf returns what the Pod's condition says, or "".
func MessageOf(pod *corev1.Pod) string {
	if c := v1alpha1.AcceleratorCondition(pod); c != nil {
		return c.Message
	}
	return ""
}

// OfDecision returns the outcome that a decision stands for.
func OfDecision(pod *corev1.Pod, d *decide.Decision) Outcome {
	o := Outcome{Pod: pod, Decision: d, Status: corev1.ConditionFalse, Reason: ReasonPending, Message: Summary(d), key: decisionKey(d)}
	switch d.Outcome {
	case v1alpha1.OutcomeAllocated:
		o.Status, o.Reason = corev1.ConditionTrue, ReasonAllocated
	case v1alpha1.OutcomeUnsatisfiable:
		o.Reason = ReasonUnsatisfiable
	}
	if d.Class != "" && d.Outcome != v1alpha1.OutcomeAllocated {
		o.Message = v1alpha1.ClipMessage(string(d.Class) + ": " + o.Message)
	}
	return o
}

// OfFailure returns the outcome of a failure between decision and bind, or of a
// Pod that could not be decided on.
func OfFailure(pod *corev1.Pod, class v1alpha1.FailureClass, message string) Outcome {
	return Outcome{
		Pod:     pod,
		Status:  corev1.ConditionFalse,
		Reason:  ReasonPending,
		Message: v1alpha1.ClipMessage(string(class) + ": " + message),
		key:     digest("failure", string(class), lasting(class, message)),
	}
}

// lasting is what a message says of a class that is over only when somebody does
// something about it: with another message it is another outcome.
func lasting(class v1alpha1.FailureClass, message string) string {
	if class == "" || retry.Retryable(class) {
		return ""
	}
	return normal(message)
}

// OfGivingUp returns the outcome of a failure that is not tried again, because
// the attempts or the time for it are used up.
func OfGivingUp(pod *corev1.Pod, class v1alpha1.FailureClass, message string) Outcome {
	o := OfFailure(pod, class, message)
	o.Reason, o.key = ReasonGaveUp, digest("gave up", string(class))
	return o
}

// Summary says a decision in one line: what was chosen, or what stood in the
// way.
func Summary(d *decide.Decision) string {
	if d.Outcome == v1alpha1.OutcomeAllocated {
		return v1alpha1.ClipMessage(allocated(d))
	}
	// The outcome is told beside it, as the condition's reason.
	return v1alpha1.ClipMessage(strings.TrimSuffix(strings.TrimPrefix(d.Message, string(d.Outcome)+": "), "."))
}

// allocated returns "H100 (tier h100, revision 3): node/pool/device".
func allocated(d *decide.Decision) string {
	var models []string
	for _, device := range d.Devices {
		if n := len(models); n == 0 || models[n-1] != device.Model {
			models = append(models, device.Model)
		}
	}
	return d.Summary(strings.Join(models, "+"))
}

// decisionKey identifies an outcome across retries: counts may differ, what
// was chosen or stood in the way may not.
func decisionKey(d *decide.Decision) string {
	wrong := ""
	if d.Class == v1alpha1.FailurePolicyInvalid {
		wrong = lasting(d.Class, d.Message)
	}
	parts := []string{string(d.Outcome), string(d.Class), wrong, d.Policy, fmt.Sprint(d.PolicyRevision), d.PolicyHash, d.Tier, d.Node, d.IdempotencyKey}
	for _, device := range d.Devices {
		parts = append(parts, device.Driver, device.Pool, device.Device)
	}
	if d.Outcome != v1alpha1.OutcomeAllocated {
		for _, tier := range d.Tiers {
			parts = append(parts, tier.Name)
			for _, r := range tier.Rejections {
				if code := string(settled(r.Code)); code != parts[len(parts)-1] {
					parts = append(parts, code)
				}
			}
		}
	}
	return digest(parts...)
}

// settled makes no difference between a device in use and one about to be: for
// the Pod that waits it is the same.
func settled(code v1alpha1.Reason) v1alpha1.Reason {
	if code == v1alpha1.ReasonReserved {
		return v1alpha1.ReasonInUse
	}
	return code
}

// counts are the numbers in front of reason codes.
var counts = regexp.MustCompile(`\b\d+ ([A-Z])`)

// sameMessage compares two messages but for how many devices each reason
// stands for. It is how a restarted scheduler knows what was told already.
func sameMessage(a, b string) bool { return normal(a) == normal(b) }

func normal(message string) string {
	message = counts.ReplaceAllString(message, "# $1")
	message = strings.ReplaceAll(message, string(v1alpha1.ReasonReserved), string(v1alpha1.ReasonInUse))
	return strings.ReplaceAll(message, "# InUse, # InUse", "# InUse")
}

// RecordName is the AllocationDecision's name: the same outcome of the same Pod,
// told as often before, has the same name, so that it is never recorded twice.
func RecordName(pod *corev1.Pod, key string, before int) string {
	suffix := "-" + digest(string(pod.UID), key, strconv.Itoa(before))[:v1alpha1.RecordSuffix-1]
	return v1alpha1.RecordPrefix(pod.Name) + suffix
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
