package lab

// The fake drivers. They run inside this process: the devices of a node that
// does not exist need no process of their own, and a test can reach them to
// make a device fail.

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/publish"
)

// MaxDrivers is the largest number of nodes that have a driver each, which
// publishes through the kubelet plugin library as a real one does and keeps a
// watch open. The slices of larger fleets are written directly, once.
const MaxDrivers = 10

// fakeDriver is the name under which a driver's end is reported.
const fakeDriver = "fake-driver"

// drivers are the fake drivers of a lab; the zero value has none.
type drivers struct {
	cancel      context.CancelFunc
	running     sync.WaitGroup
	inventories map[string]*fake.Inventory
}

func (d *drivers) stop() {
	if d.cancel != nil {
		d.cancel()
		d.running.Wait()
	}
}

// Inventory returns the hardware of a node, to make a device fail. Nil for a
// node without a driver: the fleet has no such node, or more than MaxDrivers.
func (l *Lab) Inventory(node string) *fake.Inventory { return l.drivers.inventories[node] }

// publish writes the slices of the fleet and returns when all of them are there.
func (l *Lab) publish(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", l.layout.kubeconfig(userDriver))
	if err != nil {
		return fmt.Errorf("reading the driver's kubeconfig, %w", err)
	}
	config.QPS = -1
	config.UserAgent = fakeDriver
	client, err := kubernetes.NewForConfig(compact(config))
	if err != nil {
		return fmt.Errorf("making the driver's client, %w", err)
	}
	if l.nodeCount() > MaxDrivers {
		_, err := publish.Direct(ctx, client, shuffled(l.opts.Fleet.Slices(), l.opts.Shuffle), publish.Options{Parallelism: writers})
		return err
	}
	if err := l.runDrivers(client); err != nil {
		return err
	}
	return l.devicesPublished(ctx)
}

// runDrivers starts a driver for each node with devices. They end with the lab.
func (l *Lab) runDrivers(client kubernetes.Interface) error {
	l.drivers.inventories = map[string]*fake.Inventory{}
	for _, node := range l.opts.Fleet.NodeNames() {
		inventory, err := fake.New(l.opts.Fleet, node)
		if err != nil {
			return err
		}
		l.drivers.inventories[node] = inventory
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.drivers.cancel = cancel
	for node, inventory := range l.drivers.inventories {
		l.drivers.running.Go(func() {
			if err := publish.Node(ctx, client, node, inventory); err != nil {
				l.crashed(fmt.Errorf("running the driver of node %s, %w", node, err))
			}
		})
	}
	return nil
}

// devicesPublished waits until the API server has every device of the fleet.
func (l *Lab) devicesPublished(ctx context.Context) error {
	found := 0
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := l.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		found = 0
		for i := range list.Items {
			found += len(list.Items[i].Spec.Devices)
		}
		return found >= l.deviceCount(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for slices, %d of %d devices are there, %w", found, l.deviceCount(), err)
	}
	return nil
}
