package invariants

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// History is what was observed, in the order of observation.
type History []Entry

// Entry is one observation: exactly one of what follows the type is set.
type Entry struct {
	// At is when it was observed.
	At time.Time `json:"at"`
	// Type says what happened to the object: ADDED, MODIFIED or DELETED. The
	// object is as it was afterwards, or last.
	Type     watch.EventType              `json:"type,omitempty"`
	Pod      *corev1.Pod                  `json:"pod,omitempty"`
	Claim    *resourcev1.ResourceClaim    `json:"claim,omitempty"`
	Slice    *resourcev1.ResourceSlice    `json:"slice,omitempty"`
	Quota    *v1alpha1.TenantQuota        `json:"quota,omitempty"`
	Node     *corev1.Node                 `json:"node,omitempty"`
	Rule     *resourcev1.DeviceTaintRule  `json:"rule,omitempty"`
	Revision *v1alpha1.PolicyRevision     `json:"revision,omitempty"`
	Record   *v1alpha1.AllocationDecision `json:"record,omitempty"`
	Event    *eventsv1.Event              `json:"event,omitempty"`
	Host     *Host                        `json:"host,omitempty"`
	Probe    *Probe                       `json:"probe,omitempty"`
	// Started says that a scheduler was started.
	Started bool `json:"started,omitempty"`
	// Gap says why changes before this entry may have gone unseen.
	Gap string `json:"gap,omitempty"`
}

// Host is what lay on a node when somebody looked.
type Host struct {
	Node string `json:"node"`
	// CDI are the claims that have a CDI file.
	CDI []types.UID `json:"cdi,omitempty"`
	// Prepared are the claims in the driver's checkpoint.
	Prepared []types.UID `json:"prepared,omitempty"`
}

// Probe is what a container saw of its devices.
type Probe struct {
	Pod  types.UID `json:"pod"`
	Name string    `json:"name"`
	Node string    `json:"node"`
	// Claims are the claims of the Pod. Pods that share one may share devices.
	Claims  []types.UID `json:"claims,omitempty"`
	Devices []string    `json:"devices,omitempty"`
}

// object is the API object of the entry, or nil.
func (e *Entry) object() metav1.Object {
	switch {
	case e.Pod != nil:
		return e.Pod
	case e.Claim != nil:
		return e.Claim
	case e.Slice != nil:
		return e.Slice
	case e.Quota != nil:
		return e.Quota
	case e.Node != nil:
		return e.Node
	case e.Rule != nil:
		return e.Rule
	case e.Revision != nil:
		return e.Revision
	case e.Record != nil:
		return e.Record
	case e.Event != nil:
		return e.Event
	default:
		return nil
	}
}

// Version is the revision of the store at which the entry's object became what
// it is; false for observations of other things. Kubernetes promises since 1.35
// that the versions of one cluster's objects can be compared as numbers.
func (e *Entry) Version() (uint64, bool) {
	object := e.object()
	if object == nil {
		return 0, false
	}
	v, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return v, err == nil
}

// ByVersion returns the entries about API objects in the order in which the
// changes happened. Each kind is watched on its own, so observation alone says
// little about the order between a claim and a slice.
func (h History) ByVersion() History {
	var objects History
	for _, e := range h {
		if _, ok := e.Version(); ok {
			objects = append(objects, e)
		}
	}
	slices.SortStableFunc(objects, func(a, b Entry) int {
		x, _ := a.Version()
		y, _ := b.Version()
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		default:
			return 0
		}
	})
	return objects
}

// Gaps are the reasons why the history may lack something.
func (h History) Gaps() []string {
	var gaps []string
	for _, e := range h {
		if e.Gap != "" {
			gaps = append(gaps, e.Gap)
		}
	}
	return gaps
}

// end is when the last observation was made.
func (h History) end() time.Time {
	var last time.Time
	for _, e := range h {
		if e.At.After(last) {
			last = e.At
		}
	}
	return last
}

// Write writes the history as JSON lines.
func (h History) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	for i := range h {
		if err := encoder.Encode(&h[i]); err != nil {
			return fmt.Errorf("writing entry %d of a history, %w", i+1, err)
		}
	}
	return nil
}

// Read reads what Write wrote.
func Read(r io.Reader) (History, error) {
	decoder := json.NewDecoder(bufio.NewReader(r))
	decoder.DisallowUnknownFields()
	var h History
	for {
		var e Entry
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading entry %d of a history, %w", len(h)+1, err)
		}
		h = append(h, e)
	}
}
