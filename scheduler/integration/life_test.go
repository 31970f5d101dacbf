package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
)

func small(nodes int) fleet.Group {
	return fleet.Group{Name: "h100", Nodes: nodes, Board: "H100-SXM5-80GB", GPUs: 2}
}

// Many Pods at once share no device; the ones too many wait and get the devices
// of those that leave.
func TestManyAtOnce(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("any", ladderOf("H100", "A100", "L4"))
	c.startScheduler()
	const devices, pods = 44, 48
	var group sync.WaitGroup
	for i := range pods {
		group.Go(func() { c.addPod(fmt.Sprintf("pod-%02d", i), "any") })
	}
	group.Wait()
	var waiting []string
	c.eventually(func() error {
		waiting = nil
		seen := map[string]string{}
		for i := range pods {
			name := fmt.Sprintf("pod-%02d", i)
			at, err := c.place(name)
			if err != nil {
				waiting = append(waiting, name)
				continue
			}
			if other := seen[at]; other != "" {
				t.Fatalf("%s and %s share %s", name, other, at)
			}
			seen[at] = name
		}
		if len(waiting) != pods-devices {
			return fmt.Errorf("%d wait, want %d", len(waiting), pods-devices)
		}
		return nil
	})
	for _, name := range waiting {
		assert.Regexp(t, "InUse|Reserved", c.condition(name, "Pending"))
	}
	for i, left := 0, 0; left < len(waiting); i++ {
		if name := fmt.Sprintf("pod-%02d", i); !contains(waiting, name) {
			c.remove(name)
			left++
		}
	}
	for _, name := range waiting {
		c.placed(name)
	}
}

func contains(list []string, name string) bool {
	for _, s := range list {
		if s == name {
			return true
		}
	}
	return false
}

func TestPodsWithoutClaims(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "cpu", Nodes: 2, CPU: *quantity("4")})
	c.startScheduler()
	c.create(plainPod("plain", withCPU("1")))
	assert.Contains(t, c.placed("plain"), "cpu-")
	assert.Nil(t, conditionOf(c.pod("plain")))
	records := &v1alpha1.AllocationDecisionList{}
	require.NoError(t, c.List(t.Context(), records))
	assert.Empty(t, records.Items)
}

// A claim without any policy is decided by the same engine.
func TestPlainClaims(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.startScheduler()
	request := func(model string) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{
			Name: strings.ToLower(model), DeviceClassName: v1alpha1.DriverName,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf(`device.attributes[%q].model == %q`, v1alpha1.DriverName, model),
			}}},
		}
	}
	for i := range 3 {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("claim-%d", i)}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
			Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{request("H100"), request("L4")},
		}}
		c.create(claim)
		c.create(plainPod(fmt.Sprintf("pod-%d", i), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: ptr.To(claim.Name)}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
		}))
		want := []string{"h100-0000/gpu-0+gpu-1", "h100-0001/gpu-0+gpu-1", "l4-0000/gpu-0+gpu-1"}[i]
		assert.Equal(t, want, c.placed(fmt.Sprintf("pod-%d", i)))
	}
	assert.Equal(t, "gpu/l4", c.record("pod-2", v1alpha1.OutcomeAllocated).Spec.Tier)
}

// A taint rule takes a device out, and its end brings it back.
func TestTaintRule(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "h100", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: 1})
	c.addPolicy("h100", ladderOf("H100"))
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("h100-0000"), Device: ptr.To("gpu-0")}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	c.create(rule)
	c.startScheduler()
	c.addPod("pod", "h100")
	assert.Contains(t, c.condition("pod", "Pending"), "DeviceTainted")
	require.NoError(t, c.Delete(t.Context(), rule))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
	c.condition("pod", "Allocated")
}

// A restart changes nothing: what is allocated stays, who waits goes on waiting
// without being told again.
func TestRestart(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	stop := c.startScheduler()
	c.addPod("a", "h100")
	c.placed("a")
	c.addPod("b", "h100")
	c.placed("b")
	c.addPod("c", "h100")
	c.condition("c", "Pending")
	before := c.pod("c")
	stop()
	c.startScheduler()
	c.remove("a")
	assert.Equal(t, "h100-0000/gpu-0", c.placed("c"))
	assert.NotEmpty(t, before.UID)
	assert.Len(t, c.events("c", "AcceleratorPending"), 1)
}

// A later tier opens when its time comes, also if the scheduler was restarted
// in between.
func TestAfter(t *testing.T) {
	c := newCluster(t)
	c.addFleet(fleet.Group{Name: "l4", Nodes: 1, Board: "L4", GPUs: 1})
	spec := ladderOf("H100", "L4")
	spec.Tiers[1].After = &metav1.Duration{Duration: 6 * time.Second}
	c.addPolicy("patient", spec)
	stop := c.startScheduler()
	pod := c.addPod("pod", "patient")
	assert.Contains(t, c.condition("pod", "Pending"), "TierNotYetAllowed")
	stop()
	c.startScheduler()
	assert.Equal(t, "l4-0000/gpu-0", c.placed("pod"))
	waited := c.pod("pod")
	for _, condition := range waited.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			assert.GreaterOrEqual(t, condition.LastTransitionTime.Sub(pod.CreationTimestamp.Time), 6*time.Second)
		}
	}
}

func TestUnsatisfiable(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("t4", ladderOf("T4"))
	c.startScheduler()
	c.addPod("pod", "t4")
	assert.Contains(t, c.condition("pod", "Unsatisfiable"), "Unsatisfiable: ")
	record := c.record("pod", v1alpha1.OutcomeUnsatisfiable)
	assert.Equal(t, v1alpha1.FailureUnsatisfiable, record.Spec.Class)
	// A node that could serve it wakes it.
	c.addFleet(fleet.Group{Name: "new", Nodes: 1, Board: "T4", GPUs: 1})
	assert.Equal(t, "new-0000/gpu-0", c.placed("pod"))
}

// The tenant's limit holds however many Pods come at once; raising it wakes
// those that wait.
func TestQuota(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("H100"))
	quota := &v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](3)}},
		},
	}
	c.create(quota)
	c.startScheduler()
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() { c.addPod(fmt.Sprintf("pod-%d", i), "h100") })
	}
	group.Wait()
	bound := func() (n int, waits string) {
		for i := range 4 {
			if _, err := c.place(fmt.Sprintf("pod-%d", i)); err == nil {
				n++
			} else {
				waits = fmt.Sprintf("pod-%d", i)
			}
		}
		return n, waits
	}
	var waits string
	c.eventually(func() error {
		n, w := bound()
		if waits = w; n != 3 {
			return fmt.Errorf("%d bound, want 3", n)
		}
		return nil
	})
	assert.Contains(t, c.condition(waits, "Pending"), "QuotaExceeded")
	quota.Spec.Models[0].Limit = ptr.To[int32](4)
	require.NoError(t, c.Update(t.Context(), quota))
	c.placed(waits)
}

// What a tenant has counts while its slice is away, as when a kubelet starts again,
// whether the scheduler saw it given or not.
func TestQuotaOutlivesTheSlice(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("H100"))
	c.create(&v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
		},
	})
	stop := c.startScheduler()
	c.addPod("first", "h100")
	assert.Equal(t, "h100-0000/gpu-0", c.placed("first"))
	require.NoError(t, c.Delete(t.Context(), c.slice("h100-0000")))
	c.addPod("second", "h100")
	assert.Contains(t, c.condition("second", "Pending"), "QuotaExceeded")
	stop()
	c.startScheduler()
	c.addPod("third", "h100")
	assert.Contains(t, c.condition("third", "Pending"), "QuotaExceeded")
	c.remove("first")
	c.eventually(func() error {
		n := 0
		for _, name := range []string{"second", "third"} {
			if _, err := c.place(name); err == nil {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("%d have taken its place", n)
		}
		return nil
	})
}

// A Pod has devices of the models that its turn is for, though the first tier's are
// free, and waits where those are taken.
func TestTurnForSomeModels(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1), fleet.Group{Name: "l4", Nodes: 1, Board: "L4", GPUs: 2})
	c.serveByClass("gpu", gpuResource, "")
	c.addPolicy("h100-first", ladderOf("H100", "L4"))
	c.create(&v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](2)}, {Model: "L4", Limit: ptr.To[int32](2)}},
		},
	})
	c.startScheduler()
	turn := func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationTurnModels, "L4") }
	c.addPod("claim", "h100-first", turn)
	assert.Equal(t, "l4-0000/gpu-0", c.placed("claim"))
	c.create(plainPod("resource", withResource(gpuResource, 1), following("h100-first"), turn))
	assert.Equal(t, "l4-0000/gpu-1", c.servedAt("resource"))
	waits := c.addPod("waits", "h100-first", turn)
	assert.Contains(t, c.condition("waits", "Pending"), "t0 (2 ModelMismatch, 2 QuotaExceeded)")
	// For any model by now.
	require.NoError(t, c.Patch(t.Context(), waits, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationTurnModels+`":null}}}`))))
	assert.Equal(t, "h100-0000/gpu-0", c.placed("waits"))
}

// A withdrawn revision parks the Pods that still wait with it.
func TestWithdrawn(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	revision := &v1alpha1.PolicyRevision{}
	require.NoError(t, c.Get(t.Context(), clusterKey(v1alpha1.RevisionName("h100", 1)), revision))
	revision.Spec.State = v1alpha1.RevisionWithdrawn
	require.NoError(t, c.Update(t.Context(), revision))
	c.startScheduler()
	c.addPod("pod", "h100")
	assert.Contains(t, c.condition("pod", "Pending"), "PolicyInvalid: revision 1 of policy h100 is withdrawn")
	require.NoError(t, c.Get(t.Context(), clusterKey(revision.Name), revision))
	revision.Spec.State = v1alpha1.RevisionUsable
	require.NoError(t, c.Update(t.Context(), revision))
	c.placed("pod")
}

// A cluster without Ladder's kinds is scheduled all the same, and a kind that
// comes later counts from then on.
func TestKindInstalledLater(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("H100"))
	c.uninstall("tenantquotas.gpuladder.dev")
	c.startScheduler()
	c.addPod("before", "h100")
	c.placed("before")
	c.install("tenantquotas.gpuladder.dev")
	c.create(&v1alpha1.TenantQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: v1alpha1.TenantQuotaSpec{
			Namespaces: []string{namespace},
			Models:     []v1alpha1.ModelQuota{{Model: "H100", Limit: ptr.To[int32](1)}},
		},
	})
	c.eventually(func() error {
		c.addPod("after", "h100")
		defer c.remove("after")
		if at, err := c.place("after"); err == nil {
			return fmt.Errorf("bound at %s in spite of the quota", at)
		}
		c.settled("after")
		if at, err := c.place("after"); err == nil {
			return fmt.Errorf("bound at %s in spite of the quota", at)
		}
		return nil
	})
}

// A nomination from an earlier attempt does not overrule the order.
func TestStaleNomination(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100"))
	pod := c.addPod("pod", "h100-first")
	pod.Status.NominatedNodeName = "h100-0001"
	require.NoError(t, c.Status().Update(t.Context(), pod))
	c.startScheduler()
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

// A Pod of higher priority gets its CPU by preemption on the best node, never
// its device.
func TestPreemptionForCPU(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	low := plainPod("low", withCPU("32"))
	low.Spec.NodeName = "h100-0000"
	low.Spec.Priority = ptr.To[int32](0)
	c.create(low)
	c.startScheduler()
	priority := systemPriority
	c.addPod("pod", "h100", withCPU("8"), func(p *corev1.Pod) { p.Spec.PriorityClassName = priority })
	c.eventually(func() error {
		err := c.Get(context.Background(), podKey("low"), &corev1.Pod{})
		if err == nil {
			c.finishTermination("low")
			return fmt.Errorf("the Pod of lower priority is still there: %s", conditionText(c.pod("pod")))
		}
		return nil
	})
	assert.Equal(t, "h100-0000/gpu-0", c.placed("pod"))
}

func (c *cluster) events(pod, reason string) []eventsv1.Event {
	c.t.Helper()
	list := &eventsv1.EventList{}
	require.NoError(c.t, c.List(c.t.Context(), list))
	var found []eventsv1.Event
	for _, e := range list.Items {
		if e.Regarding.Name == pod && e.Reason == reason && e.Regarding.UID == c.pod(pod).UID {
			found = append(found, e)
		}
	}
	return found
}
