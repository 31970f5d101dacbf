package ladder

import (
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
)

// queued is a Pod in the queue, created so many seconds after the first.
func queued(namespace, name string, priority int32, created int) *framework.QueuedPodInfo {
	return &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(int64(created), 0)},
		Spec:       corev1.PodSpec{Priority: ptr.To(priority)},
	}}}
}

// queuedGroup is a PodGroup in the queue.
func queuedGroup(namespace, name string, created int) *framework.QueuedPodGroupInfo {
	return &framework.QueuedPodGroupInfo{PodGroupInfo: &framework.PodGroupInfo{
		Namespace: namespace, Name: name, Type: fwk.PodGroupKeyType,
		PodGroup: &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(int64(created), 0),
		}},
	}}
}

func nameOf(e fwk.QueuedEntityInfo) string {
	named := e.(framework.QueuedEntityInfo)
	return named.GetNamespace() + "/" + named.GetName()
}

// However they come, Pods are served in one order.
func TestOrder(t *testing.T) {
	inOrder := []fwk.QueuedEntityInfo{
		queued("z", "urgent", 10, 9),
		queued("z", "old", 0, 1),
		queued("a", "b", 0, 2),
		queuedGroup("a", "gang", 2),
		queued("a", "z", 0, 2),
		queued("b", "a", 0, 2),
		queued("a", "a", 0, 3),
		queued("a", "unimportant", -1, 0),
	}
	for seed := range int64(50) {
		shuffled := slices.Clone(inOrder)
		r := rand.New(rand.NewSource(seed))
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, e := range shuffled {
			if pod, ok := e.(*framework.QueuedPodInfo); ok {
				pod.Timestamp = time.Unix(r.Int63n(1000), 0) // when the queue got it
				pod.Attempts = r.Intn(9)
			}
		}
		slices.SortFunc(shuffled, func(a, b fwk.QueuedEntityInfo) int {
			switch {
			case (Order{}).Less(a, b):
				return -1
			case (Order{}).Less(b, a):
				return 1
			}
			return 0
		})
		var got, want []string
		for i := range inOrder {
			got, want = append(got, nameOf(shuffled[i])), append(want, nameOf(inOrder[i]))
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// Of two that differ exactly one comes first, and none before itself.
func TestOrderIsTotal(t *testing.T) {
	var all []fwk.QueuedEntityInfo
	for _, namespace := range []string{"a", "b"} {
		for _, name := range []string{"a", "b"} {
			for priority := range int32(2) {
				for created := range 2 {
					all = append(all, queued(namespace, name, priority, created))
				}
			}
		}
	}
	all = append(all, queuedGroup("a", "a", 0))
	order := Order{}
	for i, a := range all {
		for j, b := range all {
			if i == j {
				assert.False(t, order.Less(a, b))
			} else {
				assert.NotEqual(t, order.Less(a, b), order.Less(b, a), "%d and %d", i, j)
			}
		}
	}
}

func TestNewOrder(t *testing.T) {
	plugin, err := NewOrder(t.Context(), nil, nil)
	require.NoError(t, err)
	assert.Equal(t, OrderName, plugin.Name())
	assert.Implements(t, (*fwk.QueueSortPlugin)(nil), plugin)
	assert.NotImplements(t, (*fwk.QueueSortPlugin)(nil), &Plugin{}, "else every profile with Ladder would have two of them")
}
