package decide

import (
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// brokenDown is what the driver sets on a device whose failure is confirmed.
func brokenDown(d *resourceapi.Device) {
	withTaint(v1alpha1.TaintUnhealthy, resourceapi.DeviceTaintEffectNoSchedule)(d)
	withTaint(v1alpha1.TaintFailed, resourceapi.DeviceTaintEffectNoExecute)(d)
}

// Whatever a policy does about a device that has failed, and whichever taint its
// claims tolerate for that, the Pod that takes the place of another does not get
// that device again: it gets another, or waits.
func TestAFailedDeviceIsNotGivenOutAgain(t *testing.T) {
	for _, unhealthy := range []v1alpha1.OnUnhealthy{
		{Action: v1alpha1.UnhealthyEvict},
		{Action: v1alpha1.UnhealthyEvict, GracePeriod: &metav1.Duration{Duration: time.Minute}},
		{Action: v1alpha1.UnhealthyRecreate},
		{Action: v1alpha1.UnhealthyEnd},
		{Action: v1alpha1.UnhealthyKeep},
	} {
		t.Run(string(unhealthy.Action), func(t *testing.T) {
			policy := ladder(func(s *v1alpha1.AcceleratorPolicySpec) { s.OnUnhealthy = unhealthy })
			st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100", brokenDown), aGPU("gpu-1", "H100")), policy, aPod("replacement"))
			if d := decideFor(t, st, ask("replacement")); !slices.Equal(namesOf(d), []string{"n-1/gpu-1"}) {
				t.Errorf("got %v: %s", namesOf(d), d.Message)
			}
			mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "H100", brokenDown)))
			d := decideFor(t, st, ask("replacement"))
			if d.Outcome != v1alpha1.OutcomePending || countsOf(t, d, "h100")[v1alpha1.ReasonDeviceTainted] != 1 {
				t.Errorf("alone with the failed device: %s, %s", d.Outcome, d.Message)
			}
			mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "H100")))
			if d := decideFor(t, st, ask("replacement")); !slices.Equal(namesOf(d), []string{"n-1/gpu-0"}) {
				t.Errorf("once it is well again: %v, %s", namesOf(d), d.Message)
			}
		})
	}
}

// A claim that was allocated before and whose device has failed since is not
// used, although it tolerates the failure: that is for Pods that run.
func TestAnAllocatedDeviceThatFailedIsNotUsed(t *testing.T) {
	c := allocated(aClaim("c", exactly("gpu", 1)), "gpu", [2]string{"n-1", "gpu-0"})
	c.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{{
		Key: v1alpha1.TaintFailed, Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute,
	}}
	st := stateOf(t, aNode("n-1"), aClass("gpu"), aSlice("n-1", aGPU("gpu-0", "H100"), aGPU("gpu-1", "H100")), aPod("p", plain("c")), c)
	if d := decideFor(t, st, ask("p")); d.Outcome != v1alpha1.OutcomeAllocated || !slices.Equal(namesOf(d), []string{"n-1/gpu-0"}) {
		t.Fatalf("while it is well: %v, %s", namesOf(d), d.Message)
	}
	mustPut(t, st, aSlice("n-1", aGPU("gpu-0", "H100", brokenDown), aGPU("gpu-1", "H100")))
	d := decideFor(t, st, ask("p"))
	if d.Outcome != v1alpha1.OutcomePending || !strings.Contains(d.Message, v1alpha1.TaintUnhealthy) {
		t.Errorf("%s: %s", d.Outcome, d.Message)
	}
}
