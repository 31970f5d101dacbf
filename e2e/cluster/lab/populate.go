package lab

// The nodes and devices of the fleet.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// writers is how many objects are created at once.
const writers = 16

// populateWithin is how long nodes and slices may take: a minute, and time for
// each node of a large fleet.
func populateWithin(nodes int) time.Duration {
	return time.Minute + time.Duration(nodes)*200*time.Millisecond
}

// populate registers the nodes, publishes their devices and waits until the
// nodes can take Pods.
func (l *Lab) populate(ctx context.Context) error {
	if l.opts.Fleet == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, populateWithin(l.nodeCount()))
	defer cancel()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, node := range shuffled(l.opts.Fleet.Nodes(), l.opts.Shuffle) {
		// kwok says when a node is Ready, like a kubelet would.
		node.Status.Conditions = nil
		group.Go(func() error {
			if _, err := l.client.CoreV1().Nodes().Create(groupCtx, node, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("registering node %s, %w", node.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := l.publish(ctx); err != nil {
		return fmt.Errorf("publishing devices, %w", err)
	}
	l.sayAfter("%d nodes and %d devices are registered", l.nodeCount(), l.deviceCount())
	if err := l.nodesReady(ctx); err != nil {
		return err
	}
	l.sayAfter("nodes are ready")
	return nil
}

// shuffled brings objects into an order that is drawn from the seed, and leaves
// them as they are where that is zero.
func shuffled[T any](all []T, seed uint64) []T {
	if seed != 0 {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

// nodesReady waits until every node is Ready and has lost the taints of a node
// that is not.
func (l *Lab) nodesReady(ctx context.Context) error {
	ready := 0
	// Looking at a large fleet is work for the same machine that makes it ready.
	interval := 100*time.Millisecond + time.Duration(l.nodeCount())*time.Millisecond
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		nodes, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready = 0
		for i := range nodes.Items {
			if usable(&nodes.Items[i]) {
				ready++
			}
		}
		return ready >= l.nodeCount(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for nodes, %d of %d are ready, %w", ready, l.nodeCount(), err)
	}
	return nil
}

func usable(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
