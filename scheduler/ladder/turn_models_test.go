package ladder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/mirror"
	"gpuladder.dev/ladder/scheduler/view"
)

// A Pod gets devices of the models that its turn is for, whether it asks for them
// by a claim or by an extended resource, and those of the last that was said.
func TestTurnForSomeModels(t *testing.T) {
	fleet := &naive{nodes: map[string][]naiveDevice{
		"a": {{name: "gpu-0", model: "H100", memory: 80, inClass: true, free: true}},
		"b": {{name: "gpu-0", model: "L4", memory: 24, inClass: true, free: true}},
	}}
	revision := aRevision(tier("h100", 0, "H100"), tier("l4", 0, "L4"))
	variant, err := variantOf(revision, resourceAsked{gpuName, classNamed("all"), 1})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		pod      func() *corev1.Pod
		extended bool
	}{
		"claim": {func() *corev1.Pod {
			pod := testPod()
			pod.Labels = map[string]string{v1alpha1.LabelPolicy: "h100-first", v1alpha1.LabelPolicyRevision: "3"}
			return pod
		}, false},
		"extended resource": {func() *corev1.Pod { return resourcePod(1, withAnnotation("h100-first")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			state := decide.NewState(decide.Options{NodeChecks: decide.ExternalNodeChecks})
			for _, obj := range append(fleet.objects(), revision, variant) {
				require.NoError(t, state.Put(obj))
			}
			m := mirror.New(state, view.NewInFlight(), klog.Background())
			for _, step := range []struct{ turn, node, tier string }{{"L4", "b", "l4"}, {"H100,L4", "a", "h100"}, {"T4", "", ""}, {"L4", "b", "l4"}} {
				s := &search{pod: test.pod()}
				turnFor(step.turn)(s.pod)
				if test.extended {
					s.extended = &extended{shadow: shadowOf(s.pod, variant, nil)}
				}
				require.NoError(t, m.PutPod(s.asked()))
				d, err := state.Decide(s.query())
				require.NoError(t, err)
				assert.Equal(t, step.node, d.Node, "turn for %s: %s", step.turn, d.Message)
				assert.Equal(t, step.tier, d.Tier)
			}
		})
	}
}
