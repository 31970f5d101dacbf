package policy

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestMessageIsOneLine(t *testing.T) {
	for _, test := range []struct{ name, message, want string }{
		{"as it is", "one", "one"},
		{"several errors", errors.Join(errors.New("one"), errors.New("two")).Error(), "one; two"},
		{"long", strings.Repeat("x", 2000), strings.Repeat("x", maxMessage-3) + "..."},
		{"cut inside a letter", strings.Repeat("x", maxMessage-4) + "ü" + strings.Repeat("x", 99), strings.Repeat("x", maxMessage-4) + "..."},
	} {
		got := oneLine(test.message)
		if got != test.want || !utf8.ValidString(got) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestUsableRevisionsAreBounded(t *testing.T) {
	policy := testPolicy()
	h := &history{}
	for n := int64(1); n <= maxUsableRevisions+10; n++ {
		r := v1alpha1.PolicyRevision{Spec: v1alpha1.PolicyRevisionSpec{Policy: "p", Revision: n}}
		r.Name = v1alpha1.RevisionName("p", n)
		h.own, h.highest = append(h.own, r), n
	}
	choose(policy, h, nil, start)
	usable := policy.Status.UsableRevisions
	if len(usable) != maxUsableRevisions || usable[0] != 11 || usable[len(usable)-1] != h.highest {
		t.Errorf("got %d usable revisions from %d to %d, want the newest %d", len(usable), usable[0], usable[len(usable)-1], maxUsableRevisions)
	}
}

// TestReadyKeepsItsTime: the condition tells since when, not when last looked at.
func TestReadyKeepsItsTime(t *testing.T) {
	w := newWorld(t, testPolicy(), namespace("a", nil))
	w.reconcile()
	w.clock.SetTime(start.Add(time.Minute))
	w.edit(addTier("a100"))
	w.reconcile()
	w.requireStatus(2, metav1.ConditionTrue, reasonActive)
	if c := w.policy().Status.Conditions[0]; !c.LastTransitionTime.Time.Equal(start) {
		t.Errorf("ready since %s, want %s", c.LastTransitionTime, start)
	}
	w.edit(activate(9))
	w.reconcile()
	if c := w.policy().Status.Conditions[0]; !c.LastTransitionTime.Time.Equal(start.Add(time.Minute)) {
		t.Errorf("not ready since %s, want a minute after %s", c.LastTransitionTime, start)
	}
}
