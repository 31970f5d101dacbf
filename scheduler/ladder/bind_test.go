package ladder

import (
	"net/url"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// lostBinding has the API server bind a Pod, as the one of this UID to this node,
// and the answer get lost.
func lostBinding(t *testing.T, uid types.UID, node string) *Plugin {
	t.Helper()
	api := fake.NewClientset(testPod())
	api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		bound := testPod()
		bound.UID, bound.Spec.NodeName = uid, node
		require.NoError(t, api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), bound, "ns"))
		return true, nil, &url.Error{Op: "Post", URL: "https://x", Err: syscall.ECONNRESET}
	})
	return &Plugin{handle: &standIn{api: api}}
}

// A Pod that was bound although no answer came is bound.
func TestBindingWithoutAnAnswer(t *testing.T) {
	p := lostBinding(t, "u", "n")
	state := framework.NewCycleState()
	state.Write(searchKey, &search{pod: testPod(), reserved: &reservation{decision: decisionOf("p", 1)}})
	assert.True(t, p.Bind(t.Context(), state, testPod(), "n").IsSuccess())
}

// One that another scheduler bound elsewhere, or that was made again, is not.
func TestBindingOfAnother(t *testing.T) {
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Target: corev1.ObjectReference{Name: "n"}}
	for name, p := range map[string]*Plugin{"node": lostBinding(t, "u", "m"), "Pod": lostBinding(t, "v", "n")} {
		require.Error(t, p.bind(t.Context(), binding))
		assert.False(t, p.isBound(t.Context(), binding), name)
	}
	gone := &Plugin{handle: &standIn{api: fake.NewClientset()}}
	assert.False(t, gone.isBound(t.Context(), binding))
}
