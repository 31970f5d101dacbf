package isolation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

// Who refuses, beside the admission policies.
const (
	// byRights: the role `edit` does not reach that far.
	byRights = "cannot "
	// byKubernetes: a rule of Kubernetes' own.
	byKubernetes = "admin access to devices"
	// byItsGate: a Pod that waits for its tenant's turn has no node.
	byItsGate = "until all schedulingGates have been cleared"
)

func admitted(c client.Client, p *corev1.Pod) func(context.Context) error {
	return func(ctx context.Context) error {
		try := p.DeepCopy()
		if err := c.Create(ctx, try, client.DryRunAll); err != nil {
			return err
		}
		if len(try.Spec.ResourceClaims) == 0 {
			return errors.New("it got no claim")
		}
		if !slices.ContainsFunc(try.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.GateQuota }) {
			return errors.New("it got no gate")
		}
		return c.Create(ctx, p)
	}
}

// attempt is one way to more than a tenant is given.
type attempt struct {
	name string
	try  func(ctx context.Context, w *world) error
	// by says who refuses: an admission policy, or one of the constants above.
	by string
}

func creates(object client.Object) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		return w.tenant.Create(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

// changes patches an object that is there, as the tenant.
func changes[T client.Object](of func(*world) T, change func(T)) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		before := of(w).DeepCopyObject().(T)
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(before), before); err != nil {
			return err
		}
		after := before.DeepCopyObject().(T)
		change(after)
		return w.tenant.Patch(ctx, after, client.MergeFrom(before), client.DryRunAll)
	}
}

func gated(w *world) *corev1.Pod  { return w.gated }
func placed(w *world) *corev1.Pod { return w.placed }

func held(w *world) *resourcev1.ResourceClaim { return w.held }

func withoutGate(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		var left []corev1.PodSchedulingGate
		for _, g := range p.Spec.SchedulingGates {
			if g.Name != name {
				left = append(left, g)
			}
		}
		p.Spec.SchedulingGates = left
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func uses(templateName string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &templateName}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
}

func attempts() []attempt {
	const ours = v1alpha1.DriverName
	admin := claim(own, ours)
	admin.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	alternatives := claim(own, "example.com")
	alternatives.Spec.Devices.Requests[0] = resourcev1.DeviceRequest{Name: "gpu", FirstAvailable: []resourcev1.DeviceSubRequest{
		{Name: "a", DeviceClassName: "example.com", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		{Name: "b", DeviceClassName: "example.com", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, Tolerations: []resourcev1.DeviceToleration{tolerates(v1alpha1.TaintFailed)}},
	}}
	return []attempt{
		{"another's quota, or its own", changes(func(w *world) *v1alpha1.TenantQuota { return w.quota }, func(q *v1alpha1.TenantQuota) { q.Spec.Models[0].Limit = ptr.To[int32](100) }), byRights},
		{"a quota of its own", creates(&v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{own}, Models: []v1alpha1.ModelQuota{{Model: "H100"}}}}), byRights},
		{"a policy of its own", creates(&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: spec()}), byRights},
		{"another tenant's decisions", func(ctx context.Context, w *world) error {
			return w.tenant.Get(ctx, types.NamespacedName{Namespace: others, Name: "told"}, &v1alpha1.AllocationDecision{})
		}, byRights},
		{"all decisions", func(ctx context.Context, w *world) error {
			return w.tenant.List(ctx, &v1alpha1.AllocationDecisionList{})
		}, byRights},
		{"a forged decision", creates(record(own, "forged")), byRights},
		{"a policy that its namespace may not use", creates(pod(own, "x", asks("gold-only"))), "ladder-pods"},
		{"that policy's template by hand", creates(pod(own, "x", asks("gold-only"), uses("gold-only-3"))), "ladder-pods"},

		{"a claim by hand where policies are enforced", creates(claim(strict, ours)), "ladder-enforced-claims"},
		{"a claim of another class there", creates(claim(strict, "my-class")), "ladder-enforced-claims"},
		{"a template by hand there", creates(template(claim(strict, ours))), "ladder-enforced-claims"},
		{"a Pod with a claim there", creates(pod(strict, "x", uses("h100-first-3"))), "ladder-enforced-pods"},
		{"a second claim beside the policy's there", creates(pod(strict, "x", asks("h100-first"), uses("h100-first-3"))), "ladder-enforced-pods"},
		{"a Pod of a policy and of a device plugin there", creates(pod(strict, "x", asks("h100-first"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		})), "ladder-enforced-pods"},
		{"a Pod of a DeviceClass by its resource there", creates(pod(strict, "x", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"deviceclass.resource.kubernetes.io/gpu.gpuladder.dev": resource.MustParse("1")}
		})), "ladder-enforced-pods"},
		{"a Pod of a device plugin there", creates(pod(strict, "x", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		})), "ladder-enforced-pods"},
		{"no enforcement", func(ctx context.Context, w *world) error {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strict}}
			return w.tenant.Patch(ctx, ns, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"gpuladder.dev/enforce-policy":null}}}`)), client.DryRunAll)
		}, byRights},

		{"tolerating suspicion", creates(claim(own, ours, tolerates(v1alpha1.TaintUnhealthy))), "ladder-claim-tolerations"},
		{"tolerating failure", creates(claim(own, ours, tolerates(v1alpha1.TaintFailed))), "ladder-claim-tolerations"},
		{"tolerating failure with a class of its own", creates(claim(own, "my-class", tolerates(v1alpha1.TaintFailed))), "ladder-claim-tolerations"},
		{"tolerating everything", creates(claim(own, ours, tolerates(""))), "ladder-claim-tolerations"},
		{"tolerating in an alternative", creates(alternatives), "ladder-claim-tolerations"},
		{"tolerating in a template", creates(template(claim(own, ours, tolerates(v1alpha1.TaintUnhealthy)))), "ladder-claim-tolerations"},

		{"admin access", creates(admin), byKubernetes},
		{"admin access in a template", creates(template(admin)), byKubernetes},
		{"a namespace for admin access", func(ctx context.Context, w *world) error {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}
			return w.tenant.Patch(ctx, ns, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"resource.kubernetes.io/admin-access":"true"}}}`)), client.DryRunAll)
		}, byRights},
		{"an allocation", func(ctx context.Context, w *world) error {
			return w.tenant.Status().Update(ctx, claim(own, ours), client.DryRunAll)
		}, byRights},

		{"a device that stays while its claim goes", changes(held, func(c *resourcev1.ResourceClaim) { c.Finalizers = nil }), "ladder-guard-claims"},
		{"a policy for devices that it has", changes(held, func(c *resourcev1.ResourceClaim) {
			c.Labels = map[string]string{v1alpha1.LabelPolicy: "gold-only", v1alpha1.LabelPolicyRevision: "3"}
		}), "ladder-guard-claims"},
		{"a hash for them", changes(held, func(c *resourcev1.ResourceClaim) {
			c.Annotations = map[string]string{compile.AnnotationPolicyHash: "sha256:0"}
		}), "ladder-guard-claims"},

		{"another scheduler", creates(pod(own, "x", asks("h100-first"), func(p *corev1.Pod) { p.Spec.SchedulerName = "my-scheduler" })), "ladder-pods"},
		{"a node by hand", creates(pod(own, "x", asks("h100-first"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" })), byItsGate},
		{"a binding by hand", func(ctx context.Context, w *world) error {
			return w.tenant.SubResource("binding").Create(ctx, w.placed.DeepCopy(), &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, client.DryRunAll)
		}, byRights},
		{"another policy afterwards", changes(placed, func(p *corev1.Pod) { p.Labels[v1alpha1.LabelPolicy] = "gold-only" }), "ladder-pods-fixed"},
		{"no policy afterwards", changes(placed, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelPolicy) }), "ladder-pods-fixed"},
		{"another verdict", changes(placed, annotated(catalog.AnnotationClaimTemplate, "gold-only-3")), "ladder-pods-fixed"},

		{"a forged tier", changes(placed, annotated(v1alpha1.AnnotationTier, "best")), "ladder-pod-decision"},
		{"a forged model", changes(placed, annotated(v1alpha1.AnnotationModel, "T4")), "ladder-pod-decision"},
		{"a forged digest", changes(placed, annotated(v1alpha1.AnnotationDigest, "sha256:0")), "ladder-pod-decision"},
		{"a forged revision", creates(pod(own, "x", annotated(v1alpha1.AnnotationRevision, "9"))), "ladder-pod-decision"},
		{"a forged record", creates(pod(own, "x", annotated(v1alpha1.AnnotationRecord, "x-0123456789abcdef"))), "ladder-pod-decision"},
		{"a forged condition", func(ctx context.Context, w *world) error {
			patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True"}]}}`, v1alpha1.ConditionAccelerator)
			return w.tenant.Status().Patch(ctx, w.placed.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.DryRunAll)
		}, byRights},

		{"its turn", changes(gated, withoutGate(v1alpha1.GateQuota)), "ladder-quota-gate"},
		{"all gates", changes(gated, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }), "ladder-quota-gate"},

		{"a changed template", changes(func(w *world) *resourcev1.ResourceClaimTemplate { return w.template }, func(c *resourcev1.ResourceClaimTemplate) { c.Annotations = nil }), "ladder-claim-templates"},
		{"a template that is not Ladder's any more", changes(func(w *world) *resourcev1.ResourceClaimTemplate { return w.template }, func(c *resourcev1.ResourceClaimTemplate) { c.Labels = nil }), "ladder-claim-templates"},
		{"no template", func(ctx context.Context, w *world) error {
			return w.tenant.Delete(ctx, w.template.DeepCopy(), client.DryRunAll)
		}, "ladder-claim-templates"},
		{"a template in place of a revision's", func(ctx context.Context, w *world) error {
			mine := template(claim(own, ours))
			mine.Name = "h100-first-9"
			return w.tenant.Create(ctx, mine, client.DryRunAll)
		}, "ladder-claim-template-names"},
		{"a template that says it is a revision's", func(ctx context.Context, w *world) error {
			mine := template(claim(own, ours))
			mine.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first"}
			return w.tenant.Create(ctx, mine, client.DryRunAll)
		}, "ladder-claim-templates"},

		{"the scheduler's lease", creates(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ladder-system", Name: "ladder-scheduler"}}), byRights},
		{"the devices of a driver", creates(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}), byRights},
		{"a taint", creates(&resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}), byRights},
	}
}

func TestAttemptsAreRefused(t *testing.T) {
	w := start(t)
	for _, a := range attempts() {
		t.Run(a.name, func(t *testing.T) {
			// Admission policies reach the API server by a watch of its own.
			apiserver.WaitFor(t, "a refusal", func(ctx context.Context) error {
				err := a.try(ctx, w)
				switch {
				case err == nil:
					return errors.New("it worked")
				case !apierrors.IsForbidden(err) && a.by != byKubernetes && a.by != byItsGate:
					return fmt.Errorf("not for want of rights, %w", err)
				case a.by == byRights || a.by == byKubernetes || a.by == byItsGate:
					if !strings.Contains(err.Error(), a.by) {
						return fmt.Errorf("by another, %w", err)
					}
				case !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+a.by+"'"):
					return fmt.Errorf("by another, %w", err)
				}
				return nil
			})
		})
	}
}

// What a tenant may do it can still do: the policies stand in nobody's way.
func TestRightsAreLeft(t *testing.T) {
	w := start(t)
	for _, a := range []attempt{
		{name: "a Pod of a policy", try: creates(pod(own, "x", asks("h100-first")))},
		{name: "a Pod of a policy where they are enforced", try: creates(pod(strict, "x", asks("h100-first")))},
		{name: "a Pod without devices there", try: creates(pod(strict, "x"))},
		{name: "a Pod without a policy", try: creates(pod(own, "x"))},
		{name: "a claim by hand", try: creates(claim(own, v1alpha1.DriverName))},
		{name: "a claim that tolerates what is not Ladder's", try: creates(claim(own, v1alpha1.DriverName, tolerates("example.com/maintenance")))},
		{name: "a claim that tolerates everything of another driver", try: creates(claim(own, "nic.example.com", tolerates("")))},
		{name: "a claim that asks for nothing", try: creates(askingForNothing())},
		{name: "a template that asks for nothing", try: creates(template(askingForNothing()))},
		{name: "a template by hand", try: creates(template(claim(own, v1alpha1.DriverName)))},
		{name: "a gate of its own", try: changes(gated, withoutGate("example.com/own"))},
		{name: "an annotation of its own", try: changes(placed, annotated("example.com/note", "x"))},
		{name: "a note on a claim with devices", try: changes(held, func(c *resourcev1.ResourceClaim) {
			c.Labels, c.Annotations = map[string]string{"example.com/note": "x"}, map[string]string{"example.com/note": "x"}
			c.Finalizers = append(c.Finalizers, "example.com/own")
		})},
		{name: "a deletion of one", try: func(ctx context.Context, w *world) error {
			return w.tenant.Delete(ctx, w.held.DeepCopy(), client.DryRunAll)
		}},
		{name: "a deletion", try: func(ctx context.Context, w *world) error {
			return w.tenant.Delete(ctx, w.gated.DeepCopy(), client.DryRunAll)
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			if err := a.try(t.Context(), w); err != nil {
				t.Error(err)
			}
		})
	}
}

// The accounts that are meant to can.
func TestAccountsMay(t *testing.T) {
	w := start(t)
	controller := apiserver.AsMaster(t, w.Server, catalog.DefaultAccounts().Controller)
	gone := w.gated.DeepCopy()
	withoutGate(v1alpha1.GateQuota)(gone)
	if err := controller.Patch(t.Context(), gone, client.MergeFrom(w.gated), client.DryRunAll); err != nil {
		t.Errorf("the controller can't open a gate: %v", err)
	}
	made := claim(own, v1alpha1.DriverName, tolerates(v1alpha1.TaintFailed))
	for _, user := range []string{"system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager"} {
		if err := apiserver.AsMaster(t, w.Server, user).Create(t.Context(), made.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("%s can't make the claim of a template: %v", user, err)
		}
	}
	bound := pod(strict, "by-the-controller", asks("h100-first"))
	if err := apiserver.AsMaster(t, w.Server, "system:serviceaccount:kube-system:job-controller").Create(t.Context(), bound, client.DryRunAll); err != nil {
		t.Errorf("a Job's Pod is refused: %v", err)
	}
}
