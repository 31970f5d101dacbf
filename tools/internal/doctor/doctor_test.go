package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/tools/internal/command"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// patient is a cluster to examine: a well one, unless a test changes it.
type patient struct {
	t       *testing.T
	version version.Info
	objects map[string]runtime.Object // by kind and name
	served  map[schema.GroupVersion][]string
	// refuse gives the error of a request, by verb and resource.
	refuse map[string]error
	// keep is what the server makes of a claim.
	keep func(*resourcev1.ResourceClaim)
}

func well(t *testing.T) *patient {
	t.Helper()
	p := &patient{
		t: t, version: version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"}, objects: map[string]runtime.Object{}, refuse: map[string]error{},
		served: map[schema.GroupVersion][]string{
			resourcev1.SchemeGroupVersion:              {"resourceclaims", "resourceclaims/status", "resourceclaimtemplates", "resourceslices", "deviceclasses", "devicetaintrules"},
			admissionregistrationv1.SchemeGroupVersion: {"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"},
			v1alpha1.GroupVersion:                      {"acceleratorpolicies", "tenantquotas", "devicemigrations"},
		},
	}
	for _, doc := range crds.All() {
		kind := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &kind.Object); err != nil {
			t.Fatal(err)
		}
		kind.Object = plain(kind.Object)
		if err := unstructured.SetNestedSlice(kind.Object, []any{map[string]any{"type": "Established", "status": "True"}}, "status", "conditions"); err != nil {
			t.Fatal(err)
		}
		p.with(kind)
	}
	guard, err := catalog.DefaultGuard().Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range guard {
		object.Object = plain(object.Object)
		p.with(object)
	}
	return p.with(
		lease("ladder-system", schedulerName, "ladder-scheduler-x_1", 5*time.Second),
		lease("ladder-system", controllerName, "ladder-controller-x_1", 5*time.Second),
		lease(metav1.NamespaceSystem, stockLease, "control-plane_1", 5*time.Second),
		deployment(schedulerName, 1), deployment(controllerName, 1), daemonSet(2),
		driverPod("n1", corev1.ConditionTrue), driverPod("n2", corev1.ConditionTrue),
		node("n1", nil), node("n2", nil), slice("n1"), slice("n2"),
		compile.DeviceClass(v1alpha1.DriverName), policy("h100-first", metav1.ConditionTrue, 1), quota("a", "team-a"), quota("b", "team-b"),
	)
}

func (p *patient) with(objects ...runtime.Object) *patient {
	for _, o := range objects {
		p.objects[id(p.t, o)] = o
	}
	return p
}

func (p *patient) without(objects ...runtime.Object) *patient {
	for _, o := range objects {
		name := id(p.t, o)
		if p.objects[name] == nil {
			p.t.Fatalf("there is no %s", name)
		}
		delete(p.objects, name)
	}
	return p
}

func id(t *testing.T, o runtime.Object) string {
	t.Helper()
	kind := o.GetObjectKind().GroupVersionKind().Kind
	if kinds, _, err := testScheme(t).ObjectKinds(o); err == nil && kind == "" {
		kind = kinds[0].Kind
	}
	m := o.(metav1.Object)
	return kind + " " + m.GetNamespace() + "/" + m.GetName()
}

// typed knows the kinds that are not written as they are sent.
var typed = sync.OnceValues(func() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
})

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := typed()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *patient) clients() (*dynamicfake.FakeDynamicClient, *fakediscovery.FakeDiscovery) {
	p.t.Helper()
	var objects []runtime.Object
	for name, o := range p.objects {
		if _, ok := o.(*unstructured.Unstructured); !ok {
			kinds, _, err := testScheme(p.t).ObjectKinds(o)
			if err != nil {
				p.t.Fatal(err)
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			if err != nil {
				p.t.Fatalf("%s: %v", name, err)
			}
			u := &unstructured.Unstructured{Object: content}
			u.SetGroupVersionKind(kinds[0])
			o = u
		}
		objects = append(objects, o)
	}
	d := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		nodesGVR: "NodeList", podsGVR: "PodList", leasesGVR: "LeaseList", deploymentsGVR: "DeploymentList", daemonSetsGVR: "DaemonSetList",
		slicesGVR: "ResourceSliceList", classesGVR: "DeviceClassList", claimsGVR: "ResourceClaimList", rulesGVR: "DeviceTaintRuleList",
		guardsGVR: "ValidatingAdmissionPolicyList", bindingsGVR: "ValidatingAdmissionPolicyBindingList", kindsGVR: "CustomResourceDefinitionList",
		policiesGVR: "AcceleratorPolicyList", quotasGVR: "TenantQuotaList", migrationsGVR: "DeviceMigrationList",
	}, objects...)
	d.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err := p.refuse[action.GetVerb()+" "+action.GetResource().Resource]
		return err != nil, nil, err
	})
	d.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
			p.t.Error("a claim is created in earnest")
		}
		if err := p.refuse["create resourceclaims"]; err != nil {
			return true, nil, err
		}
		sent := create.GetObject().(*unstructured.Unstructured)
		claim := &resourcev1.ResourceClaim{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(sent.Object, claim); err != nil {
			return true, nil, err
		}
		if p.keep != nil {
			p.keep(claim)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(claim)
		return true, &unstructured.Unstructured{Object: content}, err
	})
	served := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &p.version}
	for gv, resources := range p.served {
		list := &metav1.APIResourceList{GroupVersion: gv.String()}
		for _, r := range resources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r})
		}
		served.Resources = append(served.Resources, list)
	}
	return d, served
}

func (p *patient) examine() *Report {
	p.t.Helper()
	d, served := p.clients()
	report, err := Examine(p.t.Context(), d, served, now)
	if err != nil {
		p.t.Fatal(err)
	}
	return report
}

// requireFindings compares what was found with "check severity: words", in order.
func (p *patient) requireFindings(want ...string) {
	p.t.Helper()
	var got []string
	for _, f := range p.examine().Findings {
		got = append(got, f.Check+" "+string(f.Severity)+": "+strings.TrimSpace(f.Object+" "+f.Summary))
		if f.Severity != Unknown && f.Action == "" {
			p.t.Errorf("nothing is said about what to do: %+v", f)
		}
	}
	ok := len(got) == len(want)
	for i := 0; ok && i < len(want); i++ {
		start, words, _ := strings.Cut(want[i], ": ")
		ok = strings.HasPrefix(got[i], start+": ") && strings.Contains(got[i], words)
	}
	if !ok {
		p.t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func lease(namespace, name, holder string, ago time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-ago))),
		},
	}
}

func labels(name string) map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "ladder", labelName: name}
}

func deployment(name string, ready int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ladder-system", Name: name, Labels: labels(name)},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: ready + 1},
	}
}

func daemonSet(ready int32) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ladder-system", Name: driverName, Labels: labels(driverName)},
		Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: ready},
	}
}

func driverPod(node string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ladder-system", Name: "driver-" + node, Labels: labels(driverName)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func node(name string, allocatable map[corev1.ResourceName]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}}}
	for r, quantity := range allocatable {
		n.Status.Allocatable[r] = resource.MustParse(quantity)
	}
	return n
}

func slice(node string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.Spec = resourcev1.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To("H100")}}}},
	}
	return s
}

func class(name string, selectors ...string) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, s := range selectors {
		c.Spec.Selectors = append(c.Spec.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: s}})
	}
	return c
}

func policy(name string, ready metav1.ConditionStatus, active int64) *v1alpha1.AcceleratorPolicy {
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}}
	p.Spec.Tiers = []v1alpha1.Tier{{Name: "any"}}
	p.Status.ObservedGeneration, p.Status.ActiveRevision = 3, active
	p.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: ready, Reason: "Invalid", Message: "spec.tiers: what a tier"}}
	return p
}

func quota(name string, namespaces ...string) *v1alpha1.TenantQuota {
	return &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TenantQuotaSpec{
		Namespaces: namespaces, Models: []v1alpha1.ModelQuota{{Model: "H100"}},
	}}
}

func TestAWellCluster(t *testing.T) {
	p := well(t)
	p.requireFindings()
	report := p.examine()
	if report.Server != "v1.37.2" || len(report.Checks) != len(checks()) || report.exit() != nil {
		t.Errorf("got %+v", report)
	}
}

// What can't be read is told once, and is no reason to think ill of the rest.
func TestUnreadable(t *testing.T) {
	p := well(t)
	for _, r := range []schema.GroupVersionResource{nodesGVR, podsGVR, leasesGVR, guardsGVR, kindsGVR, quotasGVR} {
		p.refuse["list "+r.Resource] = apierrors.NewForbidden(r.GroupResource(), "", errors.New("no"))
	}
	p.requireFindings(
		"access unknown: nodes could not be read", "access unknown: pods could not be read", "access unknown: leases could not be read",
		"access unknown: validatingadmissionpolicies could not be read", "access unknown: tenantquotas could not be read",
		"access unknown: customresourcedefinitions could not be read",
	)
	var exit *command.Exit
	if err := p.examine().exit(); !errors.As(err, &exit) || exit.Code != 2 {
		t.Errorf("ends with %v, want 2", err)
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	p := well(t)
	d, served := p.clients()
	served.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no answer") })
	if _, err := Examine(t.Context(), d, served, now); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
}

func TestExit(t *testing.T) {
	for name, test := range map[string]struct {
		severities []Severity
		code       int
	}{
		"nothing": {nil, 0}, "a warning": {[]Severity{Warning}, 0}, "unknown": {[]Severity{Warning, Unknown}, 2}, "an error": {[]Severity{Unknown, Error}, 1},
	} {
		report := &Report{}
		for _, s := range test.severities {
			report.Findings = append(report.Findings, Finding{Severity: s})
		}
		err, code := report.exit(), 0
		var exit *command.Exit
		if errors.As(err, &exit) {
			code = exit.Code
		}
		if code != test.code {
			t.Errorf("%s: ends with %d, want %d", name, code, test.code)
		}
	}
}

func TestPrinted(t *testing.T) {
	report := &Report{Server: "v1.37.2", Checks: []string{"version", "apis", "quotas"}, Findings: []Finding{
		{Check: "access", Severity: Unknown, Summary: "nodes could not be read"},
		{Check: "quotas", Severity: Error, Object: "Namespace x", Summary: "belongs to two", Meaning: "What follows.", Action: "What to do."},
	}}
	var out bytes.Buffer
	if err := printText(&out, command.Streams{}, report); err != nil {
		t.Fatal(err)
	}
	want := "ERROR    quotas, Namespace x: belongs to two\n         What follows.\n         To do: What to do.\nUNKNOWN  access: nodes could not be read\nFINE     version, apis\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestCommand(t *testing.T) {
	var out bytes.Buffer
	cmd := NewCommand(command.Streams{Out: &out})
	cmd.SetArgs([]string{"--kubeconfig", t.TempDir() + "/none"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var exit *command.Exit
	if err := cmd.ExecuteContext(context.Background()); !errors.As(err, &exit) || exit.Code != 2 {
		t.Errorf("without a kubeconfig it ends with %v, want 2", err)
	}
	raw, err := json.Marshal(well(t).examine())
	if err != nil || !strings.Contains(string(raw), `"findings":[]`) {
		t.Errorf("the JSON of a well cluster is %s, %v", raw, err)
	}
}
