// Package lab runs a real Kubernetes control plane without containers: etcd,
// kube-apiserver, kube-controller-manager, a scheduler and ladder-controller
// are plain processes on loopback, kwok stands in for the kubelets, and the
// nodes with their GPUs come from a fleet file.
//
// A lab starts in seconds, listens on ports that it chose itself and keeps
// everything in one temporary folder, so several of them can run side by side.
// Its processes do not outlive the program that called Up.
package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/replace"
)

//go:embed stages.yaml
var stages []byte

// dirPrefix begins the name of every lab's folder.
const dirPrefix = "ladder-lab-"

// Lab is a running lab.
type Lab struct {
	opts    Options
	layout  layout
	ports   []*reservation
	prober  *prober
	config  *rest.Config
	client  kubernetes.Interface
	started time.Time

	mu    sync.Mutex
	parts []*part // in the order of their start

	failed   chan error
	keepLogs atomic.Bool
	abort    context.CancelCauseFunc // ends Up when a part crashes meanwhile
	drivers  drivers
	down     sync.Once
	downErr  error
}

var _ cluster.Cluster = (*Lab)(nil)

// Up builds what is missing, starts a lab and returns when its nodes are Ready,
// its devices are published and its admission policies are in force. After an
// error nothing is left but the logs, whose place is told.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	programs, err := binaries.Ensure(ctx, opts.Progress, Programs(opts)...)
	if err != nil {
		return nil, err
	}
	opts.Progress = binaries.SerialWriter(opts.Progress)
	l := &Lab{opts: opts, failed: make(chan error, 1), started: time.Now()}
	upCtx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	l.abort = abort
	if err := l.up(upCtx, programs); err != nil {
		switch {
		case ctx.Err() != nil: // broken off, nothing went wrong
		case upCtx.Err() != nil: // what crashed is the reason for all else
			err = context.Cause(upCtx)
			fallthrough
		default:
			l.KeepLogs()
		}
		if downErr := l.Down(context.WithoutCancel(ctx)); downErr != nil {
			err = errors.Join(err, downErr)
		}
		return nil, fmt.Errorf("starting the lab, %w", err)
	}
	return l, nil
}

// Programs names what a lab with these options runs.
func Programs(opts Options) []string {
	names := []string{Etcd, APIServer, ControllerManager, Kwok}
	switch opts.Scheduler {
	case SchedulerLadder, SchedulerLadderDefault, "":
		names = append(names, LadderScheduler)
	case SchedulerStock, SchedulerStockConfigured:
		names = append(names, KubeScheduler)
	case SchedulerNone:
	}
	if !opts.WithoutController {
		names = append(names, LadderController)
	}
	return names
}

func (l *Lab) up(ctx context.Context, programs *binaries.Set) error {
	if err := l.prepare(); err != nil {
		return err
	}
	lease, grace := heartbeats(l.nodeCount())
	if err := l.start(ctx, programs, etcdSpec(l.layout)); err != nil {
		return err
	}
	if err := l.start(ctx, programs, apiServerSpec(l.layout)); err != nil {
		return err
	}
	if err := l.installBase(ctx); err != nil {
		return err
	}
	l.sayAfter("accounts, roles and kinds are there")

	rest := []spec{controllerManagerSpec(l.layout, grace), kwokSpec(l.layout, lease)}
	switch l.opts.Scheduler {
	case SchedulerLadder, SchedulerLadderDefault:
		rest = append(rest, ladderSchedulerSpec(l.layout, l.opts))
	case SchedulerStock, SchedulerStockConfigured:
		rest = append(rest, kubeSchedulerSpec(l.layout))
	case SchedulerNone:
	}
	if !l.opts.WithoutController {
		rest = append(rest, ladderControllerSpec(l.layout, l.opts))
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, s := range rest {
		group.Go(func() error { return l.start(groupCtx, programs, s) })
	}
	group.Go(func() error { return l.installAdmission(groupCtx) })
	group.Go(func() error { return l.accountsReady(groupCtx) })
	group.Go(func() error { return l.populate(groupCtx) })
	if err := group.Wait(); err != nil {
		return err
	}
	l.sayAfter("lab %q is up: %d nodes, %d devices, scheduler %s",
		l.opts.Name, l.nodeCount(), l.deviceCount(), l.opts.Scheduler)
	return nil
}

// prepare makes the folder, ports, keys and files of the lab.
func (l *Lab) prepare() error {
	dir, err := os.MkdirTemp(l.opts.Parent, dirPrefix)
	if err != nil {
		return fmt.Errorf("making the lab's folder, %w", err)
	}
	l.layout = layout{dir: dir, ports: map[string]int{}}
	for _, sub := range []string{"pki", "data", "logs", "journal", "kubeconfig"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("making the lab's folder, %w", err)
		}
	}
	for _, name := range portNames(l.opts) {
		port, err := reservePort()
		if err != nil {
			return err
		}
		l.ports = append(l.ports, port)
		l.layout.ports[name] = port.port
	}
	ca, err := writePKI(filepath.Join(dir, "pki"))
	if err != nil {
		return err
	}
	for _, u := range users {
		if err := writeKubeconfig(l.layout.kubeconfig(u), l.layout.server(), ca, u); err != nil {
			return err
		}
	}
	files := map[string][]byte{"kwok.yaml": stages}
	if l.opts.QuotaSettings != "" {
		files[quotaSettings] = []byte(l.opts.QuotaSettings)
	}
	switch l.opts.Scheduler {
	case SchedulerStock, SchedulerStockConfigured:
		files["kube-scheduler.yaml"], err = stockConfig(l.opts.Scheduler, l.layout.kubeconfig(userScheduler))
	case SchedulerLadderDefault:
		files["ladder-scheduler.yaml"], err = replace.Config(l.layout.kubeconfig(userLadderScheduler), false)
	case SchedulerLadder, SchedulerNone:
	}
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(l.layout.data(name), content, 0o600); err != nil {
			return fmt.Errorf("writing the configuration of a component, %w", err)
		}
	}
	if l.prober, err = newProber(l.layout); err != nil {
		return err
	}
	return l.connect()
}

func (l *Lab) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading the lab's kubeconfig, %w", err)
	}
	config.QPS = -1 // the API server's own fairness is limit enough
	config.UserAgent = "ladder-lab"
	l.config = config
	if l.client, err = kubernetes.NewForConfig(compact(config)); err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	return nil
}

// compact returns a configuration for clients of built-in kinds, which the API
// server also speaks in a form that costs both sides less than JSON.
func compact(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// start runs one more part.
func (l *Lab) start(ctx context.Context, programs *binaries.Set, s spec) error {
	p := &part{
		spec: s, path: programs.Path(s.name), log: l.layout.log(s.name), home: l.layout.data(""),
		prober: l.prober, crashed: l.crashed,
	}
	l.mu.Lock()
	l.parts = append(l.parts, p)
	l.mu.Unlock()
	if err := p.start(ctx); err != nil {
		return err
	}
	l.sayAfter("%s is ready", s.name)
	return nil
}

// crashed is told when a part, or a driver, has ended by itself.
func (l *Lab) crashed(err error) {
	l.KeepLogs()
	l.abort(err)
	select {
	case l.failed <- err:
	default: // only the first is of interest
	}
}

// Down ends the lab and removes its folder.
func (l *Lab) Down(ctx context.Context) error {
	l.down.Do(func() { l.downErr = l.takeDown(ctx) })
	return l.downErr
}

func (l *Lab) takeDown(ctx context.Context) error {
	l.drivers.stop()
	l.mu.Lock()
	parts := slices.Clone(l.parts)
	l.mu.Unlock()
	// What Ladder wrote is worth an orderly end (the journal); the control
	// plane's data goes away with it.
	for _, orderly := range []bool{true, false} {
		var ending sync.WaitGroup
		for _, p := range parts {
			own := p.spec.name == LadderScheduler || p.spec.name == LadderController
			if own == orderly {
				ending.Go(func() { p.end(ctx, !orderly) })
			}
		}
		ending.Wait()
	}
	for _, r := range l.ports {
		r.release()
	}
	if l.layout.dir == "" {
		return nil
	}
	if !l.keepLogs.Load() {
		return removing(os.RemoveAll(l.layout.dir))
	}
	// The journal is kept beside the logs: it shows what was decided on.
	l.say("logs are kept in %s, the journal in %s", l.layout.logs(), filepath.Dir(l.layout.journal()))
	return removing(removeAllBut(l.layout.dir, filepath.Base(l.layout.logs()), filepath.Base(filepath.Dir(l.layout.journal()))))
}

func removing(err error) error {
	if err != nil {
		return fmt.Errorf("removing the lab's folder, %w", err)
	}
	return nil
}

// removeAllBut empties a folder except for some names.
func removeAllBut(dir string, kept ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if slices.Contains(kept, entry.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (l *Lab) Kubeconfig() string { return l.layout.kubeconfig(userAdmin) }

// RESTConfig is the administrator's configuration for clients.
func (l *Lab) RESTConfig() *rest.Config { return rest.CopyConfig(l.config) }

// LogsDir is where each part has its log, <part>.log.
func (l *Lab) LogsDir() string { return l.layout.logs() }

// Journal is the file in which ladder-scheduler keeps its inputs and decisions.
// Those of schedulers before it lie beside it, under longer names.
func (l *Lab) Journal() string { return l.layout.journal() }

// Failed delivers the first crash.
func (l *Lab) Failed() <-chan error { return l.failed }

// KeepLogs makes Down leave the logs and the journal.
func (l *Lab) KeepLogs() { l.keepLogs.Store(true) }

// NodeNames lists the nodes that are registered.
func (l *Lab) NodeNames(ctx context.Context) ([]string, error) {
	nodes, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes, %w", err)
	}
	names := make([]string, 0, len(nodes.Items))
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// Components names the parts, sorted.
func (l *Lab) Components() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, 0, len(l.parts))
	for _, p := range l.parts {
		names = append(names, p.spec.name)
	}
	slices.Sort(names)
	return names
}

// Kill ends a part with SIGKILL; it stays down until Restart.
func (l *Lab) Kill(ctx context.Context, component string) error {
	p, err := l.part(component)
	if err != nil {
		return err
	}
	p.end(ctx, true)
	return nil
}

// Stop ends a part in an orderly way; it stays down until Restart.
func (l *Lab) Stop(ctx context.Context, component string) error {
	p, err := l.part(component)
	if err != nil {
		return err
	}
	p.end(ctx, false)
	return nil
}

// Restart ends a part in an orderly way and starts it again.
func (l *Lab) Restart(ctx context.Context, component string) error {
	p, err := l.part(component)
	if err != nil {
		return err
	}
	if err := p.restart(ctx); err != nil {
		return fmt.Errorf("restarting %s, %w", component, err)
	}
	return nil
}

func (l *Lab) part(name string) (*part, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.parts {
		if p.spec.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the lab has no component %q", name)
}

func (l *Lab) nodeCount() int {
	if l.opts.Fleet == nil {
		return 0
	}
	return l.opts.Fleet.NodeCount()
}

func (l *Lab) deviceCount() int {
	if l.opts.Fleet == nil {
		return 0
	}
	return l.opts.Fleet.DeviceCount()
}

func (l *Lab) say(format string, args ...any) {
	fmt.Fprintf(l.opts.Progress, format+"\n", args...)
}

// sayAfter tells a step that was reached, and how long after the start.
func (l *Lab) sayAfter(format string, args ...any) {
	l.say("%5.1f s  %s", time.Since(l.started).Seconds(), fmt.Sprintf(format, args...))
}

// environment is what the parts see of ours: no proxies (everything is on this
// machine) and none of the user's own settings.
func environment(home string) []string {
	env := []string{"HOME=" + home}
	for _, kept := range []string{"PATH", "TMPDIR", "TZ", "LANG"} {
		if value, ok := os.LookupEnv(kept); ok {
			env = append(env, kept+"="+value)
		}
	}
	return env
}
