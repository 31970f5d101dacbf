package command

// Clusters with real kubelets for Kubernetes' own suite.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/cluster/nodeimage"
	"gpuladder.dev/ladder/e2e/cluster/replace"
	"gpuladder.dev/ladder/e2e/images"
	"gpuladder.dev/ladder/e2e/upstream"
)

// upstreamCluster is the name of the clusters that the suite runs on.
const upstreamCluster = "ladder-upstream"

// upstreamAPIs are the API versions that are off by default and that tests of
// the suite use; they are those of the configuration that upstream tests with,
// less the ones that belong to feature gates which are off.
var upstreamAPIs = map[string]string{"resource.k8s.io/v1beta1": "true", "resource.k8s.io/v1beta2": "true"}

// kindTarget brings up one cluster after the other under the same name.
type kindTarget struct {
	engine *docker.Engine
	// node is the node image, archive holds the images of the tests' Pods.
	node, archive string
	// scheduler is ladder-scheduler's image.
	scheduler images.Built
	progress  io.Writer
}

// newKindTarget makes or finds everything that the clusters need.
func newKindTarget(ctx context.Context, suite *upstream.Suite, source nodeimage.Source, dir string, progress io.Writer) (_ *kindTarget, _ []upstream.Substitute, err error) {
	list(progress, "the machine:", kind.CheckLimits(len(upstreamNodes())))
	engine, err := prepare(ctx, source, false, progress, "create the cluster "+upstreamCluster+", twice")
	if err != nil {
		return nil, nil, err
	}
	t := &kindTarget{engine: engine, archive: filepath.Join(dir, "images.tar"), progress: progress}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close(context.WithoutCancel(ctx)))
		}
	}()
	if t.node, err = nodeimage.Ensure(ctx, nodeimage.Options{Source: source, Engine: engine, Progress: progress}); err != nil {
		return nil, nil, err
	}
	built, err := images.Build(ctx, engine, progress, "ladder-scheduler")
	if err != nil {
		return nil, nil, err
	}
	for _, b := range built.Images {
		if b.Name == "ladder-scheduler" {
			t.scheduler = b
		}
	}
	names, err := suite.Images(ctx, upstream.Substitutable()...)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	made, err := upstream.MakeImages(ctx, names, t.archive, progress)
	return t, made, err
}

// close stops a container engine that was started for this.
func (t *kindTarget) close(ctx context.Context) error {
	if !t.engine.Started() {
		return nil
	}
	return closeIdle(ctx, t.engine)
}

// upstreamNodes are the fewest that every test of the suite finds enough.
func upstreamNodes() []kind.Node {
	return []kind.Node{
		{Name: "control-plane", Role: kind.ControlPlane},
		{Name: "a", Role: kind.Worker},
		{Name: "b", Role: kind.Worker},
		{Name: "c", Role: kind.Worker},
	}
}

// up is an upstream.Target.
func (t *kindTarget) up(ctx context.Context, s upstream.Scheduler) (_ cluster.Cluster, err error) {
	o := kind.Options{
		Name: upstreamCluster, Nodes: upstreamNodes(), Image: t.node, Engine: t.engine,
		RuntimeConfig: upstreamAPIs, Progress: t.progress,
	}
	c, err := kind.Create(ctx, o)
	if errors.Is(err, kind.ErrExists) {
		fmt.Fprintf(t.progress, "removing the cluster %s that an earlier run left\n", upstreamCluster)
		if err := kind.Remove(ctx, upstreamCluster, t.engine, t.progress); err != nil {
			return nil, err
		}
		c, err = kind.Create(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.KeepLogs()
			err = errors.Join(err, c.Down(context.WithoutCancel(ctx)))
		}
	}()
	if err := c.LoadImages(ctx, t.archive); err != nil {
		return nil, err
	}
	if s == upstream.Ladder {
		if err := t.replace(ctx, c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// replace makes ladder-scheduler the default scheduler.
func (t *kindTarget) replace(ctx context.Context, c *kind.Cluster) error {
	if err := c.LoadImages(ctx, t.scheduler.Archive); err != nil {
		return err
	}
	controlPlane := c.Node("control-plane")
	fmt.Fprintf(t.progress, "putting ladder-scheduler in the place of kube-scheduler\n")
	node := func(ctx context.Context, argv ...string) (string, error) { return c.Exec(ctx, controlPlane, argv...) }
	return replace.Scheduler(ctx, c.RESTConfig(), node, controlPlane, t.scheduler.Reference, t.progress)
}
