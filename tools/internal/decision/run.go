package decision

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/revise"
)

// engine is a decide.State, journalled or not.
type engine interface {
	Put(runtime.Object) error
	Decide(decide.Query) (*decide.Decision, error)
	Assume(*decide.Decision, bool) error
}

// Settings say how Run decides.
type Settings struct {
	// Now is the evaluation time; zero means the newest time in the input, and
	// where there is none the beginning of 1970.
	Now time.Time
	// Examples are the devices named for each reason; negative for all.
	Examples int
	// Journal, where not nil, gets the bundle.
	Journal io.Writer
	// Warn says what the caller of the command should know.
	Warn func(format string, args ...any)
}

// mostUndecidable is how many Pods that can't be decided are told one by one.
const mostUndecidable = 10

// Run decides every Pod of the set that waits for devices and stands at no
// scheduling gate, one after another; each sees what the earlier ones took.
// Policies that were changed in the set are revised first. A Pod of a cluster that
// names what is not there waits with the class of that, as it does in the
// cluster. Errors are of *manifest.Error, except for one of writing the journal
// and for the context's.
func Run(ctx context.Context, set *manifest.Set, s Settings) ([]*decide.Decision, error) {
	set, changes := revise.Policies(set)
	for _, c := range changes {
		s.Warn("%s", c)
	}
	opts := decide.Options{NodeChecks: decide.BuiltinNodeChecks, Examples: s.Examples}
	var e engine
	var recorder *journal.Recorder
	if s.Journal != nil {
		recorder = journal.NewRecorder(opts, "", s.Journal)
		e = recorder
	} else {
		e = decide.NewState(opts)
	}
	for _, o := range set.Objects {
		if _, record := o.Object.(*v1alpha1.AllocationDecision); record {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := e.Put(o.Object); err != nil {
			if _, policy := o.Object.(*v1alpha1.AcceleratorPolicy); policy && manifest.FromCluster(o.Meta()) {
				continue // reading warned of it; Pods have the revisions that were made before
			}
			return nil, blame(o, err)
		}
	}
	now := s.Now
	if now.IsZero() {
		now = set.Newest()
	}
	if now.IsZero() {
		now = time.Unix(0, 0)
	}
	decisions := []*decide.Decision{}
	named, undecidable := newClaims(set), 0
	for _, q := range queue(set) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d, err := e.Decide(decide.Query{
			Pod: types.NamespacedName{Namespace: q.pod.Namespace, Name: q.pod.Name},
			Now: now.UTC(), Attempt: 1,
		})
		if err != nil {
			if !manifest.FromCluster(q.pod) || !errors.Is(err, decide.ErrNotFound) && !errors.Is(err, decide.ErrInvalid) {
				return nil, blame(q.source, err)
			}
			d = waits(q.pod, err, now)
			if undecidable++; undecidable <= mostUndecidable {
				s.Warn("%v. It waits with the class %s, as in the cluster, unless the input lacks what the cluster has", blame(q.source, err), d.Class)
			}
			decisions = append(decisions, d)
			continue
		}
		if err := e.Assume(d, false); err != nil {
			return nil, blame(q.source, err)
		}
		for _, claim := range named.allocated(q.pod, d) {
			if err := e.Put(claim); err != nil {
				return nil, blame(q.source, err)
			}
		}
		decisions = append(decisions, d)
	}
	if left := undecidable - mostUndecidable; left > 0 {
		s.Warn("%d further Pods name what is not there", left)
	}
	if recorder != nil {
		if err := recorder.Seal(); err != nil {
			return nil, err
		}
	}
	return decisions, nil
}

// waits is what stands for the decision about a Pod that names what is not there.
func waits(pod *corev1.Pod, why error, now time.Time) *decide.Decision {
	d := &decide.Decision{Namespace: pod.Namespace}
	d.Pod, d.PodUID = pod.Name, pod.UID
	d.Outcome, d.Class = v1alpha1.OutcomePending, v1alpha1.FailurePolicyInvalid
	for _, name := range claimNames(pod) {
		if strings.Contains(why.Error(), fmt.Sprintf("ResourceClaim %q, ", name)) {
			d.Class = v1alpha1.FailureClaimGone
		}
	}
	d.Message = v1alpha1.ClipMessage(fmt.Sprintf("%s: %v.", d.Outcome, why))
	d.Attempt, d.EngineVersion = 1, decide.EngineVersion
	at := metav1.NewMicroTime(now.UTC())
	d.DecidedAt = &at
	return d
}

// claimNames are the claims that a Pod names or that were made for it.
func claimNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.ResourceClaims {
		names = append(names, ptr.Deref(c.ResourceClaimName, ""))
	}
	for _, c := range pod.Status.ResourceClaimStatuses {
		names = append(names, ptr.Deref(c.ResourceClaimName, ""))
	}
	return nonEmpty(names...)
}

// fieldPath is a path as the engine puts it before what it says.
var fieldPath = regexp.MustCompile(`^([a-z][A-Za-z]*[.\[][^ ]*): `)

// blame says that the engine refuses an object, with the field where it tells one.
func blame(o manifest.Object, err error) error {
	msg := strings.TrimPrefix(err.Error(), o.String()+", ")
	out := &manifest.Error{Source: o.Source, Object: o.String(), Msg: msg, Err: err}
	if m := fieldPath.FindStringSubmatch(msg); m != nil {
		out.Field, out.Msg = m[1], strings.TrimPrefix(msg, m[0])
	}
	if errors.Is(err, decide.ErrNotFound) {
		out.Msg += "; add it to the input"
	}
	return out
}

// tally counts decisions by outcome.
func tally(decisions []*decide.Decision) map[v1alpha1.Outcome]int {
	n := map[v1alpha1.Outcome]int{}
	for _, d := range decisions {
		n[d.Outcome]++
	}
	return n
}

// summary is the tally in one line, with how many Pods were not decided.
func summary(decisions []*decide.Decision, held []Gated) string {
	n := tally(decisions)
	pods := "Pods"
	if len(decisions) == 1 {
		pods = "Pod"
	}
	line := fmt.Sprintf("%d %s: %d allocated, %d pending, %d unsatisfiable", len(decisions), pods,
		n[v1alpha1.OutcomeAllocated], n[v1alpha1.OutcomePending], n[v1alpha1.OutcomeUnsatisfiable])
	if len(held) > 0 {
		line += fmt.Sprintf("; %d at a gate, not decided", len(held))
	}
	return line
}
