package ladder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func readyNode(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1"},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func TestRecheckNode(t *testing.T) {
	noSchedule := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule} }
	chosen := readyNode(corev1.ConditionTrue, noSchedule("known"))
	replaced, cordoned := readyNode(corev1.ConditionTrue), readyNode(corev1.ConditionTrue)
	replaced.UID, cordoned.Spec.Unschedulable = "2", true
	again := noSchedule("known")
	again.TimeAdded = ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		now       *corev1.Node
		tolerates string
		lost      string
	}{
		"the same":                {chosen, "", ""},
		"the same taint":          {readyNode(corev1.ConditionTrue, again), "", ""},
		"gone":                    {nil, "", "is gone"},
		"replaced":                {replaced, "", "is gone"},
		"a new taint":             {readyNode(corev1.ConditionTrue, noSchedule("new")), "", "new taint new:NoSchedule"},
		"not to be run on":        {readyNode(corev1.ConditionTrue, corev1.Taint{Key: "new", Effect: corev1.TaintEffectNoExecute}), "", "new taint"},
		"rather not":              {readyNode(corev1.ConditionTrue, corev1.Taint{Key: "new", Effect: corev1.TaintEffectPreferNoSchedule}), "", ""},
		"a tolerated taint":       {readyNode(corev1.ConditionTrue, noSchedule("new")), "new", ""},
		"cordoned":                {cordoned, "", "was cordoned"},
		"cordoned, all the same":  {cordoned, corev1.TaintNodeUnschedulable, ""},
		"not ready":               {readyNode(corev1.ConditionFalse), "", "is not ready"},
		"not heard of":            {readyNode(corev1.ConditionUnknown), "", "is not ready"},
		"not ready, all the same": {readyNode(corev1.ConditionFalse), corev1.TaintNodeNotReady, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod()
			if test.tolerates != "" {
				pod.Spec.Tolerations = []corev1.Toleration{{Key: test.tolerates, Operator: corev1.TolerationOpExists}}
			}
			err := recheckNode(chosen, test.now, pod)
			if test.lost == "" {
				assert.NoError(t, err)
				return
			}
			var failure *BindError
			require.ErrorAs(t, err, &failure)
			assert.Equal(t, v1alpha1.FailureNodeLost, failure.Class)
			assert.ErrorContains(t, err, test.lost)
		})
	}
	assert.NoError(t, recheckNode(readyNode(corev1.ConditionFalse), readyNode(corev1.ConditionFalse), testPod()), "it was so when it was chosen")
}

// A device that another claim was allocated is not taken, unless it is for
// several.
func TestHolders(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	h, err := newHolders(factory.Resource().V1().ResourceClaims().Informer())
	require.NoError(t, err)
	holding := func(uid types.UID, device string, change func(*resourceapi.DeviceRequestAllocationResult)) *resourceapi.ResourceClaim {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid}}
		result := resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: device}
		if change != nil {
			change(&result)
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}}
		return claim
	}
	for _, claim := range []*resourceapi.ResourceClaim{
		holding("1", "gpu-0", nil),
		holding("2", "gpu-1", func(r *resourceapi.DeviceRequestAllocationResult) { r.AdminAccess = ptr.To(true) }),
		holding("3", "gpu-2", func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = ptr.To(types.UID("s")) }),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "none", UID: "4"}},
	} {
		require.NoError(t, h.claims.Add(claim))
	}
	device := func(name string) reservedDevice {
		return reservedDevice{pool: poolKey, device: resourceapi.Device{Name: name}}
	}
	assert.NoError(t, h.recheck(device("gpu-0"), sets.New[types.UID]("1")), "its own")
	err = h.recheck(device("gpu-0"), sets.New[types.UID]("5"))
	var failure *BindError
	require.ErrorAs(t, err, &failure)
	assert.Equal(t, v1alpha1.FailureBindConflict, failure.Class)
	assert.ErrorContains(t, err, "claim ns/1")
	shared := device("gpu-0")
	shared.shared = true
	assert.NoError(t, h.recheck(shared, sets.New[types.UID]("5")))
	for _, name := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		assert.NoError(t, h.recheck(device(name), sets.New[types.UID]("5")), name)
	}
	keys, err := devicesOf(&corev1.Pod{})
	assert.NoError(t, err)
	assert.Empty(t, keys)
}
