package ladder

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/view"
)

var poolKey = view.PoolKey{Driver: "d", Pool: "p"}

func poolOf(generation int64, devices ...resourceapi.Device) []*resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	s.Spec.Driver, s.Spec.Pool = "d", resourceapi.ResourcePool{Name: "p", Generation: generation, ResourceSliceCount: 1}
	s.Spec.Devices = devices
	return []*resourceapi.ResourceSlice{s}
}

func gpu(model string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
	return resourceapi.Device{
		Name:       "gpu-0",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: ptr.To(model)}},
		Taints:     taints,
	}
}

func taint(key string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Effect: effect}
}

func TestRecheckDevice(t *testing.T) {
	decided := poolOf(1, gpu("H100", taint("known", resourceapi.DeviceTaintEffectNoExecute)))
	tolerations := []resourceapi.DeviceToleration{{Key: "known", Operator: resourceapi.DeviceTolerationOpExists}}
	for name, test := range map[string]struct {
		now  []*resourceapi.ResourceSlice
		want v1alpha1.FailureClass
	}{
		"the same slice":      {decided, ""},
		"the same data":       {poolOf(2, gpu("H100")), ""},
		"a tolerated taint":   {poolOf(1, gpu("H100", taint("known", resourceapi.DeviceTaintEffectNoSchedule))), ""},
		"a taint of no force": {poolOf(1, gpu("H100", taint("new", resourceapi.DeviceTaintEffectNone))), ""},
		"a new taint":         {poolOf(1, gpu("H100", taint("new", resourceapi.DeviceTaintEffectNoSchedule))), v1alpha1.FailureDeviceBecameUnhealthy},
		"other data":          {poolOf(1, gpu("A100")), v1alpha1.FailureStaleSlice},
		"gone":                {poolOf(1), v1alpha1.FailureStaleSlice},
		"pool gone":           {nil, v1alpha1.FailureStaleSlice},
		"gone in the newest generation": {
			append(poolOf(1, gpu("H100")), poolOf(2)...), v1alpha1.FailureStaleSlice,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := findDevice(decided, poolKey, "gpu-0")
			require.NoError(t, err)
			d.tolerations = tolerations
			err = recheckDevice(d, test.now)
			if test.want == "" {
				assert.NoError(t, err)
				return
			}
			var failure *BindError
			require.ErrorAs(t, err, &failure)
			assert.Equal(t, test.want, failure.Class)
		})
	}
}

// objectsStub is what is known of Ladder's own group.
type objectsStub struct {
	policies  map[string]*v1alpha1.AcceleratorPolicy
	revisions map[string]*v1alpha1.PolicyRevision
	quota     *v1alpha1.TenantQuota
	down      error
}

func (o *objectsStub) Ready() bool { return true }
func (o *objectsStub) Policy(name string) *v1alpha1.AcceleratorPolicy {
	return o.policies[name]
}

func (o *objectsStub) Revision(policy string, revision int64) *v1alpha1.PolicyRevision {
	return o.revisions[v1alpha1.RevisionName(policy, revision)]
}
func (o *objectsStub) Ping(context.Context) error         { return o.down }
func (o *objectsStub) Quota(string) *v1alpha1.TenantQuota { return o.quota }

func TestRecheckRevision(t *testing.T) {
	usable := &v1alpha1.PolicyRevision{}
	withdrawn := &v1alpha1.PolicyRevision{Spec: v1alpha1.PolicyRevisionSpec{State: v1alpha1.RevisionWithdrawn}}
	policies := map[string]*v1alpha1.AcceleratorPolicy{"p": {}}
	for name, test := range map[string]struct {
		objects  objectsStub
		revision int64
		fails    bool
	}{
		"there":                       {objectsStub{policies, map[string]*v1alpha1.PolicyRevision{"p-2": usable}, nil, nil}, 2, false},
		"withdrawn":                   {objectsStub{policies, map[string]*v1alpha1.PolicyRevision{"p-2": withdrawn}, nil, nil}, 2, true},
		"revision gone":               {objectsStub{policies, nil, nil, nil}, 2, true},
		"a policy without revisions":  {objectsStub{policies, nil, nil, nil}, 1, false},
		"everything gone":             {objectsStub{}, 1, true},
		"policy gone, revision there": {objectsStub{nil, map[string]*v1alpha1.PolicyRevision{"p-2": usable}, nil, nil}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Plugin{core: &Core{objects: &test.objects}}
			d := decisionOf("p", test.revision)
			err := p.recheckRevision(&reservation{decision: d})
			assert.Equal(t, test.fails, err != nil, "%v", err)
			if test.fails {
				var failure *BindError
				require.ErrorAs(t, err, &failure)
				assert.Equal(t, v1alpha1.FailurePolicyInvalid, failure.Class)
			}
		})
	}
}

func TestQuotaVersion(t *testing.T) {
	q := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 1}}
	assert.Equal(t, versionOf(q), versionOf(q.DeepCopy()))
	raised := q.DeepCopy()
	raised.Generation = 2
	assert.NotEqual(t, versionOf(q), versionOf(raised))
	assert.NotEqual(t, versionOf(q), versionOf(nil))
}
