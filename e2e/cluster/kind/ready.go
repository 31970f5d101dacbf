package kind

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const pollInterval = 500 * time.Millisecond

// until repeats a check until it succeeds. When the context is done, the error
// says what the check said last.
func (c *Cluster) until(ctx context.Context, what string, check func(ctx context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	told := time.Now()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if time.Since(told) > 20*time.Second {
			told = time.Now()
			c.say("%s: %v", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s, %w: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// Ready waits until all nodes are ready, the add-ons run on them, and the API
// server offers the resources of dynamic resource allocation.
func (c *Cluster) Ready(ctx context.Context) error {
	c.say("waiting for the nodes to become ready")
	if err := c.until(ctx, "waiting for the nodes", c.nodesReady); err != nil {
		return err
	}
	if err := c.until(ctx, "waiting for kube-proxy and DNS", c.addonsReady); err != nil {
		return err
	}
	return c.until(ctx, "waiting for the API of dynamic resource allocation", c.allocationServed)
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return notReady(nodes.Items, c.state.clusterNames())
}

// notReady returns an error that names the nodes that are not ready, or nil.
func notReady(nodes []corev1.Node, want []string) error {
	var missing []string
	for _, name := range want {
		i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			missing = append(missing, name+" (not registered)")
		case !ready(nodes[i]):
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not ready: %s", strings.Join(missing, ", "))
	}
	return nil
}

func ready(n corev1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *Cluster) addonsReady(ctx context.Context) error {
	proxy, err := c.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if want := len(c.state.Nodes); int(proxy.Status.NumberReady) < want {
		return fmt.Errorf("kube-proxy is ready on %d of %d nodes", proxy.Status.NumberReady, want)
	}
	dns, err := c.client.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if dns.Spec.Replicas == nil || dns.Status.AvailableReplicas < *dns.Spec.Replicas {
		return fmt.Errorf("%d instances of coredns are available", dns.Status.AvailableReplicas)
	}
	return nil
}

// allocationKinds are what Ladder needs of the API.
var allocationKinds = []string{"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"}

func (c *Cluster) allocationServed(context.Context) error {
	served, err := c.client.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1")
	if err != nil {
		return err
	}
	for _, name := range allocationKinds {
		if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name }) {
			return fmt.Errorf("resource.k8s.io/v1 has no %s", name)
		}
	}
	return nil
}
