package records

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Retention bounds the records that are kept.
type Retention struct {
	// MaxAge is how long a record is kept after it was written; zero for ever.
	MaxAge time.Duration
	// MaxPerNamespace is how many records a namespace may have; zero for any
	// number.
	MaxPerNamespace int
}

// Defaults of the retention.
const (
	DefaultMaxAge          = 7 * 24 * time.Hour
	DefaultMaxPerNamespace = 5000
)

// record is what retention looks at of an AllocationDecision.
type record struct {
	key     types.NamespacedName
	uid     types.UID
	created time.Time
	// instead names the record in whose place it was made, or is "".
	instead string
}

// pod is the prefix of the Pod that a record is about, as its name tells.
func (r record) pod() types.NamespacedName {
	name := r.key.Name
	if at := len(name) - v1alpha1.RecordSuffix; at > 0 && name[at] == '-' && strings.Trim(name[at+1:], "0123456789abcdef") == "" {
		name = name[:at]
	}
	return types.NamespacedName{Namespace: r.key.Namespace, Name: name}
}

// living is what is known of the Pods that are there.
type living struct {
	// pods are their prefixes.
	pods sets.Set[types.NamespacedName]
	// named are the records that their Bindings named.
	named sets.Set[types.NamespacedName]
}

// names says whether a Binding named the record, or the one in whose place it is.
func (l living) names(r record) bool {
	return l.named.Has(r.key) || r.instead != "" && l.named.Has(types.NamespacedName{Namespace: r.key.Namespace, Name: r.instead})
}

// expired returns the records that are not to be kept, by namespace and the
// oldest first: those beyond the age, and the oldest beyond the number. Of each
// Pod that is there the record that its Binding named is kept in any case, or the
// newest where there is none, because it says why the Pod has the devices that it
// has, or none.
func (r Retention) expired(all []record, there living, now time.Time) []record {
	newestFirst := slices.Clone(all)
	slices.SortFunc(newestFirst, func(a, b record) int {
		return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), b.created.Compare(a.created), strings.Compare(b.key.Name, a.key.Name))
	})
	var gone []record
	seen := sets.New[types.NamespacedName]()
	for _, rec := range newestFirst {
		if there.names(rec) {
			seen.Insert(rec.pod())
		}
	}
	number, namespace := 0, ""
	for _, rec := range newestFirst {
		if rec.key.Namespace != namespace {
			number, namespace = 0, rec.key.Namespace
		}
		number++
		pod := rec.pod()
		newest := !seen.Has(pod)
		seen.Insert(pod)
		if there.names(rec) || newest && there.pods.Has(pod) {
			continue
		}
		old := r.MaxAge > 0 && now.Sub(rec.created) > r.MaxAge
		if old || r.MaxPerNamespace > 0 && number > r.MaxPerNamespace {
			gone = append(gone, rec)
		}
	}
	slices.SortStableFunc(gone, func(a, b record) int {
		return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), a.created.Compare(b.created), strings.Compare(a.key.Name, b.key.Name))
	})
	return gone
}
