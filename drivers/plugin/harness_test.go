package plugin

// This file is a node for a driver: an API server, a kubelet, and hardware.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/publish/publishtest"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const nodeName = "node-1"

// board is hardware whose health a test sets.
type board struct {
	changed chan struct{}

	mu     sync.Mutex
	pool   inventory.Pool
	report inventory.Report
	err    error
	asked  int
	hang   chan struct{}
}

func newBoard(gpus int) *board {
	b := &board{changed: make(chan struct{}, 1)}
	model, product := "H100", "NVIDIA H100 80GB HBM3"
	for i := range gpus {
		b.pool.Devices = append(b.pool.Devices, resourcev1.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"model": {StringValue: &model}, "productName": {StringValue: &product},
			},
		})
	}
	return b
}

func (b *board) Pool(context.Context) (inventory.Pool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pool.DeepCopy(), nil
}

func (b *board) Health(context.Context) (inventory.Report, error) {
	if b.hang != nil {
		<-b.hang
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	return b.report, b.err
}

func (b *board) Changed() <-chan struct{} { return b.changed }

func (b *board) Edits(context.Context, string) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{}, nil
}
func (b *board) Release(context.Context, string) error { return nil }

// trouble sets what is wrong, and all that is.
func (b *board) trouble(err error, troubles ...inventory.Trouble) {
	b.mu.Lock()
	b.report, b.err = inventory.Report{Troubles: troubles}, err
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

func troubleOf(device string, severity inventory.Severity) inventory.Trouble {
	return inventory.Trouble{
		Origin: inventory.Origin{Device: device, Source: "xid"}, Severity: severity, Reason: "Xid79", Message: "GPU has fallen off the bus",
	}
}

// gate is a Gate that a test sets.
type gate struct {
	way     atomic.Int32
	changed chan struct{}
}

func (g *gate) Publishing() Publishing   { return Publishing(g.way.Load()) }
func (g *gate) Changed() <-chan struct{} { return g.changed }
func (g *gate) set(way Publishing) {
	g.way.Store(int32(way))
	g.changed <- struct{}{}
}

// node is where drivers run.
type node struct {
	t        *testing.T
	client   *clientfake.Clientset
	board    *board
	gate     *gate
	recorder *events.FakeRecorder
	registry *prometheus.Registry
	config   Config
	driver   *Driver
	stop     func() error
}

func newNode(t *testing.T, gpus int) *node {
	t.Helper()
	client := publishtest.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}})
	// Sockets have short paths.
	folder, err := os.MkdirTemp("", "ladder")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	n := &node{t: t, client: client, board: newBoard(gpus), gate: &gate{changed: make(chan struct{})}}
	n.config = Config{
		NodeName: nodeName, NodeUID: "node-uid", PodUID: "pod-1", Client: client, Inventory: n.board,
		DataFolder: DataFolder(filepath.Join(folder, "p")), RegistrarFolder: filepath.Join(folder, "r"),
		CDIFolder: filepath.Join(folder, "cdi"), BootIDFile: filepath.Join(folder, "boot_id"),
		HealthPeriod: 10 * time.Millisecond, Recovery: 50 * time.Millisecond, CollectPeriod: 10 * time.Millisecond, StaleAfter: 30 * time.Millisecond,
		Gate: n.gate,
	}
	if err := os.Mkdir(n.config.RegistrarFolder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.config.BootIDFile, []byte("boot-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

// start runs a driver until the end of the test or n.stop.
func (n *node) start() {
	n.t.Helper()
	n.registry, n.recorder = prometheus.NewRegistry(), events.NewFakeRecorder(100)
	n.config.Registry, n.config.Recorder = n.registry, n.recorder
	ctx, cancel := context.WithCancel(n.t.Context())
	driver, err := New(ctx, n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	n.driver = driver
	ended := make(chan error, 1)
	go func() { ended <- driver.Run(ctx) }()
	stopped := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Second):
			return fmt.Errorf("the driver did not end")
		}
	})
	n.stop = stopped
	n.t.Cleanup(func() {
		if err := stopped(); err != nil {
			n.t.Error(err)
		}
	})
	n.eventually("the sockets answer", func() bool { return driver.Healthy(n.t.Context()) == nil })
}

func (n *node) eventually(what string, condition func() bool) {
	n.t.Helper()
	err := wait.PollUntilContextTimeout(n.t.Context(), 5*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

func (n *node) dial(socket string) *grpc.ClientConn {
	n.t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// register does what kubelet does when it finds the registration socket, and
// returns the plugin's own socket.
func (n *node) register() drapb.DRAPluginClient {
	n.t.Helper()
	client := registerapi.NewRegistrationClient(n.dial(n.driver.config.registrarSocket()))
	info, err := client.GetInfo(n.t.Context(), &registerapi.InfoRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	if info.Name != v1alpha1.DriverName || info.Type != registerapi.DRAPlugin || info.Endpoint != n.driver.config.pluginSocket() {
		n.t.Fatalf("kubelet is told %+v", info)
	}
	if services := strings.Join(info.SupportedVersions, " "); !strings.Contains(services, "v1.DRAPlugin") || !strings.Contains(services, "v1.DRAResourceHealth") {
		n.t.Errorf("services are %s", services)
	}
	if _, err := client.NotifyRegistrationStatus(n.t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		n.t.Fatal(err)
	}
	return drapb.NewDRAPluginClient(n.dial(info.Endpoint))
}

// watch returns the reports of the driver's health stream, of the device.
func (n *node) watch(device string) (next func() *healthpb.DeviceHealth) {
	n.t.Helper()
	client := healthpb.NewDRAResourceHealthClient(n.dial(n.driver.config.pluginSocket()))
	stream, err := client.NodeWatchResources(n.t.Context(), &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return func() *healthpb.DeviceHealth {
		n.t.Helper()
		report, err := stream.Recv()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, d := range report.Devices {
			if d.Device.DeviceName == device && d.Device.PoolName == nodeName {
				return d
			}
		}
		n.t.Fatalf("%s is not in the report", device)
		return nil
	}
}

// claim makes a claim that has devices of the node.
func (n *node) claim(name string, devices ...string) *drapb.Claim {
	n.t.Helper()
	object := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name + "-uid")},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}},
		},
	}
	for _, device := range devices {
		object.Status.Allocation.Devices.Results = append(object.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "accelerator", Driver: v1alpha1.DriverName, Pool: nodeName, Device: device})
	}
	if _, err := n.client.ResourceV1().ResourceClaims("team-a").Create(n.t.Context(), object, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return &drapb.Claim{Namespace: "team-a", Name: name, Uid: name + "-uid"}
}

// taints of all published devices, as device=effects.
func (n *node) taints() string {
	n.t.Helper()
	var all []string
	for _, slice := range n.slices() {
		for _, device := range slice.Spec.Devices {
			effects := device.Name + "="
			for _, taint := range device.Taints {
				effects += string(taint.Effect) + ":" + taint.Value + ","
			}
			all = append(all, effects)
		}
	}
	return strings.Join(all, " ")
}

func (n *node) slices() []resourcev1.ResourceSlice {
	n.t.Helper()
	list, err := n.client.ResourceV1().ResourceSlices().List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return list.Items
}

// files in a folder whose names begin so.
func (n *node) files(folder, prefix string) int {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, prefix+"*"))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(found)
}
