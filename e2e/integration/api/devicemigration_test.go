package api_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestDeviceMigration(t *testing.T) {
	migration := func(change func(*v1alpha1.DeviceMigrationSpec)) *v1alpha1.DeviceMigration {
		m := &v1alpha1.DeviceMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "to-dra"},
			Spec:       v1alpha1.DeviceMigrationSpec{Policy: "h100-first", Waves: []int32{5, 25, 100}},
		}
		change(&m.Spec)
		return m
	}
	waves := func(list ...int32) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Waves = list })
	}
	legacy := func(name string) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.LegacyResource = name })
	}
	gates := func(g v1alpha1.MigrationGates) *v1alpha1.DeviceMigration {
		return migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Gates = g })
	}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn}}}
	judge(t, []judgement{
		{name: "usual", object: migration(func(*v1alpha1.DeviceMigrationSpec) {})},
		{name: "everything", object: migration(func(s *v1alpha1.DeviceMigrationSpec) {
			s.Target, s.OnGateFailure, s.BoundPods = v1alpha1.TargetDRA, v1alpha1.GatePause, v1alpha1.BoundPodsEvict
			s.LegacyResource = "gpu.example.com/gpu.shared"
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
			s.Gates = v1alpha1.MigrationGates{MinSample: ptr.To[int32](1), Soak: lasting(time.Hour), MaxSuccessRateDrop: ptr.To[int32](0), MaxFallbackRate: ptr.To[int32](100), MaxLatencyRise: ptr.To[int32](10000), MaxUtilizationDrop: ptr.To[int32](5)}
		})},
		{name: "no waves", object: waves(), refused: []string{"spec.waves"}},
		{name: "one wave", object: waves(100)},
		{name: "wave 0", object: waves(0, 100), refused: []string{"spec.waves[0]"}},
		{name: "wave 101", object: waves(5, 101), refused: []string{"spec.waves[1]"}},
		{name: "waves that fall", object: waves(50, 25), refused: []string{"spec.waves"}},
		{name: "waves that stay", object: waves(5, 25, 25), refused: []string{"spec.waves"}},
		{name: "17 waves", object: waves(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17), refused: []string{"spec.waves"}},
		{name: "no policy", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Policy = "" }), refused: []string{"spec.policy"}},
		{name: "bad policy", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Policy = "a_b" }), refused: []string{"spec.policy"}},
		{name: "unknown target", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Target = "Cloud" }), refused: []string{"spec.target"}},
		{name: "unknown onGateFailure", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.OnGateFailure = "Hope" }), refused: []string{"spec.onGateFailure"}},
		{name: "unknown boundPods", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.BoundPods = "Kill" }), refused: []string{"spec.boundPods"}},
		{name: "legacy resource without domain", object: legacy("gpu"), refused: []string{"spec.legacyResource"}},
		{name: "legacy resource of Kubernetes", object: legacy("node.kubernetes.io/gpu"), refused: []string{"spec.legacyResource"}},
		{name: "legacy resource of a like-named domain", object: legacy("notkubernetes.io/gpu")},
		{name: "bad selector", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.Selector = bad }), refused: []string{"spec.selector.matchExpressions[0].values"}, server: []string{"spec.selector.matchExpressions"}},
		{name: "bad namespaceSelector", object: migration(func(s *v1alpha1.DeviceMigrationSpec) { s.NamespaceSelector = bad }), refused: []string{"spec.namespaceSelector.matchExpressions[0].values"}, server: []string{"spec.namespaceSelector.matchExpressions"}},
		{name: "no sample", object: gates(v1alpha1.MigrationGates{MinSample: ptr.To[int32](0)}), refused: []string{"spec.gates.minSample"}},
		{name: "negative soak", object: gates(v1alpha1.MigrationGates{Soak: lasting(-time.Hour)}), refused: []string{"spec.gates.soak"}},
		{name: "drop of 101", object: gates(v1alpha1.MigrationGates{MaxSuccessRateDrop: ptr.To[int32](101)}), refused: []string{"spec.gates.maxSuccessRateDrop"}},
		{name: "fallback of -1", object: gates(v1alpha1.MigrationGates{MaxFallbackRate: ptr.To[int32](-1)}), refused: []string{"spec.gates.maxFallbackRate"}},
		{name: "rise beyond bounds", object: gates(v1alpha1.MigrationGates{MaxLatencyRise: ptr.To[int32](10001)}), refused: []string{"spec.gates.maxLatencyRise"}},
		{name: "utilisation drop of 101", object: gates(v1alpha1.MigrationGates{MaxUtilizationDrop: ptr.To[int32](101)}), refused: []string{"spec.gates.maxUtilizationDrop"}},
	})
}
