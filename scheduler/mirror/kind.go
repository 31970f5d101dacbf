package mirror

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// object is a pointer to an API object.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// kind finds out what changed between two lists of the same kind. The sources
// return the same pointer until an object changes, so looking at pointers is
// enough.
type kind[T object] struct {
	round uint64
	seen  map[T]*mark
	byKey map[types.NamespacedName]T
	last  []T
}

// mark is the round in which an object was last seen.
type mark struct{ round uint64 }

func newKind[T object]() *kind[T] {
	return &kind[T]{seen: map[T]*mark{}, byKey: map[types.NamespacedName]T{}}
}

// diff returns what is new or changed in list and what is no longer there, both
// by namespace and name. A changed object is in added only.
func (k *kind[T]) diff(list []T) (added, gone []T) {
	if len(list) > 0 && slices.Equal(list, k.last) {
		return nil, nil
	}
	k.round++
	k.last = append(k.last[:0], list...)
	for _, obj := range list {
		if known := k.seen[obj]; known != nil {
			known.round = k.round
			continue
		}
		added = append(added, obj)
		k.seen[obj] = &mark{k.round}
	}
	if len(k.seen) > len(list) {
		for obj, m := range k.seen {
			if m.round == k.round {
				continue
			}
			delete(k.seen, obj)
			gone = append(gone, obj)
		}
	}
	for _, obj := range added {
		k.byKey[keyOf(obj)] = obj
	}
	gone = slices.DeleteFunc(gone, func(obj T) bool { return k.byKey[keyOf(obj)] != obj })
	for _, obj := range gone {
		delete(k.byKey, keyOf(obj))
	}
	slices.SortFunc(added, compareKeys)
	slices.SortFunc(gone, compareKeys)
	return added, gone
}

func keyOf[T object](obj T) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

func compareKeys[T object](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}
