package deviceplugin

// This file is the source of devices on a node: its labels and its health.

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/tiers"
)

// LabelStack says on a node which of the two hands out its GPUs.
const LabelStack = "gpuladder.dev/stack"

// StackDevicePlugin is the value of [LabelStack] that lets the device plugin do
// so. With any other, and without the label, it is the DRA driver's turn.
const StackDevicePlugin = "device-plugin"

// Health says which devices must not be handed out. It is safe for concurrent use.
type Health interface {
	// Unhealthy returns why, by the names of devices. Names that the node does
	// not have mean nothing.
	Unhealthy() map[string]string
	// Changed receives after Unhealthy has begun to return something else.
	Changed() <-chan struct{}
}

// NodeSource offers the whole boards of a node's tier for as long as the node's
// label gives them to the device plugin. The tier is that of the first label
// that makes sense: hardware does not change under a plugin that runs, so
// another label takes effect when the plugin is restarted.
type NodeSource struct {
	node    string
	catalog *tiers.Catalog
	health  Health

	changed chan struct{}
	known   chan struct{} // closed once the node has been seen

	mu      sync.Mutex
	seen    bool
	stack   string
	choice  tiers.Choice
	devices []Device     // of choice; nil before there is one
	ignored tiers.Choice // the last one that came later
	problem string       // why there is no choice
}

var _ Source = &NodeSource{}

// NewNodeSource returns the source of one node. Health may be nil: all is well.
func NewNodeSource(node string, catalog *tiers.Catalog, health Health) *NodeSource {
	return &NodeSource{node: node, catalog: catalog, health: health, changed: make(chan struct{}, 1), known: make(chan struct{})}
}

// Run watches the node and the health until ctx is done.
func (s *NodeSource) Run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.node).String()
	}))
	saw := func(object any) {
		if node, ok := object.(*corev1.Node); ok && node.Name == s.node {
			s.see(ctx, node)
		}
	}
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    saw,
		UpdateFunc: func(_, object any) { saw(object) },
		// A node that is deleted is one without labels: nobody may hand out anything.
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if node, ok := object.(*corev1.Node); ok && node.Name == s.node {
				s.see(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node}})
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching node %s, %w", s.node, err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	var health <-chan struct{}
	if s.health != nil {
		health = s.health.Changed()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-health:
			s.tell()
		}
	}
}

// see takes in the labels of the node.
func (s *NodeSource) see(ctx context.Context, node *corev1.Node) {
	log := klog.FromContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	stack := node.Labels[LabelStack]
	if !s.seen || stack != s.stack {
		log.Info("The node's label says whose GPUs they are", "label", LabelStack, "value", stack, "ours", stack == StackDevicePlugin)
	}
	s.stack = stack
	if s.devices == nil {
		s.take(log, node.Labels)
	} else if choice, err := s.catalog.Choose(node.Labels); err == nil && choice != s.choice && choice != s.ignored {
		s.ignored = choice
		log.Info("Another tier takes effect when the plugin is restarted", "now", s.choice.String(), "wanted", choice.String())
	}
	if !s.seen {
		s.seen = true
		close(s.known)
	}
	s.tell()
}

// take makes the devices of the tier that the labels name. The caller holds the lock.
func (s *NodeSource) take(log klog.Logger, labels map[string]string) {
	choice, err := s.catalog.Choose(labels)
	var pool inventory.Pool
	if err == nil {
		pool, err = s.catalog.Pool(s.node, choice)
	}
	if err != nil {
		if s.problem != err.Error() {
			s.problem = err.Error()
			log.Info("The node has no fake GPUs", "because", s.problem)
		}
		return
	}
	s.choice, s.devices = choice, append([]Device{}, Devices(pool)...)
	log.Info("The node has fake GPUs", "tier", choice.Tier, "devices", len(s.devices))
}

func (s *NodeSource) tell() {
	select {
	case s.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}

// Changed implements [Source].
func (s *NodeSource) Changed() <-chan struct{} { return s.changed }

// Offer implements [Source].
func (s *NodeSource) Offer(ctx context.Context) (Offer, error) {
	select {
	case <-ctx.Done():
		return Offer{}, ctx.Err()
	case <-s.known:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stack != StackDevicePlugin:
		return Offer{Refused: fmt.Sprintf("label %s of node %s is %q, not %q", LabelStack, s.node, s.stack, StackDevicePlugin)}, nil
	case s.devices == nil:
		return Offer{Refused: s.problem}, nil
	}
	offer := Offer{Devices: slices.Clone(s.devices)}
	if s.health != nil {
		unhealthy := s.health.Unhealthy()
		for i := range offer.Devices {
			offer.Devices[i].Unhealthy = unhealthy[offer.Devices[i].Name]
		}
	}
	return offer, nil
}

// Names are the names of the node's devices, also while none is offered; nil
// before the node has been seen.
func (s *NodeSource) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for i := range s.devices {
		names = append(names, s.devices[i].Name)
	}
	return names
}
