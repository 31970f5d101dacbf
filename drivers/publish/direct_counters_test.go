package publish

import (
	"errors"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpuladder.dev/ladder/policies/fleet"
)

// Boards that can be partitioned have counters, in a slice of their own. Another
// counter is a change, and a server that drops counters is found out.
func TestDirectPublishesCounters(t *testing.T) {
	f := fleet.New(fleet.Group{Name: "g", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 2, MIG: &fleet.MIG{}})
	client := cluster(t, f)
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Created: 2}); got != want {
		t.Errorf("first: got %+v, want %+v", got, want)
	}
	if found := published(t, client); len(found[0].Spec.SharedCounters) != 2 || len(found[1].Spec.Devices) != 52 {
		t.Errorf("%d counter sets and %d devices are published", len(found[0].Spec.SharedCounters), len(found[1].Spec.Devices))
	}
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Unchanged: 2}); got != want {
		t.Errorf("again: got %+v, want %+v", got, want)
	}
	given := f.Slices()
	given[0].Spec.SharedCounters[1].Counters["memory"] = resourcev1.Counter{Value: resource.MustParse("1Gi")}
	if got, want := publishAll(t, client, given, quick), (Summary{Updated: 1, Unchanged: 1}); got != want {
		t.Errorf("with another counter: got %+v, want %+v", got, want)
	}

	client = cluster(t, f)
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice).DeepCopy()
		slice.Spec.SharedCounters = nil
		return true, slice, nil
	})
	var dropped *resourceslice.DroppedFieldsError
	if _, err := Direct(t.Context(), client, f.Slices(), quick); !errors.As(err, &dropped) {
		t.Errorf("a server that drops counters: %v", err)
	}
}
