package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is the device manager of a kubelet, as a plugin sees it: it takes
// registrations on a real socket, calls back and keeps the last list.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer

	t      *testing.T
	folder string

	mu            sync.Mutex
	refuse        error // of the next registration
	registrations []*pluginapi.RegisterRequest
	lists         [][]*pluginapi.Device
	stop          func()
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{t: t, folder: t.TempDir()}
	t.Cleanup(k.shutdown)
	return k
}

// start is what kubelet does first: it removes all sockets and makes its own.
func (k *kubelet) start() {
	k.t.Helper()
	files, err := os.ReadDir(k.folder)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, file := range files {
		if err := os.RemoveAll(filepath.Join(k.folder, file.Name())); err != nil {
			k.t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(k.folder, "kubelet.sock"))
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{k: k, ctx: ctx})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	k.stop = func() {
		cancel()
		server.Stop()
		<-served
	}
}

// shutdown leaves the sockets where they are, as a kubelet that is killed does.
func (k *kubelet) shutdown() {
	if k.stop != nil {
		k.stop()
		k.stop = nil
	}
}

// registration is the service of one life of the kubelet.
type registration struct {
	pluginapi.UnimplementedRegistrationServer

	k   *kubelet
	ctx context.Context //nolint:containedctx // the kubelet's life
}

func (r *registration) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	if err := r.k.refuse; err != nil {
		r.k.refuse = nil
		return nil, err
	}
	r.k.registrations = append(r.k.registrations, request)
	go r.k.watch(r.ctx, request.Endpoint)
	return &pluginapi.Empty{}, nil
}

// dial connects to the plugin.
func (k *kubelet) dial(endpoint string) (pluginapi.DevicePluginClient, func(), error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return pluginapi.NewDevicePluginClient(connection), func() { _ = connection.Close() }, nil
}

func (k *kubelet) watch(ctx context.Context, endpoint string) {
	client, done, err := k.dial(endpoint)
	if err != nil {
		return
	}
	defer done()
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		k.mu.Lock()
		k.lists = append(k.lists, response.Devices)
		k.mu.Unlock()
	}
}

// plugin is a client of the plugin that registered last.
func (k *kubelet) plugin() pluginapi.DevicePluginClient {
	k.t.Helper()
	k.mu.Lock()
	endpoint := k.registrations[len(k.registrations)-1].Endpoint
	k.mu.Unlock()
	client, done, err := k.dial(endpoint)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(done)
	return client
}

// allocatable is what the node would offer by the last list: its devices by
// health and NUMA node.
func (k *kubelet) allocatable() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.lists) == 0 {
		return "no list"
	}
	healthy, numa := 0, []string{}
	last := k.lists[len(k.lists)-1]
	for _, d := range last {
		if d.Health == pluginapi.Healthy {
			healthy++
		}
		numa = append(numa, fmt.Sprint(d.Topology.Nodes[0].ID))
	}
	return fmt.Sprintf("%d of %d on NUMA nodes [%s]", healthy, len(last), strings.Join(numa, " "))
}

func (k *kubelet) registered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.registrations)
}

// eventually waits until a value is as wanted.
func eventually[T comparable](t *testing.T, what string, get func() T, want T) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	got := get()
	for got != want && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		got = get()
	}
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// shelf is a source that a test fills.
type shelf struct {
	mu      sync.Mutex
	offer   Offer
	changed chan struct{}
}

func newShelf(devices []Device) *shelf {
	return &shelf{offer: Offer{Devices: devices}, changed: make(chan struct{}, 1)}
}

func (s *shelf) Offer(context.Context) (Offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Offer{Devices: slices.Clone(s.offer.Devices), Refused: s.offer.Refused}, nil
}

func (s *shelf) Changed() <-chan struct{} { return s.changed }

func (s *shelf) change(change func(*Offer)) {
	s.mu.Lock()
	change(&s.offer)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
