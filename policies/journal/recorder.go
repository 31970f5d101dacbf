package journal

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/manifest"
)

// ErrHistory occurs in [Recorder.Rotate] when the State can't be told again by
// its objects and charges alone, for instance when a charge's policy has gone
// since. The old journal goes on; a later try can succeed.
var ErrHistory = errors.New("the state depends on its history")

// Recorder is a decide.State whose calls are written to a journal. It has the
// State's methods. A failure to write never changes an answer: it is kept, and
// told by Err and Flush. Like the State, a Recorder is not safe for concurrent
// use, and State must not be changed past it.
type Recorder struct {
	state *decide.State
	opts  decide.Options
	name  string
	w     *bufio.Writer
	n     int64
	err   error

	// objects and assumed are what a snapshot needs.
	objects map[objectKey]runtime.Object
	assumed map[types.NamespacedName]assumption
}

type objectKey struct{ kind, namespace, name string }

func (k objectKey) compare(o objectKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// assumption is a decision that was charged and not taken back.
type assumption struct {
	order    int64
	decision *decide.Decision
	inFlight bool
}

// NewRecorder returns a Recorder with an empty State that writes to w. Where
// name is not empty, decisions name their place in the journal as "name#entry".
func NewRecorder(opts decide.Options, name string, w io.Writer) *Recorder {
	r := &Recorder{
		state: decide.NewState(opts), opts: opts,
		objects: map[objectKey]runtime.Object{}, assumed: map[types.NamespacedName]assumption{},
	}
	r.begin(name, w)
	return r
}

// begin opens a journal.
func (r *Recorder) begin(name string, w io.Writer) {
	r.name, r.w, r.n, r.err = name, bufio.NewWriterSize(w, 64<<10), 0, nil
	r.line(Header{Journal: Format, EngineVersion: decide.EngineVersion, Options: optionsOf(r.opts)})
}

// Rotate goes on in a new journal that begins with a snapshot of the State. If
// that is not possible ([ErrHistory], or an error of writing), the Recorder
// goes on in the old one and what was written to w is to be thrown away.
//
// The old journal is sealed; call Flush before to learn of a failure to write
// it. One that has failed already is no hindrance: its gap ends here.
func (r *Recorder) Rotate(name string, w io.Writer) error {
	_ = r.Seal() // told by Err, and by Flush before
	next := NewRecorder(r.opts, name, w)
	if err := next.restore(r.objects, r.assumed); err != nil {
		return fmt.Errorf("writing a snapshot, %w", err)
	}
	if next.state.Digest() != r.state.Digest() {
		return fmt.Errorf("writing a snapshot, %w", ErrHistory)
	}
	if err := next.Seal(); err != nil {
		return fmt.Errorf("writing a snapshot, %w", err)
	}
	// The State that has been lived with stays; only the writing moves.
	r.name, r.w, r.n, r.err = next.name, next.w, next.n, nil
	r.assumed = next.assumed
	return nil
}

// restore puts a snapshot: the objects, then what is charged, in its order. A
// charge that a written allocation has replaced is not charged again.
func (r *Recorder) restore(objects map[objectKey]runtime.Object, assumed map[types.NamespacedName]assumption) error {
	for _, k := range slices.SortedFunc(maps.Keys(objects), objectKey.compare) {
		if err := r.Put(objects[k]); err != nil {
			return err
		}
	}
	charges := slices.SortedFunc(maps.Values(assumed), func(a, b assumption) int { return cmp.Compare(a.order, b.order) })
	for _, a := range charges {
		if err := r.Assume(a.decision, a.inFlight); err != nil {
			return fmt.Errorf("%w: %w", ErrHistory, err)
		}
	}
	return nil
}

// Put is State.Put. An object that the State refuses is not written.
func (r *Recorder) Put(obj runtime.Object) error {
	if err := r.state.Put(obj); err != nil {
		return err
	}
	k, ok := keyOf(obj)
	if !ok {
		r.fail(fmt.Errorf("recording an object of type %T, which journals do not know", obj))
		return nil
	}
	if old, ok := r.objects[k].(*corev1.Pod); ok && old.UID != obj.(*corev1.Pod).UID {
		delete(r.assumed, types.NamespacedName{Namespace: k.namespace, Name: k.name}) // another Pod of this name
	}
	r.objects[k] = obj
	if raw, ok := r.raw(obj); ok {
		r.entry(entry{Op: opPut, Kind: k.kind, Object: raw})
	}
	return nil
}

// Delete is State.Delete.
func (r *Recorder) Delete(obj runtime.Object) error {
	if err := r.state.Delete(obj); err != nil {
		return err
	}
	k, ok := keyOf(obj)
	if !ok {
		r.fail(fmt.Errorf("recording an object of type %T, which journals do not know", obj))
		return nil
	}
	delete(r.objects, k)
	if k.kind == "Pod" {
		delete(r.assumed, types.NamespacedName{Namespace: k.namespace, Name: k.name})
	}
	r.entry(entry{Op: opDelete, Kind: k.kind, Namespace: k.namespace, Name: k.name})
	return nil
}

// Decide is State.Decide. The decision's journal field is set to its place.
func (r *Recorder) Decide(q decide.Query) (*decide.Decision, error) {
	d, err := r.state.Decide(q)
	e := entry{Op: opDecide, Query: queryOf(q)}
	if err != nil {
		e.Error = err.Error()
	} else {
		if r.name != "" {
			d.Journal = r.name + "#" + strconv.FormatInt(r.n+1, 10)
		}
		e.Decision, _ = r.raw(d)
	}
	r.entry(e)
	return d, err
}

// Candidates is State.Candidates. It is not written, since it changes nothing
// and Decide's answer is its first one.
func (r *Recorder) Candidates(q decide.Query) (iter.Seq[decide.Candidate], error) {
	return r.state.Candidates(q)
}

// FaultyNodes passes the question on; nothing depends on the answer but which
// error a Pod gets.
func (r *Recorder) FaultyNodes(q decide.Query) ([]string, error) { return r.state.FaultyNodes(q) }

// TierForGroup is State.TierForGroup. It is not written, since it changes
// nothing and the queries that follow from its answer hold it.
func (r *Recorder) TierForGroup(q decide.GroupQuery) (*decide.GroupTier, error) {
	return r.state.TierForGroup(q)
}

// Assume is State.Assume. The evidence of the decision is left out of the
// entry: it stands with the decision itself.
func (r *Recorder) Assume(d *decide.Decision, inFlight bool) error {
	if err := r.state.Assume(d, inFlight); err != nil {
		return err
	}
	bare := *d
	bare.Tiers, bare.Message, bare.Journal = nil, "", ""
	raw, ok := r.raw(&bare)
	if !ok {
		return nil
	}
	r.entry(entry{Op: opAssume, Decision: raw, InFlight: inFlight})
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return nil // nothing was charged
	}
	r.assumed[types.NamespacedName{Namespace: d.Namespace, Name: d.Pod}] = assumption{order: r.n, decision: &bare, inFlight: inFlight}
	return nil
}

// Assumed is State.Assumed. It is not written, since it changes nothing.
func (r *Recorder) Assumed(claim *resourceapi.ResourceClaim) bool { return r.state.Assumed(claim) }

// Forget is State.Forget.
func (r *Recorder) Forget(pod types.NamespacedName) {
	r.state.Forget(pod)
	delete(r.assumed, pod)
	r.entry(entry{Op: opForget, Namespace: pod.Namespace, Name: pod.Name})
}

// Seal writes the State's digest, so that a replay also compares what no later
// decision depends on, and flushes. Further entries may follow.
func (r *Recorder) Seal() error {
	r.entry(entry{Op: opDigest, Digest: r.state.Digest()})
	return r.Flush()
}

// Digest is State.Digest.
func (r *Recorder) Digest() string { return r.state.Digest() }

// Position is the number of the last entry, and 0 before the first.
func (r *Recorder) Position() int64 { return r.n }

// Err is the first failure to write, or nil.
func (r *Recorder) Err() error { return r.err }

// Flush hands everything written so far to the underlying writer.
func (r *Recorder) Flush() error {
	if r.err == nil {
		if err := r.w.Flush(); err != nil {
			r.fail(err)
		}
	}
	return r.err
}

func (r *Recorder) entry(e entry) {
	r.n++
	e.N = r.n
	r.line(e)
}

func (r *Recorder) line(v any) {
	raw, ok := r.raw(v)
	if !ok || r.err != nil {
		return
	}
	if _, err := r.w.Write(append(raw, '\n')); err != nil {
		r.fail(err)
	}
}

func (r *Recorder) raw(v any) (json.RawMessage, bool) {
	raw, err := marshal(v)
	if err != nil {
		r.fail(err)
		return nil, false
	}
	return raw, true
}

func (r *Recorder) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("writing the journal, %w", err)
	}
}

func keyOf(obj runtime.Object) (objectKey, bool) {
	kind := manifest.KindOf(obj)
	m, ok := obj.(metav1.Object)
	if kind == "" || !ok {
		return objectKey{}, false
	}
	return objectKey{kind, m.GetNamespace(), m.GetName()}, true
}
