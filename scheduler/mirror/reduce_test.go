package mirror

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/view"
)

// Of a Pod's annotations the engine is told the models of its turn, and of a change
// of these.
func TestAnnotationsOfAPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}}
	assert.Nil(t, relevantPod(pod).Annotations)
	state := decide.NewState(decide.Options{})
	m := New(state, view.NewInFlight(), klog.Background())
	digestWith := func(annotations map[string]string) string {
		again := pod.DeepCopy()
		again.Annotations = annotations
		require.NoError(t, m.PutPod(again))
		return state.Digest()
	}
	without := digestWith(nil)
	assert.Equal(t, without, digestWith(map[string]string{v1alpha1.AnnotationModel: "H100", "x": "y"}))
	l4 := map[string]string{v1alpha1.AnnotationTurnModels: "L4", v1alpha1.AnnotationModel: "H100", "x": "y"}
	one := digestWith(l4)
	assert.NotEqual(t, without, one)
	assert.NotEqual(t, one, digestWith(map[string]string{v1alpha1.AnnotationTurnModels: "H100"}))
	pod.Annotations = l4
	assert.Equal(t, map[string]string{v1alpha1.AnnotationTurnModels: "L4"}, relevantPod(pod).Annotations)
}
