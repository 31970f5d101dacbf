// Package publish_test holds what the fake driver publishes against a real API
// server: it is accepted as it is, both ways of publishing give the same, and
// writers that meet do not harm each other.
package publish_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/publish"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/fleet"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// start returns a client of a server that has the fleet's nodes and no slices.
func start(t *testing.T, f *fleet.Fleet) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(apiserver.Get(t).Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	work := make(chan *corev1.Node)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for node := range work {
				if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, node := range f.Nodes() {
		work <- node
	}
	close(work)
	group.Wait()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for name, remove := range map[string]func(context.Context, metav1.DeleteOptions, metav1.ListOptions) error{
			"nodes":  client.CoreV1().Nodes().DeleteCollection,
			"slices": client.ResourceV1().ResourceSlices().DeleteCollection,
		} {
			if err := remove(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Errorf("deleting %s: %v", name, err)
			}
		}
	})
	return client
}

func published(t *testing.T, client kubernetes.Interface) []resourcev1.ResourceSlice {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func direct(t *testing.T, client kubernetes.Interface, given []*resourcev1.ResourceSlice) publish.Summary {
	t.Helper()
	summary, err := publish.Direct(t.Context(), client, given, publish.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return summary
}

// everyBoard has each board of the catalog once in a node, and one pool of
// several slices.
func everyBoard() *fleet.Fleet {
	var groups []fleet.Group
	for _, board := range fleet.Boards() {
		groups = append(groups, fleet.Group{Name: strings.ToLower(board.Name), Nodes: 1, Board: board.Name, GPUs: 8})
	}
	return fleet.New(append(groups, fleet.Group{Name: "large", Nodes: 1, Board: "T4", GPUs: fleet.MaxGPUsPerNode})...)
}

// TestServerKeepsEverything: nothing that a fleet publishes is refused or
// dropped, for each board.
func TestServerKeepsEverything(t *testing.T) {
	f := everyBoard()
	client := start(t, f)
	if got, want := direct(t, client, f.Slices()), (publish.Summary{Created: 9}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	found := published(t, client)
	for _, want := range f.Slices() {
		at := slices.IndexFunc(found, func(s resourcev1.ResourceSlice) bool { return s.Name == want.Name })
		if at < 0 {
			t.Fatalf("slice %s is not there", want.Name)
		}
		if !resourceslice.DevicesDeepEqual(found[at].Spec.Devices, want.Spec.Devices) {
			t.Errorf("slice %s came back changed", want.Name)
		}
	}
	if got, want := direct(t, client, f.Slices()), (publish.Summary{Unchanged: 9}); got != want {
		t.Errorf("again: got %+v, want %+v", got, want)
	}
}

func TestBothWaysPublishTheSame(t *testing.T) {
	f := everyBoard()
	client := start(t, f)
	direct(t, client, f.Slices())
	want := published(t, client)
	for _, slice := range want {
		if err := client.ResourceV1().ResourceSlices().Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var drivers sync.WaitGroup
	for _, node := range f.NodeNames() {
		hardware, err := fake.New(f, node)
		if err != nil {
			t.Fatal(err)
		}
		drivers.Go(func() {
			if err := publish.Node(ctx, client, node, hardware); err != nil {
				t.Error(err)
			}
		})
	}
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return len(published(t, client)) == len(want), nil
	})
	cancel()
	drivers.Wait()
	if err != nil {
		t.Fatalf("the drivers published %d slices, want %d", len(published(t, client)), len(want))
	}
	for i, slice := range published(t, client) {
		if !strings.HasPrefix(slice.Name, want[i].Name+"-") || slice.Spec.Pool != want[i].Spec.Pool ||
			slice.OwnerReferences[0].UID != want[i].OwnerReferences[0].UID {
			t.Errorf("the driver's slice %s of pool %+v is in the place of %s of %+v", slice.Name, slice.Spec.Pool, want[i].Name, want[i].Spec.Pool)
		}
		if !resourceslice.DevicesDeepEqual(slice.Spec.Devices, want[i].Spec.Devices) {
			t.Errorf("the devices of %s differ", slice.Name)
		}
	}
}

// TestWritersMeet lets several writers publish the same and one delete at the
// same time; once they are done, one more run finds or makes everything right.
func TestWritersMeet(t *testing.T) {
	f := fleet.New(fleet.Group{Name: "g", Nodes: 6, Board: "L4", GPUs: 130})
	client := start(t, f)
	versions := []string{"550.163.01", "570.148.08", "580.105.08"}
	var group sync.WaitGroup
	for _, version := range versions {
		group.Go(func() {
			mine := fleet.New(fleet.Group{Name: "g", Nodes: 6, Board: "L4", GPUs: 130, DriverVersion: version})
			if _, err := publish.Direct(t.Context(), client, mine.Slices(), publish.Options{}); err != nil {
				t.Errorf("driver %s: %v", version, err)
			}
		})
	}
	group.Go(func() {
		for range 20 {
			err := client.ResourceV1().ResourceSlices().Delete(t.Context(), "00001-gpu.gpuladder.dev-g-0003", metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	group.Wait()
	direct(t, client, f.Slices())
	found := published(t, client)
	if len(found) != 12 {
		t.Fatalf("%d slices are left, want 12", len(found))
	}
	generations := map[string]int64{}
	for _, slice := range found {
		pool := slice.Spec.Pool
		if first, seen := generations[pool.Name]; seen && first != pool.Generation || pool.ResourceSliceCount != 2 {
			t.Errorf("pool %s is not complete: %+v", pool.Name, pool)
		}
		generations[pool.Name] = pool.Generation
	}
	if got, want := direct(t, client, f.Slices()), (publish.Summary{Unchanged: 12}); got != want {
		t.Errorf("again: got %+v, want %+v", got, want)
	}
}

// TestRealFleet publishes the 1,213 nodes of a public trace.
func TestRealFleet(t *testing.T) {
	dir := os.Getenv("LADDER_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "data")
	}
	file := filepath.Join(dir, "openb_node_list_gpu_node.csv")
	if _, err := os.Stat(file); err != nil {
		t.Skipf("the trace is not here, set LADDER_DATA to its folder: %v", err)
	}
	f, err := fleet.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	client := start(t, f)
	began := time.Now()
	if got, want := direct(t, client, f.Slices()), (publish.Summary{Created: 1213}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	t.Logf("published %d devices of %d nodes in %v", f.DeviceCount(), f.NodeCount(), time.Since(began).Round(time.Millisecond))
	devices := 0
	for _, slice := range published(t, client) {
		devices += len(slice.Spec.Devices)
	}
	if devices != 6212 {
		t.Errorf("%d devices are published, want 6212", devices)
	}
	began = time.Now()
	if got, want := direct(t, client, f.Slices()), (publish.Summary{Unchanged: 1213}); got != want {
		t.Errorf("again: got %+v, want %+v", got, want)
	}
	t.Logf("found them right in %v", time.Since(began).Round(time.Millisecond))
}
