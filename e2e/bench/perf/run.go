// Package perf runs one measurement in Kubernetes' own harness for the speed of
// scheduling, scheduler_perf: a kube-apiserver, the controllers that Pods with
// claims need and the scheduler in one process, etcd beside it.
//
// The scheduler is made by the harness, with the plugins that it is given. What
// ladder-scheduler does besides, it does here through the harness' hooks: CRDs
// are there before the plugin starts, and SchedulePod is wrapped by
// [ladder.Widen] when the harness hands the scheduler out, which is before the
// first Pod.
package perf

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	benchmark "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/client-go/ktesting"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/bench"
	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/app"
	"gpuladder.dev/ladder/scheduler/ladder"
)

const (
	// patience bounds waits that take moments.
	patience = time.Minute
	// flushPatience bounds the wait for the last records.
	flushPatience = 10 * time.Minute
	// schedulingPatience bounds the wait for the Pods of a workload.
	schedulingPatience = 20 * time.Minute
)

// Measure runs a measurement as a benchmark. It fails b where something went
// wrong, and where a device was given away twice.
func Measure(b *testing.B, spec bench.Spec) *bench.Result {
	start := time.Now()
	m := &measurement{spec: spec, result: &bench.Result{Run: spec.Run}}
	path, threshold, err := configure(spec)
	if err != nil {
		b.Fatal(err)
	}
	sayWhereSourceLies(b, spec)
	if err := flag.Set("data-items-dir", spec.Out); err != nil {
		b.Fatalf("choosing a folder for results, %v", err)
	}
	registry, err := m.registry()
	if err != nil {
		b.Fatal(err)
	}
	benchmark.RunBenchmarkPerfScheduling(b, path, topic, registry,
		benchmark.WithPrepareFn(m.prepare),
		benchmark.WithNodeUpdateFn(m.take),
		benchmark.WithPodsSchedulingTimeout(schedulingPatience))
	m.decisions.report(m.result)
	if err := readUpstream(spec.Out, m.result); err != nil {
		b.Error(err)
	}
	m.result.Threshold = threshold
	m.result.Seconds = time.Since(start).Seconds()
	return m.result
}

// sayWhereSourceLies lets the harness find the API server's test certificates.
// It looks for them beside its source, whose place -trimpath has made relative
// to the module cache; these are the variables that say to what.
func sayWhereSourceLies(b *testing.B, spec bench.Spec) {
	_, file, _, _ := goruntime.Caller(0)
	if filepath.IsAbs(file) {
		return
	}
	cache, _, _ := strings.Cut(spec.Upstream, filepath.FromSlash("k8s.io/kubernetes@"))
	b.Setenv("TEST_SRCDIR", cache)
	b.Setenv("TEST_WORKSPACE", ".")
}

// measurement is one measurement under way.
type measurement struct {
	spec      bench.Spec
	result    *bench.Result
	core      *ladder.Core // nil for stock
	installed sync.Once
	taken     sync.Once
	decisions decisions
}

// registry returns Ladder's plugins, or none.
func (m *measurement) registry() (frameworkruntime.Registry, error) {
	if !m.spec.Scheduler.IsLadder() {
		return nil, nil
	}
	core, registry, err := app.Plugins(app.Options{}, klog.Background())
	if err != nil {
		return nil, err
	}
	m.core = core
	own := registry[ladder.Name]
	registry[ladder.Name] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		client, err := apiextensions.NewForConfig(h.KubeConfig())
		if err != nil {
			return nil, fmt.Errorf("making a client for CRDs, %w", err)
		}
		if err := m.install(ctx, client); err != nil {
			return nil, err
		}
		return own(ctx, args, h)
	}
	return registry, nil
}

// install makes the CRDs, once. The stock scheduler's API server has them too.
func (m *measurement) install(ctx context.Context, client apiextensions.Interface) (err error) {
	m.installed.Do(func() { err = installCRDs(ctx, client) })
	return err
}

func installCRDs(ctx context.Context, client apiextensions.Interface) error {
	api := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, document := range crds.All() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(document, crd); err != nil {
			return fmt.Errorf("reading a CRD, %w", err)
		}
		if _, err := api.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating CRD %s, %w", crd.Name, err)
		}
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			now, err := api.Get(ctx, crd.Name, metav1.GetOptions{})
			return err == nil && established(now), err
		})
		if err != nil {
			return fmt.Errorf("waiting for CRD %s, %w", crd.Name, err)
		}
	}
	return nil
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

// prepare runs once the scheduler does, before there are nodes.
func (m *measurement) prepare(tCtx ktesting.TContext) error {
	if err := m.install(tCtx, tCtx.APIExtensions()); err != nil {
		return err
	}
	if m.core != nil {
		ready, cancel := context.WithTimeout(tCtx, patience)
		defer cancel()
		if err := m.core.WaitUntilReady(ready); err != nil {
			return err
		}
	}
	m.result.Heap.LiveBefore = liveHeap()
	tCtx.CleanupCtx(func(tCtx ktesting.TContext) {
		if err := m.finish(tCtx); err != nil {
			tCtx.Errorf("finishing the measurement: %v", err)
		}
	})
	if !m.spec.Workload.Ours() {
		return nil
	}
	return makeScene(tCtx, m.spec)
}

// take gets hold of the scheduler. The harness hands it out after nodes were
// made, which is before any Pod, so nothing is being scheduled.
func (m *measurement) take(_ ktesting.TContext, sched *scheduler.Scheduler, _ *benchmark.Workload, _ *corev1.NodeList) error {
	m.taken.Do(func() {
		if m.spec.Scheduler == bench.Ladder {
			ladder.Widen(sched)
		}
		sched.SchedulePod = m.decisions.timed(sched.SchedulePod)
	})
	return nil
}

// finish runs when all Pods are scheduled, with everything still running.
func (m *measurement) finish(tCtx ktesting.TContext) error {
	end := time.Now()
	if m.core != nil {
		ctx, cancel := context.WithTimeout(tCtx, flushPatience)
		defer cancel()
		if err := m.core.Flush(ctx); err != nil {
			return fmt.Errorf("waiting for records, %w", err)
		}
		m.result.RecordsLag = time.Since(end).Seconds()
	}
	m.result.Heap.LiveAfter = liveHeap()
	records, err := tCtx.Dynamic().Resource(ours("allocationdecisions")).List(tCtx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("counting records, %w", err)
	}
	m.result.Records = len(records.Items)
	return m.checkDevices(tCtx)
}

// checkDevices fails where two claims hold one device, and counts the boards
// that Pods of a workload of ours got.
func (m *measurement) checkDevices(tCtx ktesting.TContext) error {
	claims, err := tCtx.Client().ResourceV1().ResourceClaims("").List(tCtx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims, %w", err)
	}
	var errs []error
	holders := map[string]string{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			key := filepath.Join(device.Driver, device.Pool, device.Device)
			name := claim.Namespace + "/" + claim.Name
			if other, held := holders[key]; held {
				errs = append(errs, fmt.Errorf("device %s was given to %s and to %s", key, other, name))
			}
			holders[key] = name
			if device.Driver == v1alpha1.DriverName && claim.Namespace == measured {
				if m.result.Boards == nil {
					m.result.Boards = map[string]int{}
				}
				m.result.Boards[boardOf(device.Pool)]++
			}
		}
	}
	return errors.Join(errs...)
}
