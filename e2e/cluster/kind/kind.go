// Package kind provides a cluster with real kubelets, containerd and CDI: each
// node is a container, made by the library of kind (no program of that name is
// needed).
//
// A cluster outlives the process that creates it. Attach finds it again, and
// Cluster.Down removes it.
package kind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kindcluster "sigs.k8s.io/kind/pkg/cluster"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker"
)

var (
	// ErrExists says that the engine has nodes of a cluster of that name.
	ErrExists = errors.New("a cluster of that name exists")
	// ErrNotFound says that the engine has no node of a cluster of that name.
	ErrNotFound = errors.New("there is no cluster of that name")
	// ErrElsewhere says that a cluster of that name is on another engine, or was
	// when that engine ended.
	ErrElsewhere = errors.New("a cluster of that name is on another container engine")
	// ErrUnfinished says that a cluster is still being created, or that its
	// creation was broken off.
	ErrUnfinished = errors.New("its creation goes on, or was broken off")
)

// Cluster is a cluster of kind.
type Cluster struct {
	state    State
	dir      string
	engine   *docker.Engine
	provider *kindcluster.Provider
	progress io.Writer
	rest     *rest.Config
	client   kubernetes.Interface

	watch  sync.Once
	failed chan error
	done   chan struct{} // closed by Down
	// downMu guards what is down on purpose, and whether the cluster is.
	downMu   sync.Mutex
	stopped  map[string]bool
	keepLogs bool
	isDown   bool
}

var _ cluster.Cluster = (*Cluster)(nil)

// Create makes a cluster and returns when its nodes are ready, its DNS answers
// and its API serves what dynamic resource allocation needs. If that fails, the
// logs of the nodes are kept, their folder is named in the error, and the nodes
// are removed.
func Create(ctx context.Context, o Options) (_ *Cluster, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	c, err := newCluster(o.Name, o.Engine, binaries.SerialWriter(o.Progress))
	if err != nil {
		return nil, err
	}
	if there, err := c.provider.ListNodes(o.Name); err != nil {
		return nil, fmt.Errorf("creating cluster %s, %w", o.Name, err)
	} else if len(there) > 0 {
		return nil, fmt.Errorf("creating cluster %s, %w", o.Name, ErrExists)
	}
	if err := elsewhere(c.dir, o.Engine); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return nil, fmt.Errorf("removing what an earlier cluster %s left, %w", o.Name, err)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a folder for cluster %s, %w", o.Name, err)
	}
	c.state = State{
		Name: o.Name, Image: o.Image, Created: time.Now().UTC().Round(time.Second), Nodes: statesOf(o),
		Engine: o.Engine.Kind(), Host: o.Engine.Host(), Unfinished: true,
	}
	// Also one that is broken off can then be found and removed.
	if err := c.state.write(c.dir); err != nil {
		return nil, err
	}
	start := time.Now()
	c.say("creating cluster %s with %d nodes", o.Name, len(o.Nodes))
	ctx, cancel := context.WithTimeoutCause(ctx, o.Within, fmt.Errorf("it is not ready after %s", o.Within))
	defer cancel()
	defer func() {
		if err != nil {
			err = c.abandon(ctx, o.Keep, err)
		}
	}()
	if err := c.create(ctx, o, m); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.network(ctx); err != nil {
		return nil, err
	}
	if err := c.Ready(ctx); err != nil {
		return nil, err
	}
	c.state.Unfinished = false
	if err := c.state.write(c.dir); err != nil {
		return nil, err
	}
	c.say("cluster %s is ready after %.0f s", o.Name, time.Since(start).Seconds())
	return c, nil
}

// newCluster prepares the ground: the provider of kind that fits the engine.
func newCluster(name string, engine *docker.Engine, progress io.Writer) (*Cluster, error) {
	dir, err := stateDir(name)
	if err != nil {
		return nil, err
	}
	if err := use(engine); err != nil {
		return nil, err
	}
	option := kindcluster.ProviderWithDocker()
	if engine.Kind() == docker.Podman {
		option = kindcluster.ProviderWithPodman()
	}
	return &Cluster{
		dir: dir, engine: engine, progress: progress,
		provider: kindcluster.NewProvider(kindcluster.ProviderWithLogger(logger{progress}), option),
		failed:   make(chan error, 1), done: make(chan struct{}), stopped: map[string]bool{},
	}, nil
}

// nameOf is the name by which kind's provider finds an image on the engine.
// Podman keeps what was made or loaded here under localhost; the provider looks
// under docker.io where a name says nothing.
func nameOf(image string, on docker.Kind, has func(string) bool) string {
	if local := "localhost/" + image; on == docker.Podman && has(local) {
		return local
	}
	return image
}

// create makes the nodes and lets kubeadm join them. kind's library can't be
// broken off; it ends by itself when its containers are gone, or with this
// process where they are to be kept.
func (c *Cluster) create(ctx context.Context, o Options, m machine) error {
	o.Image = nameOf(o.Image, c.engine.Kind(), func(image string) bool {
		return c.engine.Command(ctx, "image", "inspect", image).Run() == nil
	})
	configured := config(o, m)
	result := make(chan error, 1)
	go func() {
		result <- c.provider.Create(o.Name,
			kindcluster.CreateWithV1Alpha4Config(configured),
			kindcluster.CreateWithKubeconfigPath(c.Kubeconfig()),
			kindcluster.CreateWithRetain(true),
			kindcluster.CreateWithDisplayUsage(false),
			kindcluster.CreateWithDisplaySalutation(false))
	}()
	select {
	case err := <-result:
		return kindError("creating cluster "+o.Name, err)
	case <-ctx.Done():
	}
	late := fmt.Errorf("creating cluster %s, %w", o.Name, context.Cause(ctx))
	if o.Keep {
		return late
	}
	c.collectLogs(context.WithoutCancel(ctx))
	removeErr := c.removeNodes(context.WithoutCancel(ctx))
	select {
	case <-result:
	case <-time.After(time.Minute):
	}
	return errors.Join(late, removeErr)
}

// connect makes the clients from the kubeconfig that kind wrote.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of cluster %s, %w", c.state.Name, err)
	}
	config.QPS, config.Burst = 100, 200
	c.rest = config
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client of cluster %s, %w", c.state.Name, err)
	}
	return nil
}

// network waits until every node has a subnet for its pods, and joins them.
func (c *Cluster) network(ctx context.Context) error {
	c.say("connecting the networks of the nodes")
	var subnets map[string]string
	names := c.state.clusterNames()
	err := c.until(ctx, "waiting for every node to register", func(ctx context.Context) error {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		found, all := podCIDRs(nodes.Items, names)
		if !all {
			return fmt.Errorf("%d of %d nodes have a subnet for pods", len(found), len(names))
		}
		subnets = found
		return nil
	})
	if err != nil {
		return err
	}
	return c.each(names, func(node string) error { return c.join(ctx, node, subnets) })
}

// each does the same on several nodes at once.
func (c *Cluster) each(nodes []string, do func(node string) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { errs[i] = do(node) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// abandon keeps the logs of a creation that failed and removes the nodes.
func (c *Cluster) abandon(ctx context.Context, keep bool, err error) error {
	ctx = context.WithoutCancel(ctx)
	c.collectLogs(ctx)
	if keep {
		c.state.Unfinished = false
		return errors.Join(fmt.Errorf("%w\nthe nodes are left as they are; logs are in %s", err, c.LogsDir()), c.state.write(c.dir))
	}
	if removeErr := c.removeNodes(ctx); removeErr != nil {
		return errors.Join(err, removeErr)
	}
	if forgetErr := forget(c.dir, true); forgetErr != nil {
		return errors.Join(err, forgetErr)
	}
	return fmt.Errorf("%w\nlogs are in %s", err, c.LogsDir())
}

// Attach finds a cluster that Create has made, in this process or another.
func Attach(ctx context.Context, name string, engine *docker.Engine, progress io.Writer) (*Cluster, error) {
	if progress == nil {
		progress = io.Discard
	}
	if name == "" {
		name = DefaultName
	}
	c, err := newCluster(name, engine, binaries.SerialWriter(progress))
	if err != nil {
		return nil, err
	}
	there, err := c.provider.ListNodes(name)
	if err != nil {
		return nil, fmt.Errorf("looking for cluster %s, %w", name, err)
	}
	if len(there) == 0 {
		if s, err := readState(c.dir); err == nil && !s.Unfinished {
			return nil, fmt.Errorf("looking for cluster %s, somebody has removed its nodes: %w", name, ErrNotFound)
		}
		return nil, fmt.Errorf("looking for cluster %s, %w", name, ErrNotFound)
	}
	if c.state, err = readState(c.dir); err != nil {
		return nil, fmt.Errorf("looking for cluster %s, its nodes exist, but it was not made here, %w", name, err)
	}
	if c.state.Unfinished {
		return nil, fmt.Errorf("looking for cluster %s, %w", name, ErrUnfinished)
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c, nil
}

// State tells what the cluster is.
func (c *Cluster) State() State { return c.state }

// Engine is the container engine that has the nodes.
func (c *Cluster) Engine() *docker.Engine { return c.engine }

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.state.Name }

// Node returns what a node of Options is called in the cluster, or "".
func (c *Cluster) Node(name string) string {
	for _, n := range c.state.Nodes {
		if n.Name == name {
			return n.ClusterName
		}
	}
	return ""
}

// Kubeconfig is the path of an administrator's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// RESTConfig is the same for programs.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// LogsDir is the folder that the logs of the nodes are collected in.
func (c *Cluster) LogsDir() string { return filepath.Join(c.dir, "logs") }

// NodeNames lists the nodes that are registered now, sorted.
func (c *Cluster) NodeNames(ctx context.Context) ([]string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes, %w", err)
	}
	names := make([]string, 0, len(nodes.Items))
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names, nil
}

// KeepLogs makes Down collect the logs of the nodes and leave them.
func (c *Cluster) KeepLogs() {
	c.downMu.Lock()
	defer c.downMu.Unlock()
	c.keepLogs = true
}

// Down removes the nodes and everything that was written on this machine,
// except logs that are to be kept.
func (c *Cluster) Down(ctx context.Context) error {
	c.downMu.Lock()
	keep, again := c.keepLogs, c.isDown
	c.isDown = true
	c.downMu.Unlock()
	if again {
		return nil
	}
	close(c.done)
	if keep {
		c.collectLogs(ctx)
	}
	c.say("removing cluster %s", c.state.Name)
	if err := c.removeNodes(ctx); err != nil {
		return err
	}
	return forget(c.dir, keep)
}

// Remove removes a cluster by its name, complete or not, with its nodes and what
// it has written. The error is ErrNotFound where there is none of either.
func Remove(ctx context.Context, name string, engine *docker.Engine, progress io.Writer) error {
	if progress == nil {
		progress = io.Discard
	}
	c, err := newCluster(name, engine, binaries.SerialWriter(progress))
	if err != nil {
		return err
	}
	c.state.Name = name
	there, err := c.provider.ListNodes(name)
	if err != nil {
		return kindError("removing cluster "+name, err)
	}
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) && len(there) == 0 {
		return fmt.Errorf("removing cluster %s, %w", name, ErrNotFound)
	}
	return c.Down(ctx)
}

// removeWithin bounds the removal of nodes.
const removeWithin = 3 * time.Minute

// removeNodes lets kind remove the nodes, with their volumes. On a busy machine
// the engine may give up on a container that ends a moment later, so it is asked
// again.
func (c *Cluster) removeNodes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for {
		// A process that was killed may have left kind's lock, for which kind does
		// not wait.
		if err := os.Remove(c.Kubeconfig() + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing cluster %s, %w", c.state.Name, err)
		}
		result := make(chan error, 1)
		go func() { result <- c.provider.Delete(c.state.Name, c.Kubeconfig()) }()
		var err error
		select {
		case err = <-result:
		case <-ctx.Done():
			return fmt.Errorf("removing cluster %s, %w", c.state.Name, ctx.Err())
		}
		if err == nil {
			return nil
		}
		err = kindError("removing cluster "+c.state.Name, err)
		select {
		case <-time.After(3 * time.Second):
			c.say("trying again: %v", err)
		case <-ctx.Done():
			return err
		}
	}
}

// logsWithin bounds the collection of logs, which a broken node can hold up.
const logsWithin = 2 * time.Minute

// collectLogs writes the logs of the nodes to LogsDir. What can't be had is
// told and no error: they are collected because something failed already.
func (c *Cluster) collectLogs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logsWithin)
	defer cancel()
	c.say("collecting the logs of the nodes in %s", c.LogsDir())
	result := make(chan error, 1)
	go func() { result <- c.provider.CollectLogs(c.state.Name, c.LogsDir()) }()
	select {
	case err := <-result:
		if err != nil {
			c.say("some logs could not be had: %v", err)
		}
	case <-ctx.Done():
		c.say("collecting logs takes too long; given up")
	}
}

// CollectLogs writes the logs of the nodes and of their pods to LogsDir.
func (c *Cluster) CollectLogs(ctx context.Context) { c.collectLogs(ctx) }

func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintln(c.progress, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}
