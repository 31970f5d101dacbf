package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/decide"
)

// Format is the version of the format that is written, and the only one read.
const Format = 1

// MaxLine bounds one line, in bytes. An object of the API server has at most
// some 3 MiB; the rest is room for a decision with every example.
const MaxLine = 64 << 20

// Header is the first line of a journal.
type Header struct {
	// Journal is the version of the format.
	Journal int `json:"journal"`
	// EngineVersion is decide.EngineVersion of the engine that answered.
	EngineVersion string `json:"engineVersion"`
	// Options are those of the State.
	Options options `json:"options"`
}

// options are decide.Options in words.
type options struct {
	NodeChecks string `json:"nodeChecks"`
	Examples   int    `json:"examples"`
}

const (
	checksBuiltin  = "Builtin"
	checksExternal = "External"
)

func optionsOf(o decide.Options) options {
	checks := checksBuiltin
	if o.NodeChecks == decide.ExternalNodeChecks {
		checks = checksExternal
	}
	return options{NodeChecks: checks, Examples: o.Examples}
}

func (o options) decide() (decide.Options, error) {
	switch o.NodeChecks {
	case checksBuiltin:
		return decide.Options{NodeChecks: decide.BuiltinNodeChecks, Examples: o.Examples}, nil
	case checksExternal:
		return decide.Options{NodeChecks: decide.ExternalNodeChecks, Examples: o.Examples}, nil
	}
	return decide.Options{}, fmt.Errorf("options.nodeChecks is %q, not %s or %s", o.NodeChecks, checksBuiltin, checksExternal)
}

// op says what an entry is.
type op string

const (
	opPut    op = "put"
	opDelete op = "delete"
	opDecide op = "decide"
	opAssume op = "assume"
	opForget op = "forget"
	opDigest op = "digest"
)

// entry is one line after the header.
type entry struct {
	// N counts from 1.
	N  int64 `json:"n"`
	Op op    `json:"op"`
	// Kind and Object are what was put.
	Kind   string          `json:"kind,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
	// Namespace and Name are what was deleted or forgotten.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Query was asked, and answered by Decision or by Error.
	Query    *query          `json:"query,omitempty"`
	Decision json.RawMessage `json:"decision,omitempty"`
	Error    string          `json:"error,omitempty"`
	// InFlight belongs to assume.
	InFlight bool `json:"inFlight,omitempty"`
	// Digest is the State's here.
	Digest string `json:"digest,omitempty"`
}

// query is decide.Query in JSON.
type query struct {
	Namespace      string            `json:"namespace"`
	Pod            string            `json:"pod"`
	Now            time.Time         `json:"now"`
	NodeRejections map[string]string `json:"nodeRejections,omitempty"`
	Attempt        int32             `json:"attempt,omitempty"`
	Group          *decide.GroupTier `json:"group,omitempty"`
}

func queryOf(q decide.Query) *query {
	return &query{Namespace: q.Pod.Namespace, Pod: q.Pod.Name, Now: q.Now.UTC(), NodeRejections: q.NodeRejections, Attempt: q.Attempt, Group: q.Group}
}

func (q *query) decide() decide.Query {
	return decide.Query{
		Pod: types.NamespacedName{Namespace: q.Namespace, Name: q.Pod},
		Now: q.Now, NodeRejections: q.NodeRejections, Attempt: q.Attempt, Group: q.Group,
	}
}

// marshal writes JSON in one line as it is compared: without HTML's escapes.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
