package quota

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// gang makes a PodGroup and its Pods: group-a, group-b, and so on.
func (w *world) gang(namespace, group, policy string, pods int) {
	w.create(&schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: group},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(pods)},
		}},
	})
	for i := range pods {
		w.pod(namespace, group+"-"+string(rune('a'+i)), policy, func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(group)}
		})
	}
}

// A controller that dies between the gates of a gang leaves them to the next
// one, which opens them before anything else can have the room.
func TestGatesOfAGangOpenTogether(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 3)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 3))
	w.pod("team", "single", "h")
	w.expect("patch Pod team/single")
	w.clock.Step(time.Second)
	w.gang("team", "job", "h", 3)
	w.expect()
	w.clock.Step(statusEvery)
	w.expect()
	if got := w.status("team"); got.Waiting != 3 || len(got.Next) != 1 || got.Next[0].Reason != "LimitReached" {
		t.Errorf("got status %+v", got)
	}
	w.remove("team", "single")
	w.fail = func(_ string, o client.Object) error {
		if o.GetName() != "job-b" {
			return errDead
		}
		return nil
	}
	w.expect("patch Pod team/job-b")
	w.fail = nil
	w.restart()
	w.clock.Step(-time.Hour)
	w.pod("team", "older", "h")
	w.clock.Step(time.Hour)
	w.expect("patch Pod team/job-a", "patch Pod team/job-c")
	w.expect()
}

// lendToGang has a gang of b borrow what a is guaranteed, and a ask for one.
func lendToGang(t *testing.T) *world {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", "H100")
	w.quota("a", part("H100", 1, 1))
	w.quota("b", part("H100", 0, 2))
	w.gang("b", "job", "h", 2)
	w.expect("patch Pod b/job-a", "patch Pod b/job-b")
	w.allocate("b", "job-a", "n/gpu-0")
	w.allocate("b", "job-b", "n/gpu-1")
	w.clock.Step(time.Minute)
	w.pod("a", "asks", "h")
	return w
}

func TestGangIsReclaimedWhole(t *testing.T) {
	w := lendToGang(t)
	w.expect("patch Pod b/job-a", "patch Pod b/job-b")
	w.restart()
	w.expect()
	w.clock.Step(time.Minute)
	w.expect("eviction Pod b/job-a", "eviction Pod b/job-b")
	w.remove("b", "job-a")
	w.expect("patch Pod a/asks")
}

// Who could not be told keeps all of the gang from being evicted.
func TestNoPodOfAGangIsEvictedUntold(t *testing.T) {
	w := lendToGang(t)
	w.fail = func(_ string, o client.Object) error {
		if o.GetName() == "job-b" {
			return apierrors.NewServiceUnavailable("down")
		}
		return nil
	}
	for range 20 {
		if got := w.round(); slices.ContainsFunc(got, func(s string) bool { return s != "patch Pod b/job-a" }) {
			t.Fatalf("got writes %q", got)
		}
		w.clock.Step(10 * time.Second)
	}
}

// One that can't be evicted spares the gang, unless another one was.
func TestEvictionOfAGangIsRefused(t *testing.T) {
	for name, refused := range map[string][]string{"all": {"job-a", "job-b"}, "one": {"job-b"}} {
		t.Run(name, func(t *testing.T) {
			w := lendToGang(t)
			w.expect("patch Pod b/job-a", "patch Pod b/job-b")
			w.fail = func(verb string, o client.Object) error {
				if verb == "eviction" && slices.Contains(refused, o.GetName()) {
					return refuse(429, metav1.StatusReasonTooManyRequests)
				}
				return nil
			}
			w.clock.Step(time.Minute)
			var writes []string
			for range refusals {
				writes = append(writes, w.round()...)
				w.clock.Step(lastBackoff)
			}
			writes = append(writes, w.round()...)
			notice := func(name string) string { return w.get("b", name).Annotations[v1alpha1.AnnotationReclaimDeadline] }
			if name == "all" {
				if !slices.Equal(writes, []string{"patch Pod b/job-a", "patch Pod b/job-b"}) || notice("job-a")+notice("job-b") != "" {
					t.Errorf("got writes %q, want both notices withdrawn", writes)
				}
				return
			}
			if !slices.Contains(writes, "eviction Pod b/job-a") || notice("job-b") == "" {
				t.Errorf("got writes %q, want the notice of the other to stand", writes)
			}
			w.fail = nil
			w.clock.Step(lastBackoff)
			w.expect("eviction Pod b/job-b")
		})
	}
}

// A cluster without PodGroups is no error; one that does not answer is.
func TestServesGroups(t *testing.T) {
	with := meta.NewDefaultRESTMapper(nil)
	with.Add(schedulingv1beta1.SchemeGroupVersion.WithKind("PodGroup"), meta.RESTScopeNamespace)
	for name, test := range map[string]struct {
		mapper      meta.RESTMapper
		want, fails bool
	}{
		"served":     {with, true, false},
		"not served": {meta.NewDefaultRESTMapper([]schema.GroupVersion{schedulingv1beta1.SchemeGroupVersion}), false, false},
		"no answer":  {down{with}, false, true},
	} {
		if got, err := servesGroups(test.mapper); got != test.want || (err != nil) != test.fails {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

type down struct{ meta.RESTMapper }

func (down) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, apierrors.NewServiceUnavailable("down")
}
