package manifest

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is one object and where it was read. Its type fields are set, our own
// kinds have their defaults, and managedFields are gone.
type Object struct {
	runtime.Object
	Source Source
}

// Meta returns the object's metadata.
func (o Object) Meta() metav1.Object { return o.Object.(metav1.Object) }

// String gives "Kind namespace/name".
func (o Object) String() string {
	m := o.Meta()
	if m.GetNamespace() == "" {
		return KindOf(o.Object) + " " + m.GetName()
	}
	return KindOf(o.Object) + " " + m.GetNamespace() + "/" + m.GetName()
}

// Errorf makes an error about a field of the object.
func (o Object) Errorf(path, format string, args ...any) *Error {
	return &Error{Source: o.Source, Object: o.String(), Field: path, Msg: fmt.Sprintf(format, args...)}
}

func (o Object) key() key {
	m := o.Meta()
	return key{kind: KindOf(o.Object), namespace: m.GetNamespace(), name: m.GetName()}
}

type key struct{ kind, namespace, name string }

// Set is everything that was read.
type Set struct {
	// Objects are in the order of the input.
	Objects []Object
	index   map[key]int
	skipped map[schema.GroupKind]int
	// uncompiled and unsettled are what is wrong with objects of a cluster by
	// themselves, and beside others.
	uncompiled, unsettled []*Error
	cel                   compiled
	// maxValues bounds the values of one YAML document.
	maxValues int
}

func newSet(maxBytes int64) *Set {
	return &Set{maxValues: int(maxBytes / bytesPerValue), index: map[key]int{}, skipped: map[schema.GroupKind]int{}, cel: compiled{}}
}

// Find returns the object of a kind and name. Cluster-wide kinds have an empty
// namespace.
func (s *Set) Find(kind, namespace, name string) (Object, bool) {
	i, ok := s.index[key{kind, namespace, name}]
	if !ok {
		return Object{}, false
	}
	return s.Objects[i], true
}

// All yields the objects of one type, in the order of the input, each with
// where it was read.
func All[T runtime.Object](s *Set) iter.Seq2[T, Object] {
	return func(yield func(T, Object) bool) {
		for _, o := range s.Objects {
			if t, ok := o.Object.(T); ok && !yield(t, o) {
				return
			}
		}
	}
}

// Rewrite returns a set in which change has replaced objects by others of the
// same kind and name or, where it gives nil, left them out, with further objects
// behind them. The set itself stays as it is.
func (s *Set) Rewrite(change func(Object) runtime.Object, more ...Object) *Set {
	out := &Set{index: map[key]int{}, skipped: s.skipped, uncompiled: s.uncompiled, unsettled: s.unsettled, cel: s.cel, maxValues: s.maxValues}
	add := func(o Object) {
		out.index[o.key()] = len(out.Objects)
		out.Objects = append(out.Objects, o)
	}
	for _, o := range s.Objects {
		if o.Object = change(o); o.Object != nil {
			add(o)
		}
	}
	for _, o := range more {
		add(o)
	}
	return out
}

// mostUnsettled is how many unsettled objects are told one by one.
const mostUnsettled = 10

// Uncompiled are the policies of a cluster with CEL that does not compile: an API
// server lets them in, and ladder-controller makes no revision of them.
func (s *Set) Uncompiled() []*Error { return s.uncompiled }

// Warnings says in one line what was skipped, and in one each which policies of a
// cluster do not compile and what its objects say about others that does not hold.
func (s *Set) Warnings() []string {
	warnings := s.whatWasSkipped()
	all := slices.Concat(s.uncompiled, s.unsettled)
	for i, err := range all {
		if i == mostUnsettled {
			return append(warnings, fmt.Sprintf("%d further policies and quotas are not as they should be", len(all)-i))
		}
		warnings = append(warnings, err.Error())
	}
	return warnings
}

func (s *Set) whatWasSkipped() []string {
	if len(s.skipped) == 0 {
		return nil
	}
	var names []string
	for gk, n := range s.skipped {
		name := gk.Kind
		if gk.Group != "" {
			name += "." + gk.Group
		}
		names = append(names, fmt.Sprintf("%s (%d)", clip(printable(name)), n))
	}
	sort.Strings(names)
	if left := len(names) - 12; left > 0 {
		names = append(names[:12], fmt.Sprintf("and %d further kinds", left))
	}
	return []string{"skipped kinds that are not read: " + strings.Join(names, ", ")}
}

// Newest is the latest time that any object states: created, started, changed,
// tainted, decided. A deletionTimestamp does not count, since it lies ahead.
// It is zero where there is none.
func (s *Set) Newest() time.Time {
	var newest time.Time
	for _, o := range s.Objects {
		deletion := o.Meta().GetDeletionTimestamp()
		o.Meta().SetDeletionTimestamp(nil)
		latest(reflect.ValueOf(o.Object), &newest)
		o.Meta().SetDeletionTimestamp(deletion)
	}
	return newest
}

var (
	timeType      = reflect.TypeFor[metav1.Time]()
	microTimeType = reflect.TypeFor[metav1.MicroTime]()
)

// latest raises newest to the latest time inside v.
func latest(v reflect.Value, newest *time.Time) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			latest(v.Elem(), newest)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			latest(v.Index(i), newest)
		}
	case reflect.Map:
		if v.Type().Elem().Kind() != reflect.Struct {
			return
		}
		for it := v.MapRange(); it.Next(); {
			latest(it.Value(), newest)
		}
	case reflect.Struct:
		var t time.Time
		switch v.Type() {
		case timeType:
			t = v.Interface().(metav1.Time).Time
		case microTimeType:
			t = v.Interface().(metav1.MicroTime).Time
		default:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					latest(v.Field(i), newest)
				}
			}
			return
		}
		if t.After(*newest) {
			*newest = t
		}
	}
}
