// Package api_test holds the CRDs and the Go code of the API together: on
// every object of its tables a real API server and Validate must come to the
// same verdict and name the same fields, and the server's defaults must be
// Default's.
package api_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// kind is what every object of the API can do.
type kind interface {
	client.Object
	Default()
	Validate() field.ErrorList
}

// judgement is one object and the fields for which it must be refused.
type judgement struct {
	name   string
	object kind
	// refused lists the field paths; none means that it must be accepted.
	refused []string
	// server lists the API server's paths where a CRD can't be as precise.
	server []string
}

// wholeObject is the path that the API server gives for a rule about metadata.
const wholeObject = "<nil>"

// judge lets both sides judge each object, and compares what they fill in.
func judge(t *testing.T, table []judgement) {
	t.Helper()
	server := apiserver.Get(t)
	for _, j := range table {
		t.Run(j.name, func(t *testing.T) {
			ours := j.object.DeepCopyObject().(kind)
			ours.Default()
			if got := paths(ours.Validate()); !slices.Equal(got, sorted(j.refused)) {
				t.Errorf("Validate refuses %q, want %q: %v", got, sorted(j.refused), ours.Validate().ToAggregate())
			}
			theirs := j.object.DeepCopyObject().(kind)
			err := server.Client.Create(t.Context(), theirs, client.DryRunAll)
			want := j.refused
			if len(j.server) > 0 {
				want = j.server
			}
			if got := refusedFields(t, err); !slices.Equal(got, sorted(want)) {
				t.Errorf("the API server refuses %q, want %q: %v", got, sorted(want), err)
			}
			if err == nil {
				requireSameContent(t, ours, theirs)
			}
		})
	}
}

// requireSameContent compares but for what a server adds to metadata.
func requireSameContent(t *testing.T, ours, theirs kind) {
	t.Helper()
	theirs = theirs.DeepCopyObject().(kind)
	theirs.SetUID("")
	theirs.SetCreationTimestamp(metav1.Time{})
	theirs.SetGeneration(0)
	theirs.SetManagedFields(nil)
	theirs.SetResourceVersion("")
	theirs.GetObjectKind().SetGroupVersionKind(ours.GetObjectKind().GroupVersionKind())
	if !apiequality.Semantic.DeepEqual(ours, theirs) {
		t.Errorf("Default gives\n%#v\nthe API server\n%#v", ours, theirs)
	}
}

func paths(errs field.ErrorList) []string {
	found := sets.New[string]()
	for _, e := range errs {
		found.Insert(e.Field)
	}
	return sets.List(found)
}

// refusedFields reads the fields from an answer of the API server; none from
// an accepted object.
func refusedFields(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
		t.Fatalf("the API server did not judge the object: %v", err)
	}
	found := sets.New[string]()
	for _, c := range status.ErrStatus.Details.Causes {
		if strings.Contains(c.Message, "some validation rules were not checked") {
			continue
		}
		found.Insert(c.Field)
	}
	return sets.List(found)
}

func sorted(fields []string) []string {
	if len(fields) == 0 {
		return nil
	}
	return sets.List(sets.New(fields...))
}
