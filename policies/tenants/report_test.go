package tenants

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestStatusOfALine(t *testing.T) {
	w := newWorld(t)
	w.gpus("n", "H100", 4)
	w.policy("h", nil, tier("H100"), tier("B200"))
	q := w.quota("team", []string{"team"}, part("H100", 1, 1))
	q.Generation = 7
	first := w.pod("team", "first", "h")
	w.expect("Open team/first")
	w.allocate(w.opened(first), "n/gpu-0")
	w.now = w.now.Add(time.Minute)
	since := w.now
	for i := range 12 {
		w.pod("team", fmt.Sprintf("p%02d", i), "h")
		w.now = w.now.Add(time.Second)
	}
	w.pod("team", "urgent", "h", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](1000) })
	w.expect()
	s := w.mirror.Status(q)
	if s.ObservedGeneration != 7 || s.Waiting != 13 || s.WaitingSince == nil || !s.WaitingSince.Time.Equal(since) {
		t.Errorf("got generation %d, %d waiting since %v", s.ObservedGeneration, s.Waiting, s.WaitingSince)
	}
	if len(s.Next) != 10 || s.Next[0].Name != "urgent" || s.Next[1].Name != "p00" || s.Next[9].Name != "p08" || s.Next[9].Position != 10 {
		t.Errorf("got next %+v", s.Next)
	}
	if got := s.Next[0]; got.Reason != "LimitReached" || got.Message != "H100: LimitReached; B200: ModelNotInQuota" || got.Namespace != "team" {
		t.Errorf("got %+v", got)
	}
	if got := s.Next[2]; got.Reason != "Behind" {
		t.Errorf("got %+v, want it behind the others of its kind", got)
	}
	if len(s.Models) != 1 || s.Models[0] != (v1alpha1.ModelUsage{Model: "H100", Used: 1, Charged: 1, FirstChoice: 1}) {
		t.Errorf("got models %+v", s.Models)
	}
	if s.SharePermille != 250 {
		t.Errorf("got a share of %d thousandths, want 250: one of four devices", s.SharePermille)
	}
	if got := s.Conditions[0]; got.Type != "Ready" || got.Status != metav1.ConditionTrue || got.ObservedGeneration != 7 {
		t.Errorf("got %+v", got)
	}
	if got := s.Conditions[1]; got.Type != "FirstChoiceRare" || got.Status != metav1.ConditionFalse || got.Reason != "TooFewPods" {
		t.Errorf("got %+v", got)
	}
}

// Who hardly ever gets the first choice is told which field would change it.
func TestFirstChoiceRare(t *testing.T) {
	for _, test := range []struct {
		name     string
		h100     []v1alpha1.ModelQuota
		got      int // of 10 Pods that get an H100
		status   metav1.ConditionStatus
		reason   string
		mentions string
	}{
		{"limit", []v1alpha1.ModelQuota{part("H100", 0, 1)}, 1, metav1.ConditionTrue, "LimitReached", "raise limit of H100 in spec.models"},
		{"guarantee", []v1alpha1.ModelQuota{part("H100", 0, 9)}, 1, metav1.ConditionTrue, "GuaranteeUsed", "raise guaranteed of H100 in spec.models (now 0), or spec.weight (now 1)"},
		{"not listed", nil, 0, metav1.ConditionTrue, "ModelNotInQuota", "spec.models does not list it"},
		{"often", []v1alpha1.ModelQuota{part("H100", 0, 9)}, 2, metav1.ConditionFalse, "FirstChoiceHad", "ask for first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.gpus("h", "H100", 10)
			w.gpus("a", "A100", 10)
			w.policy("ha", nil, tier("H100"), tier("A100"))
			q := w.quota("team", []string{"team"}, append(test.h100, part("A100", 0, 10))...)
			for i := range 10 {
				p := w.opened(w.pod("team", fmt.Sprintf("p%d", i), "ha"))
				pool := "a"
				if i < test.got {
					pool = "h"
				}
				w.allocate(p, fmt.Sprintf("%s/gpu-%d", pool, i))
			}
			w.sync()
			s := w.mirror.Status(q)
			c := s.Conditions[1]
			if c.Status != test.status || c.Reason != test.reason || !strings.Contains(c.Message, test.mentions) {
				t.Errorf("got %+v, want %s because %s: %q", c, test.status, test.reason, test.mentions)
			}
			for _, m := range s.Models {
				if m.Model == "H100" && (m.FirstChoice != 10 || m.Fallbacks != int32(10-test.got)) {
					t.Errorf("got %+v, want 10 Pods of which %d fell back", m, 10-test.got)
				}
			}
		})
	}
}

func TestStatusOfAQuotaThatTheEngineRefuses(t *testing.T) {
	w := newWorld(t)
	q := w.quota("team", []string{"team"}, part("H100", 2, 1))
	if err := w.mirror.Sync(w.now); err == nil {
		t.Fatal("a guarantee above the limit is taken")
	}
	if got := w.mirror.Status(q).Conditions[0]; got.Status != metav1.ConditionFalse || got.Reason != "Invalid" {
		t.Errorf("got %+v", got)
	}
}
