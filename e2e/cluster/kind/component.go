package kind

// Ending and restarting the parts of the cluster. A part is named by what it is
// and the node that it is on: kubelet@ladder-e2e-worker.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster"
)

// What a component is, before the @.
const (
	kubelet    = "kubelet"
	containerd = "containerd"
	// whole is the node itself: its container.
	whole = "node"
)

// staticPods are the parts of the control plane.
var staticPods = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// Component names a part on a node, as Kill and Restart want it.
func Component(part, node string) string { return part + "@" + node }

// Components names the parts that Kill and Restart know, sorted.
func (c *Cluster) Components() []string {
	var names []string
	for _, n := range c.state.Nodes {
		for _, part := range []string{kubelet, containerd, whole} {
			names = append(names, Component(part, n.ClusterName))
		}
		if n.Role == ControlPlane {
			for _, part := range staticPods {
				names = append(names, Component(part, n.ClusterName))
			}
		}
	}
	slices.Sort(names)
	return names
}

func (c *Cluster) component(name string) (part, node string, err error) {
	if !slices.Contains(c.Components(), name) {
		return "", "", fmt.Errorf("component %q is not known; known are %s", name, strings.Join(c.Components(), ", "))
	}
	part, node, _ = strings.Cut(name, "@")
	return part, node, nil
}

// Kill ends a component without warning. It stays down until Restart.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	part, node, err := c.component(name)
	if err != nil {
		return err
	}
	c.mark(name, true)
	switch part {
	case whole:
		_, err = c.run(ctx, nil, "kill", "--signal=KILL", node)
	case kubelet, containerd:
		_, err = c.Exec(ctx, node, "sh", "-c", killUnit(part))
	default:
		_, err = c.Exec(ctx, node, "sh", "-c", killStaticPod(part))
	}
	if err != nil {
		return fmt.Errorf("killing %s, %w", name, err)
	}
	return nil
}

// restartWithin bounds the return of a component.
const restartWithin = 3 * time.Minute

// Restart ends a component in an orderly way where it runs, starts it again and
// waits until it is ready. A node that is restarted has another boot id.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	part, node, err := c.component(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, restartWithin, fmt.Errorf("it is not ready after %s", restartWithin))
	defer cancel()
	c.mark(name, true)
	switch part {
	case whole:
		err = c.restartNode(ctx, node)
	case kubelet, containerd:
		_, err = c.Exec(ctx, node, "sh", "-c", restartUnit(part))
	default:
		_, err = c.Exec(ctx, node, "sh", "-c", restartStaticPod(part))
	}
	if err != nil {
		return fmt.Errorf("restarting %s, %w", name, err)
	}
	err = c.until(ctx, "restarting "+name, func(ctx context.Context) error { return c.answers(ctx, part, node) })
	if err != nil {
		return err
	}
	c.mark(name, false)
	return nil
}

// RestartNode restarts a node as a reboot would: everything on it ends, what
// lies in memory (/run, /tmp) is gone, and it has another boot id. It returns
// when the node is ready again.
func (c *Cluster) RestartNode(ctx context.Context, node string) error {
	return c.Restart(ctx, Component(whole, node))
}

func (c *Cluster) restartNode(ctx context.Context, node string) error {
	before, err := c.BootID(ctx, node)
	if err != nil {
		before = "" // the node is down
	}
	// systemd ends on a signal of its own, which the image names.
	if _, err := c.run(ctx, nil, "restart", "--time=20", node); err != nil {
		return err
	}
	return c.until(ctx, "waiting for "+node+" to start", func(ctx context.Context) error {
		now, err := c.BootID(ctx, node)
		if err == nil && now == before {
			err = errors.New("it has its old boot id")
		}
		return err
	})
}

// BootID reads the boot id of a node.
func (c *Cluster) BootID(ctx context.Context, node string) (string, error) {
	id, err := c.Exec(ctx, node, "cat", BootIDFile)
	if err == nil && id == "" {
		err = fmt.Errorf("%s on %s is empty", BootIDFile, node)
	}
	return id, err
}

// Units of systemd come back by themselves, unless a drop-in says otherwise. It
// lies in /run, so that a restarted node has it no more.
func dropIn(unit string) string { return "/run/systemd/system/" + unit + ".service.d/ladder-down.conf" }

func killUnit(unit string) string {
	at := dropIn(unit)
	return fmt.Sprintf(`set -e
mkdir -p $(dirname %[1]s)
printf '[Service]\nRestart=no\n' >%[1]s
systemctl daemon-reload
systemctl kill --kill-whom=main --signal=KILL %[2]s.service
for i in $(seq 100); do systemctl is-active --quiet %[2]s.service || exit 0; sleep 0.1; done
exit 1`, at, unit)
}

func restartUnit(unit string) string {
	return fmt.Sprintf(`set -e
rm -f %s
systemctl daemon-reload
systemctl restart %s.service`, dropIn(unit), unit)
}

// Pods that kubelet makes from files are down while their file is away.
const (
	manifests = "/etc/kubernetes/manifests/"
	parked    = "/var/lib/ladder/parked/"
)

// pidsOf prints the main processes of a static pod's containers.
func pidsOf(pod string) string {
	return fmt.Sprintf(`for id in $(crictl ps --quiet --state=running --name='^%s$'); do crictl inspect --output=go-template --template='{{.info.pid}}' "$id" || true; done`, pod)
}

func park(pod string) string {
	return fmt.Sprintf(`mkdir -p %[2]s
[ ! -e %[1]s%[3]s.yaml ] || mv %[1]s%[3]s.yaml %[2]s%[3]s.yaml`, manifests, parked, pod)
}

func killStaticPod(pod string) string {
	return "set -e\npids=$(" + pidsOf(pod) + ")\n" + park(pod) + "\n[ -z \"$pids\" ] || kill -KILL $pids"
}

// restartStaticPod lets kubelet end the pod and start a new one: a container
// that ended by itself would be started again later each time.
func restartStaticPod(pod string) string {
	return fmt.Sprintf(`set -e
%[1]s
for i in $(seq 300); do [ -n "$(crictl ps --quiet --state=running --name='^%[2]s$')" ] || break; sleep 0.2; done
mv %[4]s%[2]s.yaml %[3]s%[2]s.yaml`, park(pod), pod, manifests, parked)
}

// probes tell on its node that a part is ready.
var probes = map[string]string{
	kubelet:                   "curl --silent --fail http://127.0.0.1:10248/healthz",
	containerd:                "crictl version",
	"etcd":                    "curl --silent --fail http://127.0.0.1:2381/readyz",
	"kube-apiserver":          "curl --silent --fail --insecure https://127.0.0.1:6443/readyz",
	"kube-controller-manager": "curl --silent --fail --insecure https://127.0.0.1:10257/healthz",
	"kube-scheduler":          "curl --silent --fail --insecure https://127.0.0.1:10259/healthz",
}

// answers says whether a part is ready.
func (c *Cluster) answers(ctx context.Context, part, node string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if part != whole {
		_, err := c.Exec(ctx, node, strings.Fields(probes[part])...)
		return err
	}
	for _, of := range []string{containerd, kubelet} {
		if err := c.answers(ctx, of, node); err != nil {
			return err
		}
	}
	return c.nodesReady(ctx)
}

func (c *Cluster) mark(name string, down bool) {
	c.downMu.Lock()
	defer c.downMu.Unlock()
	if down {
		c.stopped[name] = true
	} else {
		delete(c.stopped, name)
	}
}

// watchInterval is how often the containers of the nodes are looked at.
const watchInterval = 3 * time.Second

// Failed delivers at most one error: the first node that ended without being
// asked to.
func (c *Cluster) Failed() <-chan error {
	c.watch.Do(func() { go c.watchNodes() })
	return c.failed
}

func (c *Cluster) watchNodes() {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		for _, node := range c.state.clusterNames() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			status, err := c.run(ctx, nil, "inspect", "--format={{.State.Status}} {{.State.ExitCode}}", node)
			cancel()
			if err == nil && !strings.HasPrefix(status, "exited") && !strings.HasPrefix(status, "dead") {
				continue
			}
			c.downMu.Lock()
			asked := c.stopped[Component(whole, node)] || c.isDown
			c.downMu.Unlock()
			if asked {
				continue
			}
			reason := fmt.Errorf("its container is %s", status)
			if err != nil {
				reason = err
			}
			c.failed <- &cluster.ComponentError{Component: Component(whole, node), Reason: reason, Log: c.LogsDir()}
			return
		}
	}
}
