package integration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// This file provokes, between decision and bind, each way in which a decision
// can stop being right.

// detained is a Pod that is decided on and waits for its volume before it is
// bound.
type detained struct {
	c      *cluster
	name   string
	volume *corev1.PersistentVolumeClaim
}

// detain creates such a Pod and waits until it has been decided on.
func (c *cluster) detain(name, policy string) *detained {
	c.t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Provisioner: "example.com/by-hand",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	d := &detained{c: c, name: name, volume: &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "volume"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}}
	c.create(class, d.volume)
	c.addPod(name, policy, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.volume.Name},
		}}}
	})
	c.eventually(func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(d.volume), d.volume); err != nil {
			return err
		}
		if d.volume.Annotations["volume.kubernetes.io/selected-node"] == "" {
			return fmt.Errorf("no node is selected: %s", conditionText(c.pod(name)))
		}
		return nil
	})
	return d
}

// free makes the volume, a moment after whatever happened before, so that the
// scheduler has seen that.
func (d *detained) free() {
	d.c.t.Helper()
	time.Sleep(time.Second)
	d.c.create(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: *d.volume.Spec.StorageClassName, AccessModes: d.volume.Spec.AccessModes, Capacity: d.volume.Spec.Resources.Requests,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: d.volume.Name, UID: d.volume.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		},
	})
	patch := `{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}},"spec":{"volumeName":"volume"}}`
	require.NoError(d.c.t, d.c.Patch(d.c.t.Context(), d.volume, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// failedWith waits until an Event tells of a failure of this class.
func (d *detained) failedWith(class v1alpha1.FailureClass) {
	d.c.t.Helper()
	d.c.eventually(func() error {
		for _, e := range d.c.events(d.name, "AcceleratorPending") {
			if strings.HasPrefix(e.Note, string(class)+": ") {
				return nil
			}
		}
		return fmt.Errorf("no Event tells of %s: %s", class, conditionText(d.c.pod(d.name)))
	})
}

// slice returns the slice of a node.
func (c *cluster) slice(node string) *resourceapi.ResourceSlice {
	c.t.Helper()
	list := &resourceapi.ResourceSliceList{}
	require.NoError(c.t, c.List(c.t.Context(), list))
	for i := range list.Items {
		if ptr.Deref(list.Items[i].Spec.NodeName, "") == node {
			return &list.Items[i]
		}
	}
	c.t.Fatalf("node %s has no slice", node)
	return nil
}

func (c *cluster) claim(pod string) *resourceapi.ResourceClaim {
	c.t.Helper()
	claim := &resourceapi.ResourceClaim{}
	require.NoError(c.t, c.Get(c.t.Context(), podKey(pod+"-accelerator"), claim))
	return claim
}

// Whatever happens in between, the Pod is told the class and gets devices that
// are right after it.
func TestBetweenDecisionAndBind(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(c *cluster)
		class   v1alpha1.FailureClass
		place   string
	}{
		"slice vanishes": {func(c *cluster) {
			require.NoError(c.t, c.Delete(c.t.Context(), c.slice("h100-0000")))
		}, v1alpha1.FailureStaleSlice, "h100-0001/gpu-0"},
		"slice changes": {func(c *cluster) {
			slice := c.slice("h100-0000")
			slice.Spec.Devices[0].Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: ptr.To("1.2.3")}
			require.NoError(c.t, c.Update(c.t.Context(), slice))
		}, v1alpha1.FailureStaleSlice, "h100-0000/gpu-0"},
		"DeviceTaintRule arrives": {func(c *cluster) {
			c.taint("h100-0000", "gpu-0")
		}, v1alpha1.FailureDeviceBecameUnhealthy, "h100-0000/gpu-1"},
		"node deleted": {func(c *cluster) {
			require.NoError(c.t, c.Delete(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "h100-0000"}}))
			require.NoError(c.t, c.Delete(c.t.Context(), c.slice("h100-0000")))
			// The plugin that waits for the volume finds it out first.
		}, "", "h100-0001/gpu-0"},
		"node not ready": {func(c *cluster) {
			node := &corev1.Node{}
			require.NoError(c.t, c.Get(c.t.Context(), clusterKey("h100-0000"), node))
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
			require.NoError(c.t, c.Update(c.t.Context(), node))
		}, v1alpha1.FailureNodeLost, "h100-0001/gpu-0"},
		"node reports that it is not ready": {func(c *cluster) {
			node := &corev1.Node{}
			require.NoError(c.t, c.Get(c.t.Context(), clusterKey("h100-0000"), node))
			for i := range node.Status.Conditions {
				if node.Status.Conditions[i].Type == corev1.NodeReady {
					node.Status.Conditions[i].Status = corev1.ConditionFalse
				}
			}
			require.NoError(c.t, c.Status().Update(c.t.Context(), node))
			// Nobody here adds the taint that follows, so the node may be chosen again.
		}, v1alpha1.FailureNodeLost, "h100-0000/gpu-0"},
		"claim allocated elsewhere": {func(c *cluster) {
			c.allocate("pod-accelerator", v1alpha1.RequestName+"/t0", "h100-0001", "gpu-1")
		}, v1alpha1.FailureBindConflict, "h100-0001/gpu-1"},
		"two schedulers": {func(c *cluster) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "foreign"}}
			claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
				Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName},
			}}
			c.create(claim)
			c.allocate("foreign", "gpu", "h100-0000", "gpu-0")
		}, v1alpha1.FailureBindConflict, "h100-0000/gpu-1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addFleet(small(2))
			c.addPolicy("h100", ladderOf("H100"))
			c.startScheduler()
			pod := c.detain("pod", "h100")
			test.happens(c)
			pod.free()
			if test.class != "" {
				pod.failedWith(test.class)
			}
			assert.Equal(t, test.place, c.placed("pod"))
			c.condition("pod", "Allocated")
		})
	}
}

// Of what is fatal nothing but a change helps, and then at once.
func TestParkedUntilAChange(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(c *cluster) (undo func())
		class   v1alpha1.FailureClass
	}{
		"claim deleted": {func(c *cluster) func() {
			claim := c.claim("pod")
			again := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: claim.Name, Annotations: claim.Annotations, OwnerReferences: claim.OwnerReferences,
			}, Spec: claim.Spec}
			require.NoError(c.t, c.Delete(c.t.Context(), claim))
			return func() { c.create(again) }
		}, v1alpha1.FailureClaimGone},
		"policy deleted": {func(c *cluster) func() {
			policy, revision := &v1alpha1.AcceleratorPolicy{}, &v1alpha1.PolicyRevision{}
			require.NoError(c.t, c.Get(c.t.Context(), clusterKey("h100"), policy))
			require.NoError(c.t, c.Get(c.t.Context(), clusterKey(v1alpha1.RevisionName("h100", 1)), revision))
			require.NoError(c.t, c.Delete(c.t.Context(), policy))
			require.NoError(c.t, c.Delete(c.t.Context(), revision))
			return func() {
				c.create(&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: policy.Name}, Spec: policy.Spec},
					&v1alpha1.PolicyRevision{ObjectMeta: metav1.ObjectMeta{Name: revision.Name, Labels: revision.Labels}, Spec: revision.Spec})
			}
		}, v1alpha1.FailurePolicyInvalid},
		"revision withdrawn": {func(c *cluster) func() {
			set := func(state v1alpha1.RevisionState) {
				revision := &v1alpha1.PolicyRevision{}
				require.NoError(c.t, c.Get(c.t.Context(), clusterKey(v1alpha1.RevisionName("h100", 1)), revision))
				revision.Spec.State = state
				require.NoError(c.t, c.Update(c.t.Context(), revision))
			}
			set(v1alpha1.RevisionWithdrawn)
			return func() { set(v1alpha1.RevisionUsable) }
		}, v1alpha1.FailurePolicyInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addFleet(small(1))
			c.addPolicy("h100", ladderOf("H100"))
			c.startScheduler()
			pod := c.detain("pod", "h100")
			undo := test.happens(c)
			pod.free()
			pod.failedWith(test.class)
			assert.Empty(t, c.pod("pod").Spec.NodeName)
			undo()
			assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
		})
	}
}

// A limit that is lowered in between holds: the Pod waits until it is raised.
func TestQuotaLoweredInBetween(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	quota := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.TenantQuotaSpec{
		Namespaces: []string{namespace}, Models: []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
	}}
	c.create(quota)
	c.startScheduler()
	pod := c.detain("pod", "h100")
	quota.Spec.Models[0].Limit = ptr.To[int32](0)
	require.NoError(t, c.Update(t.Context(), quota))
	pod.free()
	pod.failedWith(v1alpha1.FailureBindConflict)
	assert.Contains(t, c.condition("pod", "Unsatisfiable"), string(v1alpha1.FailureQuotaNeverFits))
	assert.Nil(t, c.claim("pod").Status.Allocation)
	quota.Spec.Models[0].Limit = ptr.To[int32](1)
	require.NoError(t, c.Update(t.Context(), quota))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

// refuse has the API server refuse what the expression is false for, as long as the
// returned function is not called. try does what is to be refused, in a dry run.
func (c *cluster) refuse(rule admissionv1.RuleWithOperations, expression string, try func() error) (allow func()) {
	c.t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "refuse"}}
	policy.Spec.FailurePolicy = ptr.To(admissionv1.Fail)
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule}}}
	policy.Spec.Validations = []admissionv1.Validation{{Expression: expression, Message: "not today"}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "refuse"}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = policy.Name, []admissionv1.ValidationAction{admissionv1.Deny}
	c.create(policy, binding)
	allow = func() {
		for _, obj := range []client.Object{binding, policy} {
			require.NoError(c.t, client.IgnoreNotFound(c.Delete(c.t.Context(), obj)))
		}
	}
	c.t.Cleanup(func() {
		_ = c.Delete(context.Background(), binding)
		_ = c.Delete(context.Background(), policy)
	})
	c.eventually(func() error { // it takes a while to take effect
		if err := try(); err == nil || !strings.Contains(err.Error(), "not today") {
			return fmt.Errorf("it is not refused yet: %w", err)
		}
		return nil
	})
	return allow
}

// refuseAllocations has the API server refuse every new allocation, as long as
// the returned function is not called.
func (c *cluster) refuseAllocations() (allow func()) {
	c.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "try"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName}}}
	c.create(claim)
	return c.refuse(admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"resourceclaims/status"}},
	}, "!has(object.status.allocation)", func() error {
		try := claim.DeepCopy()
		try.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "example.com", Pool: "p", Device: "d"},
		}}}
		return c.Status().Update(c.t.Context(), try, client.DryRunAll)
	})
}

// refuseBindings has the API server refuse every binding.
func (c *cluster) refuseBindings() (allow func()) {
	c.t.Helper()
	pod := plainPod("try", func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" })
	c.create(pod)
	return c.refuse(admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}},
	}, "false", func() error {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"}}
		return c.SubResource("binding").Create(c.t.Context(), pod, binding, &client.SubResourceCreateOptions{CreateOptions: client.CreateOptions{DryRun: []string{metav1.DryRunAll}}})
	})
}

// What an attempt writes before it fails does not give the Pod its attempts again.
func TestRefusedBindingsAreCounted(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	spec := ladderOf("H100")
	spec.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](2), InitialBackoff: &metav1.Duration{Duration: time.Second}, MaxBackoff: &metav1.Duration{Duration: time.Second}}
	c.addPolicy("h100", spec)
	allow := c.refuseBindings()
	c.startScheduler()
	c.addPod("pod", "h100")
	said := c.condition("pod", "GaveUp")
	assert.Contains(t, said, "failed 2 of 2 attempts")
	for range 20 {
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, said, conditionOf(c.pod("pod")).Message)
	}
	allow()
	policy := &v1alpha1.AcceleratorPolicy{}
	require.NoError(t, c.Get(t.Context(), clusterKey("h100"), policy))
	policy.Spec.Retry.MaxAttempts = ptr.To[int32](4)
	require.NoError(t, c.Update(t.Context(), policy))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

// An allocation that the API server refuses is tried as often as the policy
// says, also across a restart of the scheduler, and then no more. A change of
// the policy gives the Pod its attempts again.
func TestAttemptsAreCounted(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	spec := ladderOf("H100")
	spec.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](3), InitialBackoff: &metav1.Duration{Duration: 4 * time.Second}, MaxBackoff: &metav1.Duration{Duration: 4 * time.Second}}
	c.addPolicy("h100", spec)
	allow := c.refuseAllocations()
	stop := c.startScheduler()
	c.addPod("pod", "h100")
	c.eventually(func() error { return c.says("pod", "failed 1 of 3 attempts") })
	first := c.failedAt("pod")
	stop()
	c.startScheduler()
	c.eventually(func() error { return c.says("pod", "failed 2 of 3 attempts") })
	assert.WithinDuration(t, first.Add(4*time.Second), time.Now(), 60*time.Second)
	assert.GreaterOrEqual(t, time.Since(first), 4*time.Second, "the backoff outlives the scheduler")
	message := c.condition("pod", "GaveUp")
	assert.Contains(t, message, "failed 3 of 3 attempts")
	assert.Contains(t, message, "first "+first.UTC().Format(time.RFC3339))
	assert.Contains(t, message, "gave up: no attempt is left")
	c.eventually(func() error {
		if n := len(c.events("pod", "AcceleratorGaveUp")); n != 1 {
			return fmt.Errorf("%d Events tell of the end", n)
		}
		return nil
	})
	allow()
	time.Sleep(2 * time.Second)
	assert.Empty(t, c.pod("pod").Spec.NodeName, "nothing has changed for the Pod")
	policy := &v1alpha1.AcceleratorPolicy{}
	require.NoError(t, c.Get(t.Context(), clusterKey("h100"), policy))
	policy.Spec.Retry.MaxAttempts = ptr.To[int32](4)
	require.NoError(t, c.Update(t.Context(), policy))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

// The policy's deadline ends the attempts as well.
func TestDeadlineIsSaid(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	spec := ladderOf("H100")
	spec.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](100), InitialBackoff: &metav1.Duration{Duration: time.Second}, Deadline: &metav1.Duration{Duration: 2 * time.Second}}
	c.addPolicy("h100", spec)
	c.refuseAllocations()
	c.startScheduler()
	c.addPod("pod", "h100")
	assert.Contains(t, c.condition("pod", "GaveUp"), "gave up: the deadline has passed")
}

// says reports whether the Pod's condition contains a text.
func (c *cluster) says(pod, text string) error {
	condition := conditionOf(c.pod(pod))
	if condition == nil || !strings.Contains(condition.Message, text) {
		return fmt.Errorf("the Pod does not say %q: %s", text, conditionText(c.pod(pod)))
	}
	return nil
}

// failedAt is when the Pod says that its first attempt failed.
func (c *cluster) failedAt(pod string) time.Time {
	c.t.Helper()
	_, after, found := strings.Cut(conditionOf(c.pod(pod)).Message, "first ")
	require.True(c.t, found)
	at, err := time.Parse(time.RFC3339, after[:strings.IndexAny(after, ",]")])
	require.NoError(c.t, err)
	return at
}
