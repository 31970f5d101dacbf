//go:build e2e

package suites

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

// provider is what the suites need of a cluster beyond its API.
type provider interface {
	cluster.Cluster
	// prepare gives nodes the devices that the suites want.
	prepare(ctx context.Context) error
	// killScheduler ends ladder-scheduler without warning; it stays down until
	// startScheduler, which returns when it works.
	killScheduler(ctx context.Context) error
	startScheduler(ctx context.Context) error
	// breakDevice makes a device fail as a lost board does; mendDevice ends
	// that.
	breakDevice(ctx context.Context, d device) error
	mendDevice(ctx context.Context, d device) error
	// workload makes the containers of a Pod workloads that can run here and
	// tell what they see of their devices.
	workload(pod *corev1.Pod)
	// dump writes the logs of Ladder's and the cluster's components.
	dump(ctx context.Context, dir string) error
	// end gives the cluster back.
	end(ctx context.Context) error
}

// world is the cluster under test and the record of what happens in it.
type world struct {
	*settings
	provider
	client client.WithWatch
	kube   kubernetes.Interface
	log    *watchlog.Log
	failed bool // a suite failed
	// commands is the program ladder, once a suite has asked for it.
	commands string
}

// newWorld attaches to the cluster, or starts a lab.
func newWorld(ctx context.Context, s *settings) (*world, error) {
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return nil, err
	}
	w := &world{settings: s}
	var err error
	switch s.provider {
	case onLab:
		w.provider, err = startLab(ctx)
	default:
		w.provider, err = attachKind(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	if err = w.connect(ctx); err == nil {
		err = w.sweep(ctx)
	}
	if err == nil {
		err = w.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.provider.end(context.WithoutCancel(ctx)))
	}
	return w, nil
}

func (w *world) connect(ctx context.Context) error {
	config := w.RESTConfig()
	config.QPS = -1
	config.UserAgent = "ladder-e2e"
	config.WarningHandler = rest.NoWarnings{}
	var err error
	if w.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	if w.kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	w.log, err = watchlog.Start(ctx, w.client,
		&corev1.PodList{}, &corev1.NodeList{}, &corev1.PersistentVolumeClaimList{},
		&resourcev1.ResourceClaimList{}, &resourcev1.ResourceSliceList{}, &resourcev1.ResourceClaimTemplateList{},
		&v1alpha1.AcceleratorPolicyList{}, &v1alpha1.PolicyRevisionList{}, &v1alpha1.AllocationDecisionList{}, &v1alpha1.TenantQuotaList{})
	return err
}

// end judges the whole run once more, keeps the history, and gives the cluster
// back.
func (w *world) end(ctx context.Context) error {
	if w.log == nil {
		return w.provider.end(ctx)
	}
	var errs []error
	if node, ok := w.provider.(nodes); ok {
		errs = append(errs, w.lastLook(ctx, node))
	}
	w.log.Stop()
	history := w.log.History()
	for _, report := range []invariants.Report{invariants.ExclusiveDevices(history), invariants.FreedDevices(history, within.freed)} {
		fmt.Fprintln(os.Stderr, report.String())
		// Too little seen is no pass, except where nothing was to be seen.
		if report.Verdict == invariants.Fail || report.Verdict == invariants.Inconclusive && report.Checked > 0 {
			errs = append(errs, errors.New(report.String()))
		}
	}
	if w.artifacts != "" {
		errs = append(errs, w.keep(history))
	}
	if w.failed || errors.Join(errs...) != nil {
		w.KeepLogs()
	}
	return errors.Join(append(errs, w.provider.end(ctx))...)
}

// lastLook looks at every node once the time of the last Pod is over: a trace
// that is there then was left for good.
func (w *world) lastLook(ctx context.Context, node nodes) error {
	last := time.Time{}
	for _, e := range w.log.History() {
		if e.Pod != nil && e.Type == watch.Deleted {
			last = e.At
		}
	}
	if last.IsZero() {
		return nil
	}
	timer := time.NewTimer(time.Until(last.Add(within.freed + lookEvery)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, name := range w.gpuNodes() {
		err := w.lookUntil(ctx, node, name, "be looked at", func(*invariants.Host) bool { return true })
		if err != nil {
			return err
		}
	}
	return nil
}

// gpuNodes are the nodes with devices.
func (w *world) gpuNodes() []string {
	var names []string
	for _, d := range w.devices("") {
		if !slices.Contains(names, d.node) {
			names = append(names, d.node)
		}
	}
	return names
}

// keep writes the history, to be judged again without the cluster.
func (w *world) keep(history invariants.History) error {
	if err := os.MkdirAll(w.artifacts, 0o755); err != nil {
		return fmt.Errorf("keeping the history, %w", err)
	}
	f, err := os.Create(filepath.Join(w.artifacts, "history.jsonl"))
	if err != nil {
		return fmt.Errorf("keeping the history, %w", err)
	}
	return errors.Join(history.Write(f), f.Close())
}

// device is one device of Ladder's driver.
type device struct {
	node, name, model string
	numa              int64
	claim             string // what it is allocated to, namespace/name
}

// devices are those of a model, or with "" of all, as slices and claims say now;
// by node and name.
func (w *world) devices(model string) []device {
	holder := map[[2]string]string{}
	for _, claim := range watchlog.List[*resourcev1.ResourceClaim](w.log, "") {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == v1alpha1.DriverName {
				holder[[2]string{r.Pool, r.Device}] = claim.Namespace + "/" + claim.Name
			}
		}
	}
	found := map[[2]string]device{}
	for _, s := range watchlog.List[*resourcev1.ResourceSlice](w.log, "") {
		if s.Spec.Driver != v1alpha1.DriverName || s.Spec.NodeName == nil {
			continue
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			key := [2]string{s.Spec.Pool.Name, d.Name}
			one := device{node: *s.Spec.NodeName, name: d.Name, claim: holder[key]}
			if a := d.Attributes[fleet.AttributeModel]; a.StringValue != nil {
				one.model = *a.StringValue
			}
			if a := d.Attributes[fleet.AttributeNUMANode]; a.IntValue != nil {
				one.numa = *a.IntValue
			}
			if model == "" || one.model == model {
				found[key] = one
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b device) int {
		return slices.Compare([]string{a.node, a.name}, []string{b.node, b.name})
	})
}

func (d device) String() string { return d.node + "/" + d.name }

// models are those of all devices, by node/name.
func (w *world) models() map[string]string {
	models := map[string]string{}
	for _, d := range w.devices("") {
		models[d.String()] = d.model
	}
	return models
}

// taints are those that the slices tell of a device.
func (w *world) taints(d device) []resourcev1.DeviceTaint {
	for _, s := range watchlog.List[*resourcev1.ResourceSlice](w.log, "") {
		if s.Spec.Driver != v1alpha1.DriverName || s.Spec.NodeName == nil || *s.Spec.NodeName != d.node {
			continue
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == d.name {
				return s.Spec.Devices[i].Taints
			}
		}
	}
	return nil
}
