package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

func TestVersion(t *testing.T) {
	for name, test := range map[string]struct {
		version version.Info
		want    []string
	}{
		"wanted":        {version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.5-eks.2"}, nil},
		"with a plus":   {version.Info{Major: "1", Minor: "37+", GitVersion: "v1.37.2+k0s"}, nil},
		"too old":       {version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.4"}, []string{"version error: v1.36.4, Ladder wants 1.37"}},
		"newer":         {version.Info{Major: "1", Minor: "38", GitVersion: "v1.38.0"}, []string{"version warning: Ladder is tested with 1.37"}},
		"with the bug":  {version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1"}, []string{"version warning: before 1.37.2 a DeviceTaintRule without a selector"}},
		"not a version": {version.Info{Major: "", Minor: "", GitVersion: "dev"}, []string{`version unknown: calls itself "dev"`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := well(t)
			p.version = test.version
			p.requireFindings(test.want...)
		})
	}
}

func TestAPIs(t *testing.T) {
	p := well(t)
	p.served[resourcev1.SchemeGroupVersion] = []string{"resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"}
	p.served[admissionregistrationv1.SchemeGroupVersion] = []string{"validatingadmissionpolicies"}
	p.requireFindings("apis warning: devicetaintrules of resource.k8s.io/v1", "apis error: mutatingadmissionpolicies of admissionregistration.k8s.io/v1")

	p = well(t)
	delete(p.served, resourcev1.SchemeGroupVersion)
	p.requireFindings(
		"apis error: resourceclaims of", "apis error: resourceslices of", "apis error: resourceclaimtemplates of",
		"apis error: deviceclasses of", "apis warning: devicetaintrules of",
	)
}

func TestGates(t *testing.T) {
	resource := claimsGVR.GroupResource()
	for name, test := range map[string]struct {
		keep   func(*resourcev1.ResourceClaim)
		refuse error
		want   string
	}{
		"no alternatives":   {func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].FirstAvailable = nil }, nil, "gates error: drops the alternatives"},
		"no tolerations":    {func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].FirstAvailable[0].Tolerations = nil }, nil, "gates error: drops the tolerations"},
		"refused by schema": {nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceClaim"}, "x", nil), "gates error: refuses a claim with alternatives"},
		"not allowed":       {nil, apierrors.NewForbidden(resource, "", errors.New("no")), "gates unknown: could not be created as a dry run"},
	} {
		t.Run(name, func(t *testing.T) {
			p := well(t)
			p.keep = test.keep
			if test.refuse != nil {
				p.refuse["create resourceclaims"] = test.refuse
			}
			p.requireFindings(test.want)
		})
	}
}

func kindOf(t *testing.T, p *patient, name string) *unstructured.Unstructured {
	t.Helper()
	kind, ok := p.objects["CustomResourceDefinition /"+name].(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("there is no kind %s", name)
	}
	return kind
}

func TestKinds(t *testing.T) {
	const quotas = "tenantquotas.gpuladder.dev"
	p := well(t)
	p.without(kindOf(t, p, quotas))
	p.requireFindings("kinds error: " + quotas + " is not installed")

	p = well(t)
	if err := unstructured.SetNestedSlice(kindOf(t, p, quotas).Object, []any{map[string]any{"type": "Established", "status": "False"}}, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	p.requireFindings("kinds error: " + quotas + " is not established")

	p = well(t)
	versions, _, _ := unstructured.NestedSlice(kindOf(t, p, quotas).Object, "spec", "versions")
	spec := versions[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)["spec"].(map[string]any)
	delete(spec["properties"].(map[string]any), "weight")
	if err := unstructured.SetNestedSlice(kindOf(t, p, quotas).Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	p.requireFindings("kinds warning: " + quotas + " is not the one that belongs to this version")
}

func TestComponents(t *testing.T) {
	p := well(t).with(deployment(schedulerName, 0), lease("ladder-system", controllerName, "x", time.Minute))
	down := deployment(controllerName, 0)
	down.Status.ReadyReplicas = 0
	p.with(down)
	p.requireFindings(
		"components error: Deployment ladder-system/ladder-controller 0 of 2", "components warning: Deployment ladder-system/ladder-scheduler 1 of 2",
		"components error: no ladder-controller is at work",
	)
	// A lease that nobody holds is nobody's; one that is a little late is held.
	well(t).with(lease("ladder-system", controllerName, "", time.Second)).requireFindings("components error: no ladder-controller")
	well(t).with(lease("ladder-system", controllerName, "x", 20*time.Second)).requireFindings()
}

// Anybody may give objects of his own namespace the names and labels of Ladder's.
func TestObjectsOfOthers(t *testing.T) {
	theirs := deployment(controllerName, 0)
	theirs.Namespace, theirs.Status.ReadyReplicas = "tenant", 0
	set := daemonSet(0)
	set.Namespace = "tenant"
	pod := driverPod("n2", corev1.ConditionTrue)
	pod.Namespace = "tenant"
	well(t).with(theirs, set, pod).requireFindings()
	// Neither do they hide that Ladder's own are down.
	well(t).with(lease("ladder-system", controllerName, "x", time.Minute), lease("tenant", controllerName, "x", 0)).requireFindings("components error: no ladder-controller is at work")
	well(t).with(driverPod("n2", corev1.ConditionFalse), pod).requireFindings("driver error: no driver that is ready: n2")
}

// Without admission policies the accounts of the workloads say where Ladder
// runs, and without those every namespace may be one in which it does.
func TestWhereLadderRuns(t *testing.T) {
	theirs := deployment(controllerName, 0)
	theirs.Namespace, theirs.Status.ReadyReplicas = "tenant", 0
	own := deployment(controllerName, 1)
	own.Spec.Template.Spec.ServiceAccountName = controllerName
	const found = "components error: Deployment tenant/ladder-controller 0 of 2"
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    []string
	}{
		"by the accounts": {[]runtime.Object{theirs, own}, nil},
		"not known":       {[]runtime.Object{theirs}, []string{found}},
	} {
		t.Run(name, func(t *testing.T) {
			p := well(t).without(lease(metav1.NamespaceSystem, stockLease, "", 0))
			for id := range p.objects {
				if strings.HasPrefix(id, "ValidatingAdmissionPolicy") {
					delete(p.objects, id)
				}
			}
			p.with(test.objects...).requireFindings(test.want...)
		})
	}
}

func TestDriver(t *testing.T) {
	p := well(t).with(daemonSet(1), driverPod("n2", corev1.ConditionFalse))
	p.requireFindings("driver warning: DaemonSet ladder-system/ladder-driver 1 of 2", "driver error: 1 nodes have devices of gpu.gpuladder.dev, but no driver that is ready: n2")
	// Run in another way, nothing is said of it.
	well(t).without(daemonSet(0), driverPod("n1", ""), driverPod("n2", "")).requireFindings()
}

func TestSchedulers(t *testing.T) {
	mine := lease("ladder-system", schedulerName, "", 0)
	stock := lease(metav1.NamespaceSystem, stockLease, "", 0)
	guards := func(p *patient) (policy, binding *unstructured.Unstructured) {
		return p.objects["ValidatingAdmissionPolicy /"+guardName].(*unstructured.Unstructured), p.objects["ValidatingAdmissionPolicyBinding /"+guardName].(*unstructured.Unstructured)
	}
	t.Run("the stock scheduler alone", func(t *testing.T) {
		well(t).without(mine).requireFindings("schedulers warning: no ladder-scheduler is at work")
	})
	t.Run("Ladder alone, without a guard", func(t *testing.T) {
		p := well(t).without(stock)
		policy, binding := guards(p)
		p.without(policy, binding).requireFindings()
	})
	t.Run("both, without a guard", func(t *testing.T) {
		p := well(t)
		policy, binding := guards(p)
		p.without(policy, binding).requireFindings("schedulers error: " + guardName + " is not installed, and two schedulers are at work")
	})
	t.Run("both, with a guard that only warns", func(t *testing.T) {
		p := well(t)
		_, binding := guards(p)
		if err := unstructured.SetNestedStringSlice(binding.Object, []string{"Warn"}, "spec", "validationActions"); err != nil {
			t.Fatal(err)
		}
		p.requireFindings("schedulers error: is bound nowhere with the action Deny")
	})
	t.Run("both, and a policy for a driver without guard", func(t *testing.T) {
		other := policy("nvidia", metav1.ConditionTrue, 1)
		other.Spec.Driver = v1alpha1.NVIDIADriverName
		well(t).with(other).requireFindings("schedulers error: does not guard driver gpu.nvidia.com")
	})
	t.Run("a guard that can't be read", func(t *testing.T) {
		p := well(t)
		policy, _ := guards(p)
		if err := unstructured.SetNestedSlice(policy.Object, []any{}, "spec", "variables"); err != nil {
			t.Fatal(err)
		}
		p.requireFindings("schedulers unknown: does not say which drivers it guards")
	})
	t.Run("two Ladders", func(t *testing.T) {
		guard := catalog.DefaultGuard()
		guard.Allocators = append(guard.Allocators, "system:serviceaccount:other:its-scheduler")
		objects, err := guard.Objects()
		if err != nil {
			t.Fatal(err)
		}
		p := well(t)
		for _, o := range objects {
			o.Object = plain(o.Object)
			p.with(o)
		}
		p.with(lease("other", schedulerName, "x", 0)).requireFindings("schedulers error: two ladder-schedulers are at work, by the leases ladder-system/ladder-scheduler and other/ladder-scheduler")
	})
	t.Run("a lease of that name elsewhere", func(t *testing.T) {
		const want = "schedulers warning: somebody renews a lease of ladder-scheduler's name where Ladder is not known to run: tenant/ladder-scheduler"
		well(t).with(lease("tenant", schedulerName, "x", 0)).requireFindings(want)
		well(t).without(mine).with(lease(metav1.NamespaceSystem, schedulerName, "x", 0)).requireFindings() // on the control plane
		well(t).without(mine).with(lease("tenant", schedulerName, "x", 0)).requireFindings(want, "schedulers warning: no ladder-scheduler is at work")
	})
	t.Run("Ladder in place of the stock scheduler", func(t *testing.T) {
		p := well(t).without(mine).with(lease(metav1.NamespaceSystem, stockLease, "ladder-scheduler-y_2", 0))
		p.requireFindings()
		waiting := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-scheduler-cp", Labels: map[string]string{"component": "kube-scheduler"}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
		p.with(waiting).requireFindings("schedulers warning: kube-scheduler runs and waits for the lease")
		p.without(waiting)
		waiting.Namespace = "ladder-system"
		p.with(waiting).requireFindings()
	})
}

func TestClasses(t *testing.T) {
	well(t).with(
		class("all"), class("mine", `device.driver == "gpu.gpuladder.dev"`), class("h100", `device.attributes["gpu.gpuladder.dev"].model == "H100"`),
		class("l4", `device.attributes["gpu.gpuladder.dev"].model == "L4"`), class("nic", `device.driver == "nic.example"`),
		class("fails", `device.attributes["gpu.gpuladder.dev"].nothing == "x"`), class("broken", `device.`),
		class(compile.DeviceClassName(v1alpha1.DriverName), `device.driver == "gpu.gpuladder.dev"`),
	).requireFindings(
		"classes warning: DeviceClass all selects devices of gpu.gpuladder.dev", "classes warning: DeviceClass h100 selects", "classes warning: DeviceClass mine selects",
	)
	// With no devices yet a class that asks for the driver alone is known all the same.
	well(t).without(slice("n1"), slice("n2")).with(class("mine", `device.driver == "gpu.gpuladder.dev"`), class("nic", `device.driver == "nic.example"`)).
		requireFindings("classes warning: DeviceClass mine selects")
}

func TestAdvertisement(t *testing.T) {
	gpu := map[corev1.ResourceName]string{"nvidia.com/gpu": "8"}
	well(t).with(node("n1", gpu), node("n2", map[corev1.ResourceName]string{"nvidia.com/gpu": "0"}), node("n3", gpu)).
		requireFindings("advertisement error: 1 nodes offer both nvidia.com/gpu of a device plugin and devices of gpu.gpuladder.dev: n1")
	mig := slice("n2")
	mig.Spec.Driver = v1alpha1.NVIDIADriverName
	well(t).with(mig, node("n2", map[corev1.ResourceName]string{"nvidia.com/mig-1g.10gb": "7"})).
		requireFindings("advertisement error: nvidia.com/mig-1g.10gb of a device plugin and devices of gpu.nvidia.com: n2")
	nic := slice("n2")
	nic.Spec.Driver = "nic.example"
	well(t).with(nic, node("n2", gpu)).requireFindings()
	many := well(t).without(daemonSet(0))
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"} {
		many.with(node(name, gpu), slice(name))
	}
	many.requireFindings("advertisement error: 7 nodes offer both nvidia.com/gpu of a device plugin and devices of gpu.gpuladder.dev: n1, n2, n3, n4, n5 and 2 more")
}

func TestTaintRules(t *testing.T) {
	rule := func(name, key string, effect resourcev1.DeviceTaintEffect, selector *resourcev1.DeviceTaintSelector) *resourcev1.DeviceTaintRule {
		return &resourcev1.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourcev1.DeviceTaintRuleSpec{DeviceSelector: selector, Taint: resourcev1.DeviceTaint{Key: key, Effect: effect}},
		}
	}
	one := &resourcev1.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("n1"), Device: ptr.To("gpu-0")}
	other := &resourcev1.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("n2")}
	well(t).with(
		rule("a-all", "example.com/x", resourcev1.DeviceTaintEffectNoExecute, &resourcev1.DeviceTaintSelector{}),
		rule("b-all", "example.com/x", resourcev1.DeviceTaintEffectNoSchedule, &resourcev1.DeviceTaintSelector{}),
		rule("c-trial", "example.com/x", resourcev1.DeviceTaintEffectNone, &resourcev1.DeviceTaintSelector{}),
		rule("d-none", "example.com/x", resourcev1.DeviceTaintEffectNoSchedule, nil),
		rule("e-one", "example.com/x", resourcev1.DeviceTaintEffectNoExecute, one),
		rule("f-failed", v1alpha1.TaintFailed, resourcev1.DeviceTaintEffectNoExecute, one),
	).requireFindings(
		"taint-rules error: DeviceTaintRule a-all has an empty selector: it taints every device of every driver with example.com/x:NoExecute",
		"taint-rules error: DeviceTaintRule b-all", "taint-rules warning: DeviceTaintRule d-none has no selector", "taint-rules warning: DeviceTaintRule f-failed taints with gpu.gpuladder.dev/failed alone",
	)
	both := rule("unhealthy", v1alpha1.TaintUnhealthy, resourcev1.DeviceTaintEffectNoSchedule, one)
	well(t).with(rule("failed", v1alpha1.TaintFailed, resourcev1.DeviceTaintEffectNoExecute, one), both).requireFindings()
	well(t).with(rule("failed", v1alpha1.TaintFailed, resourcev1.DeviceTaintEffectNoExecute, other), both).requireFindings("taint-rules warning: DeviceTaintRule failed")
}

func TestPolicies(t *testing.T) {
	old := policy("old", metav1.ConditionTrue, 1)
	old.Generation = 4
	fresh := policy("fresh", metav1.ConditionTrue, 0)
	fresh.Status = v1alpha1.AcceleratorPolicyStatus{}
	well(t).with(policy("bad", metav1.ConditionFalse, 0), policy("was-good", metav1.ConditionFalse, 2), old, fresh).requireFindings(
		"policies error: AcceleratorPolicy bad is not ready: spec.tiers", "policies warning: AcceleratorPolicy fresh was not looked at",
		"policies warning: AcceleratorPolicy old was not looked at", "policies warning: AcceleratorPolicy was-good is not ready",
	)
	refused := policy("refused", metav1.ConditionFalse, 2)
	refused.Status.Conditions[0].Reason = reasonTemplateRefused
	for _, p := range []*v1alpha1.AcceleratorPolicy{refused, policy("was-good", metav1.ConditionFalse, 2)} {
		said := well(t).with(p).examine().Findings[0].Meaning
		if strings.Contains(said, "not what its spec says now") == (p == refused) || !strings.HasPrefix(said, "New Pods get revision 2, ") {
			t.Errorf("%s: it means %q", p.Name, said)
		}
	}
}

func TestQuotas(t *testing.T) {
	well(t).with(quota("b", "team-b", "team-a"), quota("c", "team-c", "team-a")).
		requireFindings("quotas error: Namespace team-a belongs to the TenantQuotas a and b and c")
}

func TestMigrations(t *testing.T) {
	p := well(t)
	for _, name := range []string{"to-dra", "back"} {
		p.with(&v1alpha1.DeviceMigration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DeviceMigrationSpec{Policy: "h100-first", Waves: []int32{100}}})
	}
	p.requireFindings("migrations warning: 2 DeviceMigrations are there: back, to-dra")
	if err := p.examine().exit(); err != nil {
		t.Errorf("ends with %v, want that a warning is no error", err)
	}
}

// The names that the checks look for are those that the platform uses.
func TestNames(t *testing.T) {
	objects, err := catalog.DefaultGuard().Objects()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, o := range objects {
		found = found || o.GetKind() == "ValidatingAdmissionPolicy" && o.GetName() == guardName
	}
	if !found {
		t.Errorf("there is no policy %s in the catalog", guardName)
	}
	if schedulerName != v1alpha1.SchedulerName {
		t.Errorf("the scheduler is called %s", v1alpha1.SchedulerName)
	}
}
