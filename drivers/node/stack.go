package node

// This file takes the slices back when the node's label gives its GPUs to the
// device plugin.

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/deviceplugin"
	"gpuladder.dev/ladder/drivers/plugin"
)

// stack publishes nothing while the GPUs are the device plugin's. The DaemonSet
// takes the driver away too, but what that leaves kubelet removes only after 30
// seconds, in which the node would offer its GPUs in both ways.
type stack struct {
	under   plugin.Gate // nil for none
	changed chan struct{}

	mu        sync.Mutex
	elsewhere bool
}

var _ plugin.Gate = &stack{}

// newStack knows the node as it is now. It tells of changes of the gate under
// it until ctx is done.
func newStack(ctx context.Context, node *corev1.Node, under plugin.Gate) *stack {
	s := &stack{under: under, changed: make(chan struct{}, 1)}
	s.see(ctx, node)
	if under != nil {
		changed := under.Changed()
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					s.tell()
				}
			}
		}()
	}
	return s
}

// see takes in the node's label.
func (s *stack) see(ctx context.Context, node *corev1.Node) {
	elsewhere := node.Labels[deviceplugin.LabelStack] == deviceplugin.StackDevicePlugin
	s.mu.Lock()
	was := s.elsewhere
	s.elsewhere = elsewhere
	s.mu.Unlock()
	if was != elsewhere {
		klog.FromContext(ctx).Info("The node's label says whose its GPUs are", "label", deviceplugin.LabelStack, "published", !elsewhere)
		s.tell()
	}
}

func (s *stack) tell() {
	select {
	case s.changed <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}

// Publishing implements [plugin.Gate].
func (s *stack) Publishing() plugin.Publishing {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.elsewhere:
		return plugin.PublishNothing
	case s.under != nil:
		return s.under.Publishing()
	}
	return plugin.PublishAll
}

// Changed implements [plugin.Gate].
func (s *stack) Changed() <-chan struct{} { return s.changed }
