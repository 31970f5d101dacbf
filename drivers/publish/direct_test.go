package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

var quick = Options{Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 4}}

var slicesResource = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceslices"}

func testFleet(nodes, gpus int) *fleet.Fleet {
	return fleet.New(fleet.Group{Name: "g", Nodes: nodes, Board: "L4", GPUs: gpus})
}

// cluster holds the nodes of a fleet, and refuses what an API server refuses
// and client-go's fake does not: updates of an object of another version.
func cluster(t *testing.T, f *fleet.Fleet) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset()
	for i, node := range f.Nodes() {
		node.UID = types.UID(fmt.Sprintf("uid-%d", i))
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

func published(t *testing.T, client *fake.Clientset) []resourcev1.ResourceSlice {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func publishAll(t *testing.T, client *fake.Clientset, given []*resourcev1.ResourceSlice, options Options) Summary {
	t.Helper()
	summary, err := Direct(t.Context(), client, given, options)
	if err != nil {
		t.Fatal(err)
	}
	return summary
}

// writes counts the calls that change slices.
func writes(client *fake.Clientset) int {
	count := 0
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "resourceslices" && slices.Contains([]string{"create", "update", "delete", "patch"}, action.GetVerb()) {
			count++
		}
	}
	return count
}

func TestDirectCreatesAndIsIdempotent(t *testing.T) {
	f := testFleet(5, 130)
	client := cluster(t, f)
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Created: 10}); got != want {
		t.Errorf("first: got %+v, want %+v", got, want)
	}
	found := published(t, client)
	for i, want := range f.Slices() {
		at := slices.IndexFunc(found, func(s resourcev1.ResourceSlice) bool { return s.Name == want.Name })
		if at < 0 {
			t.Fatalf("slice %s is not there", want.Name)
		}
		if got := found[at].Spec; !resourceslice.DevicesDeepEqual(got.Devices, want.Spec.Devices) || got.Pool != want.Spec.Pool || *got.NodeName != *want.Spec.NodeName {
			t.Errorf("slice %s is not as wanted", want.Name)
		}
		owner := found[at].OwnerReferences[0]
		if owner.Name != want.Spec.Pool.Name || owner.UID != types.UID(fmt.Sprintf("uid-%d", i/2)) || owner.Kind != "Node" {
			t.Errorf("slice %s belongs to %+v", want.Name, owner)
		}
	}
	before := writes(client)
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Unchanged: 10}); got != want {
		t.Errorf("second: got %+v, want %+v", got, want)
	}
	if got := writes(client); got != before {
		t.Errorf("the second time made %d calls", got-before)
	}
}

func TestDirectDoesNotChangeItsInput(t *testing.T) {
	f := testFleet(1, 2)
	given := f.Slices()
	publishAll(t, cluster(t, f), given, quick)
	if given[0].OwnerReferences != nil || given[0].Labels != nil || given[0].Spec.Pool.Generation != 1 {
		t.Errorf("the slice given was changed: %+v", given[0].ObjectMeta)
	}
}

// TestDirectGenerations: one call keeps the generation, several raise it, so
// that no reader takes a mixture of old and new slices for a complete pool.
func TestDirectGenerations(t *testing.T) {
	f := testFleet(1, 130)
	client := cluster(t, f)
	publishAll(t, client, f.Slices(), quick)
	generations := func() string {
		var all []string
		for _, slice := range published(t, client) {
			all = append(all, fmt.Sprintf("%d/%d", slice.Spec.Pool.Generation, slice.Spec.Pool.ResourceSliceCount))
		}
		return strings.Join(all, " ")
	}
	one := f.Slices()
	one[1].Spec.Devices[0].Attributes["extra"] = resourcev1.DeviceAttribute{BoolValue: new(bool)}
	if got, want := publishAll(t, client, one, quick), (Summary{Updated: 1, Unchanged: 1}); got != want {
		t.Errorf("one device: got %+v, want %+v", got, want)
	}
	if got := generations(); got != "1/2 1/2" {
		t.Errorf("one device: generations %s", got)
	}
	f.Groups[0].DriverVersion = "550.163.01"
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Updated: 2}); got != want {
		t.Errorf("all devices: got %+v, want %+v", got, want)
	}
	if got := generations(); got != "2/2 2/2" {
		t.Errorf("all devices: generations %s", got)
	}
	f.Groups[0].GPUs = 8
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Updated: 1, Deleted: 1}); got != want {
		t.Errorf("fewer: got %+v, want %+v", got, want)
	}
	if got := generations(); got != "2/1" {
		t.Errorf("fewer: generations %s", got)
	}
	f.Groups[0].GPUs = 200
	publishAll(t, client, f.Slices(), quick)
	if got := generations(); got != "3/2 3/2" {
		t.Errorf("more: generations %s", got)
	}
	if got, want := publishAll(t, client, f.Slices(), quick), (Summary{Unchanged: 2}); got != want {
		t.Errorf("again: got %+v, want %+v", got, want)
	}
}

func TestDirectDeletesWhatIsStale(t *testing.T) {
	f := testFleet(3, 1)
	client := cluster(t, f)
	publishAll(t, client, f.Slices(), quick)
	foreign := func(name, driver, pool string) {
		node := "g-0000"
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	foreign("other-driver", "gpu.example.com", "g-0001")
	foreign("other-publisher", v1alpha1.DriverName, "elsewhere")
	foreign("in-our-pool", v1alpha1.DriverName, "g-0000")
	two := f.Slices()[:2]

	if got, want := publishAll(t, client, two, Options{Partial: true, Backoff: quick.Backoff}), (Summary{Unchanged: 2, Deleted: 1}); got != want {
		t.Errorf("partial: got %+v, want %+v", got, want)
	}
	if got, want := publishAll(t, client, two, quick), (Summary{Unchanged: 2, Deleted: 1}); got != want {
		t.Errorf("whole: got %+v, want %+v", got, want)
	}
	var names []string
	for _, slice := range published(t, client) {
		names = append(names, slice.Name)
	}
	want := []string{"00000-gpu.gpuladder.dev-g-0000", "00000-gpu.gpuladder.dev-g-0001", "other-driver", "other-publisher"}
	if !slices.Equal(names, want) {
		t.Errorf("left are %v, want %v", names, want)
	}
}

// TestDirectRetries lets each kind of call fail in ways that pass.
func TestDirectRetries(t *testing.T) {
	for name, passing := range map[string]error{
		"conflict":    apierrors.NewConflict(slicesResource, "x", errors.New("changed")),
		"busy":        apierrors.NewTooManyRequests("busy", 0),
		"unavailable": apierrors.NewServiceUnavailable("starting"),
		"timeout":     apierrors.NewServerTimeout(slicesResource, "write", 0),
		"internal":    apierrors.NewInternalError(errors.New("etcd has no leader")),
	} {
		for _, verb := range []string{"list", "create", "update", "delete"} {
			t.Run(name+"/"+verb, func(t *testing.T) {
				f := testFleet(3, 1)
				client := cluster(t, f)
				publishAll(t, client, f.Slices(), quick)
				f.Groups[0].Nodes, f.Groups[0].DriverVersion = 2, "550.163.01"
				f.Groups = append(f.Groups, fleet.Group{Name: "h", Nodes: 1, Board: "T4", GPUs: 1})
				f.Default()
				node := f.Nodes()[2]
				if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				var failed atomic.Int64
				client.PrependReactor(verb, "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
					return failed.Add(1) <= 2, nil, passing
				})
				summary, err := Direct(t.Context(), client, f.Slices(), Options{Parallelism: 2, Backoff: quick.Backoff})
				if err != nil {
					t.Fatal(err)
				}
				if want := (Summary{Created: 1, Updated: 2, Deleted: 1}); summary != want {
					t.Errorf("got %+v, want %+v", summary, want)
				}
				if failed.Load() < 3 {
					t.Errorf("the fault fired %d times", failed.Load())
				}
				if got := len(published(t, client)); got != 3 {
					t.Errorf("%d slices are left, want 3", got)
				}
			})
		}
	}
}

// TestDirectGivesUp: an error that stays ends at once for its pool and does not
// keep the others; one that passes ends when the attempts are used up.
func TestDirectGivesUp(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		calls int64
	}{
		"forbidden": {apierrors.NewForbidden(slicesResource, "x", errors.New("no")), 1},
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil), 1},
		"busy":      {apierrors.NewTooManyRequests("busy", 0), 4},
	} {
		t.Run(name, func(t *testing.T) {
			f := testFleet(3, 1)
			client := cluster(t, f)
			var calls atomic.Int64
			client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
				slice := action.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice)
				if slice.Spec.Pool.Name != "g-0001" {
					return false, nil, nil
				}
				calls.Add(1)
				return true, nil, test.err
			})
			summary, err := Direct(t.Context(), client, f.Slices(), quick)
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), "1 of 3 pools failed") || !strings.Contains(err.Error(), "g-0001") {
				t.Errorf("got error %v", err)
			}
			if summary.Created != 2 || len(published(t, client)) != 2 {
				t.Errorf("got %+v, the other two pools should be there", summary)
			}
			if calls.Load() != test.calls {
				t.Errorf("got %d calls, want %d", calls.Load(), test.calls)
			}
		})
	}
}

func TestDirectTellsTheFirstErrorsOnly(t *testing.T) {
	f := testFleet(20, 1)
	client := cluster(t, f)
	client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(slicesResource, "", errors.New("no"))
	})
	_, err := Direct(t.Context(), client, f.Slices(), quick)
	if err == nil || !strings.Contains(err.Error(), "20 of 20 pools failed") || strings.Count(err.Error(), "writing pool") != maxShownErrors {
		t.Errorf("got %v", err)
	}
}

func TestDirectEndsWithItsContext(t *testing.T) {
	f := testFleet(1, 1)
	client := cluster(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, apierrors.NewServiceUnavailable("starting")
	})
	_, err := Direct(ctx, client, f.Slices(), Options{Backoff: wait.Backoff{Duration: time.Hour, Steps: 3}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestDirectNoticesDroppedFields: a server that leaves out a field that it does
// not know must not pass for success.
func TestDirectNoticesDroppedFields(t *testing.T) {
	f := testFleet(1, 1)
	client := cluster(t, f)
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice).DeepCopy()
		slice.Spec.Devices[0].Taints = nil
		return true, slice, nil
	})
	given := f.Slices()
	given[0].Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "example.com/bad", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	_, err := Direct(t.Context(), client, given, quick)
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) {
		t.Errorf("got %v", err)
	}
}

func TestDirectRefuses(t *testing.T) {
	f := testFleet(2, 1)
	change := func(do func([]*resourcev1.ResourceSlice)) []*resourcev1.ResourceSlice {
		given := f.Slices()
		do(given)
		return given
	}
	for name, test := range map[string]struct {
		given []*resourcev1.ResourceSlice
		want  string
	}{
		"no node":      {change(func(s []*resourcev1.ResourceSlice) { s[0].Spec.NodeName = nil }), "needs a name and a node"},
		"no name":      {change(func(s []*resourcev1.ResourceSlice) { s[1].Name = "" }), "needs a name and a node"},
		"other driver": {change(func(s []*resourcev1.ResourceSlice) { s[0].Spec.Driver = "gpu.nvidia.com" }), `its driver is "gpu.nvidia.com"`},
		"two nodes":    {change(func(s []*resourcev1.ResourceSlice) { s[1].Spec.Pool.Name = "g-0000" }), "spans the nodes"},
		"node is gone": {testFleet(3, 1).Slices(), `there is no node "g-0002"`},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(t, f)
			_, err := Direct(t.Context(), client, test.given, quick)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
			if got := writes(client); got != 0 {
				t.Errorf("%d calls were made", got)
			}
		})
	}
}

// TestDirectBoundsItsParallelism counts how many calls are under way at once.
func TestDirectBoundsItsParallelism(t *testing.T) {
	f := testFleet(30, 1)
	client := cluster(t, f)
	var mu sync.Mutex
	running, most := 0, 0
	client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		running--
		mu.Unlock()
		return false, nil, nil
	})
	publishAll(t, client, f.Slices(), Options{Parallelism: 3, Backoff: quick.Backoff})
	if most > 3 {
		t.Errorf("%d calls at once, want at most 3", most)
	}
}

// TestDirectTwiceAtOnce: two that publish the same end with what each wanted.
func TestDirectTwiceAtOnce(t *testing.T) {
	f := testFleet(20, 2)
	client := cluster(t, f)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			if _, err := Direct(t.Context(), client, f.Slices(), quick); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := len(published(t, client)); got != 20 {
		t.Errorf("got %d slices, want 20", got)
	}
	if got := publishAll(t, client, f.Slices(), quick); got.Unchanged != 20 {
		t.Errorf("got %+v afterwards", got)
	}
}

func TestNodeObjectsAreOnlyRead(t *testing.T) {
	f := testFleet(2, 1)
	client := cluster(t, f)
	client.ClearActions()
	publishAll(t, client, f.Slices(), quick)
	for _, action := range client.Actions() {
		if action.GetResource() == corev1.SchemeGroupVersion.WithResource("nodes") && action.GetVerb() != "list" {
			t.Errorf("unexpected call %v", action)
		}
	}
}
