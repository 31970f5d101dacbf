//go:build e2e

package suites

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

//go:embed testdata/*.yaml
var testdata embed.FS

// scene is one suite under way: a namespace of its own, and what it has to put
// back at the end.
type scene struct {
	*world
	name string
	ns   string
	t    *testing.T // the whole suite's, not one step's
	// begun is where in the history the suite began.
	begun int
	// undo is done in reverse order after what there is to say about a failure
	// was written down.
	undo []func(context.Context) error
}

// step is one assessment of a suite.
type step func(ctx context.Context, t *testing.T, s *scene)

// suite makes the feature of a suite. Providers are where it runs; core says
// whether it is part of the core.
type suite struct {
	name      string
	describe  string
	core      bool
	providers []string
	steps     []named
}

type named struct {
	name string
	run  step
}

var everywhere = []string{onLab, onKind}

// then adds a step.
func (d suite) then(name string, run step) suite {
	d.steps = append(slices.Clone(d.steps), named{name, run})
	return d
}

// run runs the suite as a feature.
func (d suite) run(t *testing.T) {
	t.Helper()
	f := features.NewWithDescription(d.name, d.describe).WithLabel("suite", d.name).WithLabel("core", fmt.Sprint(d.core))
	for _, p := range d.providers {
		f = f.WithLabel("provider", p)
	}
	s := &scene{name: d.name}
	f = f.Setup(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		s.begin(ctx, t)
		return ctx
	})
	for _, one := range d.steps {
		f = f.Assess(one.name, func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			one.run(ctx, t, s)
			return ctx
		})
	}
	testenv.Test(t, f.Feature())
}

// begin makes the namespace. Every suite starts with all devices free and
// healthy: what is not was left by somebody else, and no finding of this suite.
func (s *scene) begin(ctx context.Context, t *testing.T) {
	s.world, s.t, s.begun = here, t, len(here.log.History())
	t.Cleanup(s.finish)
	s.await(ctx, t, within.mended, "all devices to be free and healthy before the suite starts", func() (bool, string) {
		for _, d := range s.devices("") {
			if d.claim != "" || len(s.taints(d)) > 0 {
				return false, fmt.Sprintf("%s is held by %q, its taints are %v", d, d.claim, s.taints(d))
			}
		}
		return len(s.devices("")) > 0, "there are no devices"
	})
	s.namespace(ctx, t, s.name)
}

// namespace makes the scene's namespace.
func (s *scene) namespace(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: ownPrefix + name + "-", Labels: map[string]string{labelSuite: s.name}}}
	if err := s.client.Create(ctx, ns); err != nil {
		t.Fatalf("creating a namespace, %v", err)
	}
	s.ns = ns.Name
	s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, ns)) })
	s.atEnd(s.deleteAll)
	// Until it has an account, no Pod can be created in a namespace.
	err := workload.WaitFor(ctx, within.admission, "the namespace's service account", func(ctx context.Context) (bool, string, error) {
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.ns, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, fmt.Sprint(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// beside is the same suite in a second namespace, which goes with the first.
func (s *scene) beside(ctx context.Context, t *testing.T, name string) *scene {
	t.Helper()
	other := &scene{world: s.world, name: s.name, t: s.t, begun: s.begun}
	s.atEnd(func(ctx context.Context) error { return errors.Join(other.putBack(ctx), other.allFree(ctx)) })
	other.namespace(ctx, t, s.name+"-"+name)
	return other
}

// atEnd has something undone when the suite is over.
func (s *scene) atEnd(undo func(context.Context) error) { s.undo = append(s.undo, undo) }

// putBack undoes everything, also where something of it fails.
func (s *scene) putBack(ctx context.Context) error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo(ctx))
	}
	return errors.Join(errs...)
}

// finish writes down what there is to say about a failure, undoes everything
// and judges what was recorded.
func (s *scene) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), within.dump)
	defer cancel()
	if s.t.Failed() {
		s.world.failed = true
		s.dumpAll(ctx)
	}
	ctx, cancel = context.WithTimeout(context.Background(), within.cleanup)
	defer cancel()
	if err := s.putBack(ctx); err != nil {
		s.t.Errorf("cleaning up, %v", err)
	}
	if err := s.allFree(ctx); err != nil {
		s.t.Error(err)
	}
	if node, ok := s.provider.(nodes); ok {
		if err := s.clean(ctx, node); err != nil {
			s.t.Error(err)
		}
	}
	// What earlier suites did was judged with them.
	history := s.log.History()[s.begun:]
	for _, report := range []invariants.Report{invariants.ExclusiveDevices(history), invariants.FreedDevices(history, within.freed)} {
		if report.Verdict == invariants.Fail {
			s.t.Error(report.String())
		}
	}
	if s.t.Failed() {
		s.world.failed = true
	}
}

// allFree waits until the namespace holds no device.
func (s *scene) allFree(ctx context.Context) error {
	return s.log.Await(ctx, within.freed, "all devices to be free after the suite", func() (bool, string) {
		for _, d := range s.devices("") {
			if strings.HasPrefix(d.claim, s.ns+"/") {
				return false, fmt.Sprintf("%s is held by %s", d, d.claim)
			}
		}
		return true, ""
	})
}

// deleteAll deletes every Pod of the suite, with the time that each may take to
// end: a Pod that is forced away is gone before the kubelet has freed its device.
func (s *scene) deleteAll(ctx context.Context) error {
	if err := s.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(s.ns)); err != nil {
		return fmt.Errorf("deleting Pods, %w", err)
	}
	return s.log.Await(ctx, within.cleanup, "the suite's Pods to be gone", func() (bool, string) {
		left := watchlog.List[*corev1.Pod](s.log, s.ns)
		return len(left) == 0, fmt.Sprintf("%d are left", len(left))
	})
}

// await waits for something to be so, asking again with each change that the
// watch log sees.
func (s *scene) await(ctx context.Context, t *testing.T, bound time.Duration, what string, done func() (bool, string)) {
	t.Helper()
	if err := s.log.Await(ctx, bound, what, done); err != nil {
		t.Fatal(err)
	}
}

// shipped makes sure that policies of the catalog are there.
func (s *scene) shipped(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	policies, err := catalog.Policies()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		if !slices.Contains(names, p.Name) {
			continue
		}
		switch err := s.client.Create(ctx, p.DeepCopy()); {
		case err == nil:
			s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, p)) })
		case !apierrors.IsAlreadyExists(err): // the chart may have brought it
			t.Fatalf("creating policy %s, %v", p.Name, err)
		}
	}
	s.policiesReady(ctx, t, names...)
}

// apply applies a file of testdata. What it holds is removed at the end; $NS
// stands for the suite's namespace, $NODE for the node with the H100s, and
// words are further ones, each with what it stands for.
func (s *scene) apply(ctx context.Context, t *testing.T, file string, words ...string) {
	t.Helper()
	content, err := testdata.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	words = append([]string{"$NS", s.ns, "$NODE", s.devices("H100")[0].node}, words...)
	objects, err := apply.Decode(file, []byte(strings.NewReplacer(words...).Replace(string(content))))
	if err != nil {
		t.Fatal(err)
	}
	var policies []string
	for _, o := range objects {
		s.atEnd(func(ctx context.Context) error { return client.IgnoreNotFound(s.client.Delete(ctx, o)) })
		if o.GetKind() == "AcceleratorPolicy" {
			policies = append(policies, o.GetName())
		}
	}
	bounded, cancel := context.WithTimeout(ctx, within.admission)
	defer cancel()
	if err := apply.Objects(bounded, s.client, objects...); err != nil {
		t.Fatal(err)
	}
	s.policiesReady(ctx, t, policies...)
}

// policiesReady waits until Pods of the suite's namespace can use policies.
func (s *scene) policiesReady(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.await(ctx, t, within.policyReady, "policy "+name+" to be ready", func() (bool, string) {
			p := watchlog.Get[*v1alpha1.AcceleratorPolicy](s.log, client.ObjectKey{Name: name})
			if p == nil || p.Status.ObservedGeneration != p.Generation || p.Status.TemplateName == "" {
				return false, fmt.Sprintf("%+v", p)
			}
			template := watchlog.Get[*resourcev1.ResourceClaimTemplate](s.log, client.ObjectKey{Namespace: s.ns, Name: p.Status.TemplateName})
			return template != nil, "there is no template " + p.Status.TemplateName
		})
	}
}

// pod is a workload that asks for a policy and runs on this cluster.
func (s *scene) pod(name, policy string, overrides ...func(*corev1.Pod)) *corev1.Pod {
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}
	overrides = append(overrides, func(pod *corev1.Pod) {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources.Requests = small
		}
		s.workload(pod)
	})
	return workload.Pod(s.ns, name, policy, overrides...)
}

// create creates Pods and returns when admission has let them in.
func (s *scene) create(ctx context.Context, t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := workload.CreateAdmitted(ctx, s.client, pod, within.admission); err != nil {
			t.Fatal(err)
		}
	}
}

// start creates a Pod and waits until it runs.
func (s *scene) start(ctx context.Context, t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.create(ctx, t, pod)
	return s.running(ctx, t, pod.Name)
}

// fill takes every free device of a model.
func (s *scene) fill(ctx context.Context, t *testing.T, model, policy string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for i, d := range s.devices(model) {
		if d.claim == "" {
			pods = append(pods, s.pod(fmt.Sprintf("%s-%d", strings.ToLower(model), i), policy))
		}
	}
	s.create(ctx, t, pods...)
	for i := range pods {
		pods[i] = s.running(ctx, t, pods[i].Name)
	}
	for _, d := range s.devices(model) {
		if !strings.HasPrefix(d.claim, s.ns+"/") {
			t.Fatalf("device %s is not taken by Pods of policy %s but held by %q", d, policy, d.claim)
		}
	}
	return pods
}

// delete deletes Pods and waits until they are gone.
func (s *scene) delete(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
		if err := s.client.Delete(ctx, pod); err != nil {
			t.Fatalf("deleting Pod %s, %v", name, err)
		}
	}
	for _, name := range names {
		s.await(ctx, t, within.gone, "Pod "+name+" to be gone", func() (bool, string) {
			pod := s.current(name)
			return pod == nil, describe(pod)
		})
	}
}

// current is a Pod as the watch log knows it, or nil.
func (s *scene) current(name string) *corev1.Pod {
	return watchlog.Get[*corev1.Pod](s.log, client.ObjectKey{Namespace: s.ns, Name: name})
}
