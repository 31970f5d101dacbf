package records

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
}

// suffixLength is the length of what the scheduler adds to a Pod's name to name
// a record: a hyphen and 16 hexadecimal digits.
const suffixLength = 17

// pod is the Pod that a record is about, as far as its name tells: a very long
// name was cut.
func (r record) pod() types.NamespacedName {
	name := r.key.Name
	if at := len(name) - suffixLength; at > 0 && name[at] == '-' && strings.Trim(name[at+1:], "0123456789abcdef") == "" {
		name = name[:at]
	}
	return types.NamespacedName{Namespace: r.key.Namespace, Name: name}
}

// expired returns the records that are not to be kept, by namespace and the
// oldest first: those beyond the age, and the oldest beyond the number. The
// newest record of each Pod that is there is kept in any case, because it says
// why the Pod has the devices that it has, or none.
func (r Retention) expired(all []record, pods sets.Set[types.NamespacedName], now time.Time) []record {
	newestFirst := slices.Clone(all)
	slices.SortFunc(newestFirst, func(a, b record) int {
		return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), b.created.Compare(a.created), strings.Compare(b.key.Name, a.key.Name))
	})
	var gone []record
	seen := sets.New[types.NamespacedName]()
	number, namespace := 0, ""
	for _, rec := range newestFirst {
		if rec.key.Namespace != namespace {
			number, namespace = 0, rec.key.Namespace
		}
		number++
		pod := rec.pod()
		newest := !seen.Has(pod)
		seen.Insert(pod)
		if newest && pods.Has(pod) {
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
