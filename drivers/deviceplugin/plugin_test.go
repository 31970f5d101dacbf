package deviceplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// run runs a plugin until the test ends, or stop is called.
func run(t *testing.T, k *kubelet, source Source) (p *Plugin, stop func() error) {
	t.Helper()
	p = &Plugin{Folder: k.folder, Source: source, Poll: 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-ended
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return p, stop
}

func TestRegistersAndLists(t *testing.T) {
	k := newKubelet(t)
	k.start()
	source := newShelf(gpus("0 1 4"))
	p, stop := run(t, k, source)
	eventually(t, "the first list", k.allocatable, "3 of 3 on NUMA nodes [0 0 1]")
	eventually(t, "registered", p.Registered, true)
	k.mu.Lock()
	request := k.registrations[0]
	k.mu.Unlock()
	if request.Version != "v1beta1" || request.ResourceName != "nvidia.com/gpu" || request.Endpoint != "ladder-nvidia-com-gpu.sock" || !request.Options.GetPreferredAllocationAvailable || request.Options.PreStartRequired {
		t.Errorf("registered as %+v", request)
	}
	got, err := k.plugin().GetDevicePluginOptions(t.Context(), &pluginapi.Empty{})
	if err != nil || !got.GetPreferredAllocationAvailable {
		t.Errorf("options: %v, %v", got, err)
	}
	source.change(func(o *Offer) { o.Devices[1].Unhealthy = "XID 79" })
	eventually(t, "a sick device", k.allocatable, "2 of 3 on NUMA nodes [0 0 1]")
	source.change(func(o *Offer) { o.Devices[1].Unhealthy = "" })
	eventually(t, "a recovered device", k.allocatable, "3 of 3 on NUMA nodes [0 0 1]")
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if p.Registered() {
		t.Error("says it is registered after its end")
	}
	files, _ := os.ReadDir(k.folder)
	if len(files) != 1 || files[0].Name() != "kubelet.sock" {
		t.Errorf("left %v", files)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.lists[len(k.lists)-1]); n != 3 {
		t.Errorf("the last list before the end has %d devices", n)
	}
}

// A change that is none sends no list: nodes are updated all the time.
func TestSameOfferIsNotSentAgain(t *testing.T) {
	k := newKubelet(t)
	k.start()
	source := newShelf(gpus("0"))
	run(t, k, source)
	eventually(t, "the first list", k.allocatable, "1 of 1 on NUMA nodes [0]")
	for range 5 {
		source.change(func(*Offer) {})
	}
	source.change(func(o *Offer) { o.Devices = gpus("0 1") })
	eventually(t, "the second list", k.allocatable, "2 of 2 on NUMA nodes [0 0]")
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.lists) != 2 {
		t.Errorf("%d lists were sent for two offers", len(k.lists))
	}
}

// Told to drain, the node's allocatable goes to 0, and a request that was under
// way gets nothing; told to go on, all devices are back.
func TestDrain(t *testing.T) {
	k := newKubelet(t)
	k.start()
	source := newShelf(gpus("0 1"))
	run(t, k, source)
	eventually(t, "the first list", k.allocatable, "2 of 2 on NUMA nodes [0 0]")
	source.change(func(o *Offer) { *o = Offer{Refused: "the other stack has them"} })
	eventually(t, "draining", k.allocatable, "0 of 0 on NUMA nodes []")
	_, err := k.plugin().Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"GPU-0"}}}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the other stack has them") {
		t.Errorf("allocating while draining: %v", err)
	}
	source.change(func(o *Offer) { *o = Offer{Devices: gpus("0 1")} })
	eventually(t, "back", k.allocatable, "2 of 2 on NUMA nodes [0 0]")
}

// TestKubeletRestarts: a kubelet that starts removes all sockets, and knows
// nobody. It may take a while, and may refuse at first.
func TestKubeletRestarts(t *testing.T) {
	k := newKubelet(t)
	source := newShelf(gpus("0 1"))
	p, stop := run(t, k, source) // before there is a kubelet
	if p.Registered() {
		t.Error("registered with no kubelet")
	}
	k.start()
	eventually(t, "the first registration", k.registered, 1)
	for life := 2; life <= 4; life++ {
		k.shutdown()
		time.Sleep(30 * time.Millisecond)
		k.mu.Lock()
		k.refuse = errors.New("not ready yet")
		k.lists = nil
		k.mu.Unlock()
		k.start()
		eventually(t, "registrations", k.registered, life)
		eventually(t, "the list", k.allocatable, "2 of 2 on NUMA nodes [0 0]")
		eventually(t, "registered", p.Registered, true)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The plugin's socket is removed while kubelet goes on, which a careless
// cleanup of the folder does.
func TestSocketIsRemoved(t *testing.T) {
	k := newKubelet(t)
	k.start()
	run(t, k, newShelf(gpus("0")))
	eventually(t, "the first registration", k.registered, 1)
	if err := os.Remove(filepath.Join(k.folder, "ladder-nvidia-com-gpu.sock")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second registration", k.registered, 2)
}

// A socket that a killed plugin left is no obstacle; one that another plugin
// makes afterwards ends this one, which then leaves it alone.
func TestOtherPlugins(t *testing.T) {
	k := newKubelet(t)
	k.start()
	path := filepath.Join(k.folder, "ladder-nvidia-com-gpu.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Plugin{Folder: k.folder, Source: newShelf(gpus("0")), Poll: 10 * time.Millisecond}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	eventually(t, "the registration", p.Registered, true)
	other := path + ".other"
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "another plugin has taken") {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other plugin's socket: %v", err)
	}
}

func TestAllocate(t *testing.T) {
	k := newKubelet(t)
	k.start()
	devices := gpus("0 1 4")
	devices[2].Unhealthy = "XID 79"
	run(t, k, newShelf(devices))
	eventually(t, "the first list", k.allocatable, "2 of 3 on NUMA nodes [0 0 1]")
	plugin := k.plugin()
	ask := func(containers ...string) (*pluginapi.AllocateResponse, error) {
		request := &pluginapi.AllocateRequest{}
		for _, ids := range containers {
			request.ContainerRequests = append(request.ContainerRequests, &pluginapi.ContainerAllocateRequest{DevicesIds: strings.Fields(ids)})
		}
		return plugin.Allocate(t.Context(), request)
	}
	response, err := ask("GPU-1 GPU-0", "GPU-1")
	if err != nil {
		t.Fatal(err)
	}
	if len(response.ContainerResponses) != 2 {
		t.Fatalf("%d answers for two containers", len(response.ContainerResponses))
	}
	for i, want := range []struct{ ids, names string }{{"GPU-0,GPU-1", "gpu-0,gpu-1"}, {"GPU-1", "gpu-1"}} {
		got := response.ContainerResponses[i]
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": want.ids, "LADDER_VISIBLE_DEVICES": want.names, "LADDER_MODEL": "H100"}
		if !reflect.DeepEqual(got.Envs, envs) {
			t.Errorf("container %d: variables %v, want %v", i, got.Envs, envs)
		}
		var nodes []string
		for _, d := range got.Devices {
			if d.HostPath != "/dev/null" || d.Permissions != "rw" {
				t.Errorf("container %d: node %+v", i, d)
			}
			nodes = append(nodes, d.ContainerPath)
		}
		var paths []string
		for name := range strings.SplitSeq(want.names, ",") {
			paths = append(paths, "/dev/ladder/"+name)
		}
		if !slices.Equal(nodes, paths) {
			t.Errorf("container %d: nodes %v, want %v", i, nodes, paths)
		}
	}
	if _, err := ask("GPU-0 GPU-4"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "device gpu-4 (GPU-4) is unhealthy: XID 79") {
		t.Errorf("a sick device: %v", err)
	}
	if _, err := ask("GPU-7"); status.Code(err) != codes.NotFound {
		t.Errorf("no such device: %v", err)
	}
}

func TestPreferredAllocation(t *testing.T) {
	k := newKubelet(t)
	k.start()
	run(t, k, newShelf(gpus("0 1 2 4 5")))
	eventually(t, "the first registration", k.registered, 1)
	ask := func(size int32, must ...string) (string, error) {
		response, err := k.plugin().GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: []string{"GPU-0", "GPU-1", "GPU-2", "GPU-4", "GPU-5"}, MustIncludeDeviceIDs: must, AllocationSize: size,
			}},
		})
		if err != nil {
			return "", err
		}
		return strings.Join(response.ContainerResponses[0].DeviceIDs, " "), nil
	}
	if got, err := ask(2); got != "GPU-4 GPU-5" || err != nil {
		t.Errorf("a pair: %s, %v", got, err)
	}
	if got, err := ask(2, "GPU-2"); got != "GPU-0 GPU-2" || err != nil {
		t.Errorf("a pair with one given: %s, %v", got, err)
	}
	if got, err := ask(6); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many: %s, %v", got, err)
	}
	if got, err := ask(1, "GPU-9"); status.Code(err) != codes.NotFound {
		t.Errorf("no such device: %s, %v", got, err)
	}
}
