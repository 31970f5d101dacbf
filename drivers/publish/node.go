package publish

// This file publishes one node as a driver on that node does.

import (
	"context"
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Node publishes what a node has until ctx is done, and again whenever the
// inventory changes. The slices stay when it ends, as when a driver is
// restarted; they are owned by the Node object and go with it. It returns nil
// when ctx is done, and an error when the node does not exist, its inventory
// can't be read, or the library reports something that no retry mends.
func Node(ctx context.Context, client kubernetes.Interface, node string, hardware inventory.Source) error {
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("looking up node %s, %w", node, err)
	}
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", node))
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	helper, err := kubeletplugin.Start(running, slicesOnly{stop: stop},
		kubeletplugin.DriverName(v1alpha1.DriverName),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.NodeUID(object.UID),
		kubeletplugin.RegistrationService(false),
		kubeletplugin.DRAService(false),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return fmt.Errorf("starting plugin of node %s, %w", node, err)
	}
	defer helper.Stop()
	for {
		pool, err := hardware.Pool(running)
		if err != nil {
			return fmt.Errorf("reading inventory of node %s, %w", node, err)
		}
		if err := helper.PublishResources(running, Resources(node, pool)); err != nil {
			return fmt.Errorf("publishing node %s, %w", node, err)
		}
		select {
		case <-running.Done():
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("publishing node %s, %w", node, context.Cause(running))
		case <-hardware.Changed():
		}
	}
}

// slicesOnly is a plugin without a kubelet: nothing is ever prepared by it,
// since both services that a kubelet would call are switched off.
type slicesOnly struct {
	stop context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = slicesOnly{}

var errNoKubelet = errors.New("this driver only publishes slices")

func (slicesOnly) PrepareResourceClaims(context.Context, []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, errNoKubelet
}

func (slicesOnly) UnprepareResourceClaims(context.Context, []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return nil, errNoKubelet
}

func (slicesOnly) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError logs what the library goes on to retry and ends [Node] on the rest.
func (p slicesOnly) HandleError(ctx context.Context, err error, message string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		runtime.HandleErrorWithContext(ctx, err, message)
		return
	}
	p.stop(fmt.Errorf("%s, %w", message, err))
}
