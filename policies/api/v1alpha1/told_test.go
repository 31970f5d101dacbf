package v1alpha1

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

func TestAcceleratorCondition(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady}, {Type: ConditionAccelerator, Reason: "Allocated"}}}}
	c := AcceleratorCondition(pod)
	if c == nil || c.Reason != "Allocated" {
		t.Fatalf("got %v", c)
	}
	if c != &pod.Status.Conditions[1] {
		t.Error("it does not point into the Pod")
	}
	if c := AcceleratorCondition(&corev1.Pod{}); c != nil {
		t.Errorf("got %v of a Pod without one", c)
	}
}

func TestSummary(t *testing.T) {
	two := []DecidedDevice{{Pool: "n", Device: "gpu-0"}, {Pool: "n", Device: "gpu-1"}}
	for want, tc := range map[string]struct {
		spec   AllocationDecisionSpec
		models string
	}{
		"H100 (tier h100, revision 3): n/n/gpu-0, n/n/gpu-1": {AllocationDecisionSpec{Tier: "h100", PolicyRevision: 3, Node: "n", Devices: two}, "H100"},
		"H100+A100 (tier any): n/n/gpu-0, n/n/gpu-1":         {AllocationDecisionSpec{Tier: "any", Node: "n", Devices: two}, "H100+A100"},
		"device: n/n/gpu-0": {AllocationDecisionSpec{Node: "n", Devices: two[:1]}, ""},
	} {
		if got := tc.spec.Summary(tc.models); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestClipMessage(t *testing.T) {
	if got := ClipMessage("short"); got != "short" {
		t.Errorf("got %q", got)
	}
	if got := ClipMessage(strings.Repeat("ä", 600)); len(got) > 1024 || !strings.HasSuffix(got, " ...") {
		t.Errorf("got %d bytes, ending in %q", len(got), got[len(got)-6:])
	}
	for cut := 20; cut < 24; cut++ { // in the middle of a character, too
		got := ClipMessageTo(strings.Repeat("ä", 600), cut)
		if len(got) > cut || !strings.HasSuffix(got, " ...") || !utf8.ValidString(got) {
			t.Errorf("got %q of %d bytes", got, cut)
		}
	}
}
