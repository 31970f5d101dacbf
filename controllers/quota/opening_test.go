package quota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
	"gpuladder.dev/ladder/policies/tenants"
)

// What is written with the opening is part of the same patch, in the order of its
// names.
func TestOpenGate(t *testing.T) {
	const opens = `[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/schedulingGates/1/name","value":"gpuladder.dev/quota"},{"op":"remove","path":"/spec/schedulingGates/1"}`
	gated := corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/first"}, {Name: v1alpha1.GateQuota}}}
	both := map[string]string{v1alpha1.AnnotationTurnModels: "A100,H100", v1alpha1.AnnotationTurn: `{"h":2}`}
	for name, test := range map[string]struct {
		annotations, says map[string]string
		spec              corev1.PodSpec
		want              string
	}{
		"nothing to say": {annotations: map[string]string{"a": "b"}, spec: gated, want: opens + `]`},
		"the first annotations": {
			says: both, spec: gated,
			want: opens + `,{"op":"test","path":"/metadata/annotations","value":null},{"op":"add","path":"/metadata/annotations","value":{"gpuladder.dev/turn":"{\"h\":2}","gpuladder.dev/turn-models":"A100,H100"}}]`,
		},
		"beside others": {
			annotations: map[string]string{"a": "b"}, says: both, spec: gated,
			want: opens + `,{"op":"add","path":"/metadata/annotations/gpuladder.dev~1turn","value":"{\"h\":2}"},{"op":"add","path":"/metadata/annotations/gpuladder.dev~1turn-models","value":"A100,H100"}]`,
		},
		"open already": {says: both},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: test.annotations}, Spec: test.spec}
		if got := string(openGate(pod, test.says)); got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

// An opening that is tried again says what it would have said at first.
func TestModelsOfATurnAreWritten(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 1)
	w.policy("h", "H100", "A100")
	w.quota("team", part("H100", 0, 1), part("A100", 0, 1))
	w.pod("team", "any", "h")
	w.expect("patch Pod team/any")
	if got := w.get("team", "any").Annotations; len(got) > 0 {
		t.Errorf("a turn for any model says %v", got)
	}
	w.clock.Step(time.Second)
	const template, note = v1alpha1.GroupName + "/claim-template", "example.com/note"
	w.pod("team", "some", "h", func(p *corev1.Pod) { p.Annotations = map[string]string{template: "h-1", note: "x"} })
	w.expect()
	conflicts := 2
	w.fail = func(verb string, _ client.Object) error {
		if verb == "patch" && conflicts > 0 {
			conflicts--
			return refuse(409, metav1.StatusReasonConflict)
		}
		return nil
	}
	w.controller.plan(t.Context(), w.clock.Now(), fair.Action{
		Kind: fair.Open, ID: tenants.IDOf("team", "some", w.get("team", "some").UID), Tenant: "team", Models: []string{"H100", "A100"},
	})
	for conflicts > 0 {
		w.expect()
		w.clock.Step(lastBackoff)
	}
	w.expect("patch Pod team/some")
	got := w.get("team", "some")
	if says := got.Annotations; len(says) != 3 || says[v1alpha1.AnnotationTurnModels] != "A100,H100" || says[template] != "h-1" || says[note] != "x" {
		t.Errorf("got annotations %v", says)
	}
	if tenants.HasGate(got) {
		t.Error("the gate is not open")
	}
}

// A controller that dies between the gates of a gang leaves to the next one for
// which models they open.
func TestModelsOfAGangOutliveTheController(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 2)
	w.policy("h", "H100")
	w.quota("team", part("H100", 0, 2))
	w.gang("team", "job", "h", 2)
	w.fail = func(_ string, o client.Object) error {
		if o.GetName() != "job-a" {
			return errDead
		}
		return nil
	}
	w.expect("patch Pod team/job-a")
	first := w.get("team", "job-a")
	first.Annotations[v1alpha1.AnnotationTurnModels] = "H100"
	if err := w.base.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w.fail = nil
	w.restart()
	w.expect("patch Pod team/job-b")
	for _, key := range []string{v1alpha1.AnnotationTurn, v1alpha1.AnnotationTurnModels} {
		if got, want := w.get("team", "job-b").Annotations[key], first.Annotations[key]; got != want || want == "" {
			t.Errorf("the second Pod says %s %q, the first %q", key, got, want)
		}
	}
	w.expect()
}
