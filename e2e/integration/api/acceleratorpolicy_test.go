package api_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func policy(change func(*v1alpha1.AcceleratorPolicySpec)) *v1alpha1.AcceleratorPolicy {
	p := &v1alpha1.AcceleratorPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "h100-first"},
		Spec: v1alpha1.AcceleratorPolicySpec{Tiers: []v1alpha1.Tier{
			{Name: "h100", Models: []string{"H100"}},
			{Name: "a100", Models: []string{"A100"}},
		}},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func tiers(list ...v1alpha1.Tier) *v1alpha1.AcceleratorPolicy {
	return policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Ranking, s.Tiers = v1alpha1.RankingSpread, list })
}

func constraints(c v1alpha1.Constraints) *v1alpha1.AcceleratorPolicy {
	return policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints = c })
}

func retry(r v1alpha1.RetryPolicy) *v1alpha1.AcceleratorPolicy {
	return policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Retry = r })
}

func unhealthy(o v1alpha1.OnUnhealthy) *v1alpha1.AcceleratorPolicy {
	return policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.OnUnhealthy = o })
}

func lasting(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func named(name string) *v1alpha1.AcceleratorPolicy {
	p := policy(nil)
	p.Name = name
	return p
}

func manyTiers(n int) []v1alpha1.Tier {
	var list []v1alpha1.Tier
	for i := range n {
		name := "m" + string(rune('a'+i))
		list = append(list, v1alpha1.Tier{Name: name, Models: []string{name}})
	}
	return list
}

func numbered(prefix string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, prefix+string(rune('a'+i)))
	}
	return list
}

func TestAcceleratorPolicy(t *testing.T) {
	judge(t, []judgement{
		{name: "least", object: policy(nil)},
		{name: "everything", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Driver = v1alpha1.NVIDIADriverName
			s.Count = ptr.To[int32](2)
			s.Constraints = v1alpha1.Constraints{
				MinMemory:            ptr.To(resource.MustParse("40Gi")),
				MinComputeCapability: "8.0",
				MinDriverVersion:     "550.54.15",
				Architectures:        []string{"Hopper", "Ada Lovelace"},
				Isolation:            v1alpha1.IsolationExclusive,
				Selectors:            []string{`device.attributes["gpu.nvidia.com"].brand == "Nvidia"`},
				MatchAttributes:      []string{"resource.kubernetes.io/numaNode"},
			}
			s.Ranking = v1alpha1.RankingSpread
			s.MixModels = v1alpha1.MixModelsWithinTier
			s.PreferAttributes = []string{"resource.kubernetes.io/pcieRoot"}
			s.Preempts = v1alpha1.PreemptsBorrowed
			s.NamespaceSelector = &metav1.LabelSelector{
				MatchLabels:      map[string]string{"team": "a"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"prod"}}},
			}
			s.Retry = v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](9), InitialBackoff: lasting(time.Second), MaxBackoff: lasting(time.Second), Deadline: lasting(90 * time.Minute)}
			s.OnUnhealthy = v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEvict, GracePeriod: lasting(time.Minute)}
			s.ActiveRevision = ptr.To[int64](1)
		})},

		{name: "name of 63 characters", object: named(strings.Repeat("a", 63))},
		{name: "name of 64 characters", object: named(strings.Repeat("a", 64)), refused: []string{"metadata.name"}, server: []string{wholeObject}},
		{name: "name of 64 characters with a dot", object: named(strings.Repeat("a", 32) + "." + strings.Repeat("b", 31)), refused: []string{"metadata.name"}, server: []string{wholeObject}},

		{name: "unknown driver", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Driver = "gpu.example.com" }), refused: []string{"spec.driver"}},
		{name: "count 32", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](32) })},
		{name: "count 0", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](0) }), refused: []string{"spec.count"}},
		{name: "count 33", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Count = ptr.To[int32](33) }), refused: []string{"spec.count"}},
		{name: "unknown ranking", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Ranking = "Random" }), refused: []string{"spec.ranking"}},
		{name: "unknown mixModels", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.MixModels = "Always" }), refused: []string{"spec.mixModels"}},
		{name: "unknown preempts", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Preempts = "All" }), refused: []string{"spec.preempts"}},
		{name: "active revision 0", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.ActiveRevision = ptr.To[int64](0) }), refused: []string{"spec.activeRevision"}},
		{name: "two faults at once", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.Ranking, s.Preempts = "Random", "All" }), refused: []string{"spec.preempts", "spec.ranking"}},
	})
}

func TestTiers(t *testing.T) {
	tooMany := append(manyTiers(8), v1alpha1.Tier{Name: "ninth", Models: []string{"ninth"}})
	judge(t, []judgement{
		{name: "none", object: tiers(), refused: []string{"spec.tiers"}},
		{name: "empty list", object: tiers([]v1alpha1.Tier{}...), refused: []string{"spec.tiers"}},
		{name: "eight", object: tiers(manyTiers(8)...)},
		{name: "nine", object: tiers(tooMany...), refused: []string{"spec.tiers"}},
		{name: "without name", object: tiers(v1alpha1.Tier{Models: []string{"H100"}}), refused: []string{"spec.tiers[0].name"}},
		{name: "bad name", object: tiers(v1alpha1.Tier{Name: "H100"}), refused: []string{"spec.tiers[0].name"}},
		{name: "long name", object: tiers(v1alpha1.Tier{Name: strings.Repeat("a", 64)}), refused: []string{"spec.tiers[0].name"}},
		{name: "same name twice", object: tiers(
			v1alpha1.Tier{Name: "a", Models: []string{"H100"}}, v1alpha1.Tier{Name: "a", Models: []string{"A100"}},
		), refused: []string{"spec.tiers[1]"}},
		{name: "model twice", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100", "H100"}}), refused: []string{"spec.tiers[0].models[1]"}},
		{name: "blank model", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100", " "}}), refused: []string{"spec.tiers[0].models[1]"}},
		{name: "empty model", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{""}}), refused: []string{"spec.tiers[0].models[0]"}},
		{name: "model with a blank at its end", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100 "}}), refused: []string{"spec.tiers[0].models[0]"}},
		{name: "long model", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{strings.Repeat("m", 65)}}), refused: []string{"spec.tiers[0].models[0]"}},
		{name: "long model in other letters", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{strings.Repeat("µ", 64)}})},
		{name: "17 models", object: tiers(v1alpha1.Tier{Name: "a", Models: numbered("m", 17)}), refused: []string{"spec.tiers[0].models"}},
		{name: "blank selector", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{"true", "\t\n"}}), refused: []string{"spec.tiers[0].selectors[1]"}},
		{name: "selector on several lines", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{"true &&\n  true"}})},
		{name: "longest selector", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{strings.Repeat("a", 10240)}})},
		{name: "long selector", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{strings.Repeat("a", 10241)}}), refused: []string{"spec.tiers[0].selectors[0]"}},
		{name: "nine selectors", object: tiers(v1alpha1.Tier{Name: "a", Selectors: numbered("s", 9)}), refused: []string{"spec.tiers[0].selectors"}},
		{name: "count 0", object: tiers(v1alpha1.Tier{Name: "a", Count: ptr.To[int32](0)}), refused: []string{"spec.tiers[0].count"}},
		{name: "count 33", object: tiers(v1alpha1.Tier{Name: "a", Count: ptr.To[int32](33)}), refused: []string{"spec.tiers[0].count"}},
		{name: "after", object: tiers(v1alpha1.Tier{Name: "a", After: lasting(1500 * time.Millisecond)})},
		{name: "after in microseconds", object: tiers(v1alpha1.Tier{Name: "a", After: lasting(3 * time.Microsecond)})},
		{name: "after nothing", object: tiers(v1alpha1.Tier{Name: "a", After: lasting(0)})},
		{name: "negative after", object: tiers(v1alpha1.Tier{Name: "a", After: lasting(-time.Second)}), refused: []string{"spec.tiers[0].after"}},
	})
}

func TestUnreachableTiers(t *testing.T) {
	refused := []string{"spec.tiers"}
	two, four := ptr.To[int32](2), ptr.To[int32](4)
	judge(t, []judgement{
		{name: "the same again", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}}), refused: refused},
		{name: "any before all others", object: tiers(v1alpha1.Tier{Name: "any"}, v1alpha1.Tier{Name: "h100", Models: []string{"H100"}}), refused: refused},
		{name: "any at the end", object: tiers(v1alpha1.Tier{Name: "h100", Models: []string{"H100"}}, v1alpha1.Tier{Name: "any"})},
		{name: "models within earlier ones", object: tiers(
			v1alpha1.Tier{Name: "x", Models: []string{"L4"}}, v1alpha1.Tier{Name: "a", Models: []string{"H100", "A100"}}, v1alpha1.Tier{Name: "b", Models: []string{"A100"}},
		), refused: refused},
		{name: "models around earlier ones", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"A100"}}, v1alpha1.Tier{Name: "b", Models: []string{"A100", "H100"}})},
		{name: "more devices of the same", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}, Count: two}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}, Count: four}), refused: refused},
		{name: "fewer devices of the same", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}, Count: four}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}, Count: two})},
		{name: "fewer than the policy's count", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Count = four
			s.Tiers = []v1alpha1.Tier{{Name: "a", Models: []string{"H100"}}, {Name: "b", Models: []string{"H100"}, Count: two}}
		})},
		{name: "more than the policy's count", object: policy(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Count = two
			s.Tiers = []v1alpha1.Tier{{Name: "a", Models: []string{"H100"}}, {Name: "b", Models: []string{"H100"}, Count: four}}
		}), refused: refused},
		{name: "later", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}, After: lasting(time.Minute)}), refused: refused},
		{name: "sooner", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}, After: lasting(time.Minute)}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}})},
		{name: "as soon", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}, After: lasting(time.Minute)}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}, After: lasting(time.Minute)}), refused: refused},
		{name: "stricter by a selector", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}, Selectors: []string{"true"}}), refused: refused},
		{name: "looser by a selector", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"H100"}, Selectors: []string{"true"}}, v1alpha1.Tier{Name: "b", Models: []string{"H100"}})},
		{name: "other selectors", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{"true"}}, v1alpha1.Tier{Name: "b", Selectors: []string{"1 == 1"}})},
		{name: "same selectors in another order", object: tiers(v1alpha1.Tier{Name: "a", Selectors: []string{"x", "y"}}, v1alpha1.Tier{Name: "b", Selectors: []string{"y", "x"}}), refused: refused},
	})
}

func TestModelsOfNVIDIADriver(t *testing.T) {
	nvidia := func(model string) *v1alpha1.AcceleratorPolicy {
		return policy(func(s *v1alpha1.AcceleratorPolicySpec) {
			s.Driver = v1alpha1.NVIDIADriverName
			s.Tiers[1].Models = []string{model}
		})
	}
	judge(t, []judgement{
		{name: "one word", object: nvidia("L40S")},
		{name: "two words", object: nvidia("RTX 6000"), refused: []string{"spec.tiers"}},
		{name: "hyphen", object: nvidia("A100-SXM4"), refused: []string{"spec.tiers"}},
		{name: "two words with our driver", object: tiers(v1alpha1.Tier{Name: "a", Models: []string{"RTX 6000"}})},
	})
}

func TestConstraints(t *testing.T) {
	judge(t, []judgement{
		{name: "memory", object: constraints(v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("1"))})},
		{name: "memory in other units", object: constraints(v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("1.5Gi"))})},
		{name: "no memory", object: constraints(v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("0"))}), refused: []string{"spec.constraints.minMemory"}},
		{name: "negative memory", object: constraints(v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("-1Gi"))}), refused: []string{"spec.constraints.minMemory"}},
		{name: "whole compute capability", object: constraints(v1alpha1.Constraints{MinComputeCapability: "9"})},
		{name: "compute capability with letters", object: constraints(v1alpha1.Constraints{MinComputeCapability: "sm_90"}), refused: []string{"spec.constraints.minComputeCapability"}},
		{name: "open compute capability", object: constraints(v1alpha1.Constraints{MinComputeCapability: "8."}), refused: []string{"spec.constraints.minComputeCapability"}},
		{name: "driver version of four parts", object: constraints(v1alpha1.Constraints{MinDriverVersion: "1.2.3.4"}), refused: []string{"spec.constraints.minDriverVersion"}},
		{name: "driver version", object: constraints(v1alpha1.Constraints{MinDriverVersion: "550"})},
		{name: "blank architecture", object: constraints(v1alpha1.Constraints{Architectures: []string{"  "}}), refused: []string{"spec.constraints.architectures[0]"}},
		{name: "architecture twice", object: constraints(v1alpha1.Constraints{Architectures: []string{"Hopper", "Ampere", "Hopper"}}), refused: []string{"spec.constraints.architectures[2]"}},
		{name: "17 architectures", object: constraints(v1alpha1.Constraints{Architectures: numbered("a", 17)}), refused: []string{"spec.constraints.architectures"}},
		{name: "unknown isolation", object: constraints(v1alpha1.Constraints{Isolation: "Some"}), refused: []string{"spec.constraints.isolation"}},
		{name: "shared", object: constraints(v1alpha1.Constraints{Isolation: v1alpha1.IsolationShared})},
		{name: "empty selector", object: constraints(v1alpha1.Constraints{Selectors: []string{""}}), refused: []string{"spec.constraints.selectors[0]"}},
		{name: "nine selectors", object: constraints(v1alpha1.Constraints{Selectors: numbered("s", 9)}), refused: []string{"spec.constraints.selectors"}},
	})
}

func TestAttributes(t *testing.T) {
	match := func(list ...string) *v1alpha1.AcceleratorPolicy {
		return constraints(v1alpha1.Constraints{MatchAttributes: list})
	}
	prefer := func(list ...string) *v1alpha1.AcceleratorPolicy {
		return policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.PreferAttributes = list })
	}
	first, preferred := []string{"spec.constraints.matchAttributes[0]"}, []string{"spec.preferAttributes[0]"}
	both := match("a.example/x", "a.example/y")
	both.Spec.PreferAttributes = []string{"a.example/z", "a.example/y"}
	apart := match("a.example/x")
	apart.Spec.PreferAttributes = []string{"a.example/X"}
	longDomain := strings.Repeat("a", 31) + "." + strings.Repeat("b", 31)
	judge(t, []judgement{
		{name: "qualified", object: match("resource.kubernetes.io/pcieRoot")},
		{name: "bare", object: match("numaNode"), refused: first},
		{name: "empty", object: match(""), refused: first},
		{name: "no domain", object: match("/numaNode"), refused: first},
		{name: "no name", object: match("gpu.gpuladder.dev/"), refused: first},
		{name: "two slashes", object: match("a.example/b/c"), refused: first},
		{name: "name with a hyphen", object: match("a.example/numa-node"), refused: first},
		{name: "name that begins with a digit", object: match("a.example/1st"), refused: first},
		{name: "name with underscores", object: match("a.example/_numa_1")},
		{name: "domain in capitals", object: match("A.example/x"), refused: first},
		{name: "domain with an empty part", object: match("a..example/x"), refused: first},
		{name: "longest name", object: match(longDomain + "/" + strings.Repeat("n", 32))},
		{name: "long name", object: match("a.example/" + strings.Repeat("n", 33)), refused: first},
		{name: "long domain", object: match("a" + longDomain + "/x"), refused: first},
		{name: "twice", object: match("a.example/x", "a.example/x"), refused: []string{"spec.constraints.matchAttributes[1]"}},
		{name: "nine", object: match(numbered("a.example/", 9)...), refused: []string{"spec.constraints.matchAttributes"}},
		{name: "preferred", object: prefer("resource.kubernetes.io/pcieRoot")},
		{name: "preferred bare", object: prefer("pcieRoot"), refused: preferred},
		{name: "preferred long domain", object: prefer("a" + longDomain + "/x"), refused: preferred},
		{name: "nine preferred", object: prefer(numbered("a.example/", 9)...), refused: []string{"spec.preferAttributes"}},
		{name: "a must and a wish at once", object: both, refused: []string{"spec.preferAttributes"}},
		{name: "a must and another wish", object: apart},
	})
}

func TestNamespaceSelector(t *testing.T) {
	with := func(s metav1.LabelSelector) *v1alpha1.AcceleratorPolicy {
		return policy(func(p *v1alpha1.AcceleratorPolicySpec) { p.NamespaceSelector = &s })
	}
	expression := func(op metav1.LabelSelectorOperator, values ...string) *v1alpha1.AcceleratorPolicy {
		return with(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: op, Values: values}}})
	}
	list := []string{"spec.namespaceSelector.matchExpressions"}
	item := func(name string) []string { return []string{list[0] + "[0]." + name} }
	judge(t, []judgement{
		{name: "empty", object: with(metav1.LabelSelector{})},
		{name: "Exists", object: expression(metav1.LabelSelectorOpExists)},
		{name: "NotIn", object: expression(metav1.LabelSelectorOpNotIn, "test")},
		{name: "In nothing", object: expression(metav1.LabelSelectorOpIn), refused: item("values"), server: list},
		{name: "DoesNotExist with values", object: expression(metav1.LabelSelectorOpDoesNotExist, "x"), refused: item("values"), server: list},
		{name: "unknown operator", object: expression("Equals", "x"), refused: item("operator"), server: list},
	})
}

func TestRetry(t *testing.T) {
	judge(t, []judgement{
		{name: "no attempts", object: retry(v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](0)}), refused: []string{"spec.retry.maxAttempts"}},
		{name: "101 attempts", object: retry(v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](101)}), refused: []string{"spec.retry.maxAttempts"}},
		{name: "100 attempts", object: retry(v1alpha1.RetryPolicy{MaxAttempts: ptr.To[int32](100)})},
		{name: "negative initialBackoff", object: retry(v1alpha1.RetryPolicy{InitialBackoff: lasting(-1)}), refused: []string{"spec.retry.initialBackoff"}},
		{name: "negative maxBackoff", object: retry(v1alpha1.RetryPolicy{MaxBackoff: lasting(-time.Hour)}), refused: []string{"spec.retry.maxBackoff"}},
		{name: "negative deadline", object: retry(v1alpha1.RetryPolicy{Deadline: lasting(-time.Minute)}), refused: []string{"spec.retry.deadline"}},
		{name: "maxBackoff below initialBackoff", object: retry(v1alpha1.RetryPolicy{InitialBackoff: lasting(2 * time.Second), MaxBackoff: lasting(time.Second)}), refused: []string{"spec.retry.maxBackoff"}},
		{name: "default maxBackoff below initialBackoff", object: retry(v1alpha1.RetryPolicy{InitialBackoff: lasting(time.Minute)}), refused: []string{"spec.retry.maxBackoff"}},
		{name: "equal backoffs in other spellings", object: retry(v1alpha1.RetryPolicy{InitialBackoff: lasting(time.Minute), MaxBackoff: lasting(60 * time.Second)})},
	})
}

func TestOnUnhealthy(t *testing.T) {
	grace := []string{"spec.onUnhealthy.gracePeriod"}
	judge(t, []judgement{
		{name: "grace with the default action", object: unhealthy(v1alpha1.OnUnhealthy{GracePeriod: lasting(time.Minute)})},
		{name: "keep", object: unhealthy(v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep})},
		{name: "unknown action", object: unhealthy(v1alpha1.OnUnhealthy{Action: "Pray"}), refused: []string{"spec.onUnhealthy.action"}},
		{name: "grace with Keep", object: unhealthy(v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyKeep, GracePeriod: lasting(time.Minute)}), refused: grace},
		{name: "grace with Recreate", object: unhealthy(v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyRecreate, GracePeriod: lasting(time.Minute)})},
		{name: "grace with End", object: unhealthy(v1alpha1.OnUnhealthy{Action: v1alpha1.UnhealthyEnd, GracePeriod: lasting(time.Second)})},
		{name: "negative grace", object: unhealthy(v1alpha1.OnUnhealthy{GracePeriod: lasting(-time.Second)}), refused: grace},
		{name: "half a second of grace", object: unhealthy(v1alpha1.OnUnhealthy{GracePeriod: lasting(1500 * time.Millisecond)}), refused: grace},
	})
}

func TestSharing(t *testing.T) {
	sharing := func(s v1alpha1.Sharing, change func(*v1alpha1.AcceleratorPolicySpec)) *v1alpha1.AcceleratorPolicy {
		p := policy(change)
		p.Spec.Sharing = &s
		return p
	}
	exclusively := func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.Isolation = v1alpha1.IsolationExclusive }
	shared := func(s *v1alpha1.AcceleratorPolicySpec) { s.Constraints.Isolation = v1alpha1.IsolationShared }
	nvidia := func(s *v1alpha1.AcceleratorPolicySpec) { s.Driver = v1alpha1.NVIDIADriverName }
	slices := v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: v1alpha1.IntervalLong}}
	mps := func(percentage int32, limit string) v1alpha1.Sharing {
		return v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS, MPS: &v1alpha1.MPS{
			ActiveThreadPercentage: ptr.To(percentage), PinnedDeviceMemoryLimit: ptr.To(resource.MustParse(limit)),
		}}
	}
	strategy := []string{"spec.sharing.strategy"}
	judge(t, []judgement{
		{name: "nothing said", object: sharing(v1alpha1.Sharing{}, exclusively)},
		{name: "default interval", object: sharing(v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{}}, nil)},
		{name: "time slicing", object: sharing(slices, shared)},
		{name: "MPS", object: sharing(mps(100, "1Mi"), nil)},
		{name: "exclusive for NVIDIA's driver", object: sharing(v1alpha1.Sharing{Strategy: v1alpha1.SharingExclusive}, nvidia)},
		{name: "unknown strategy", object: sharing(v1alpha1.Sharing{Strategy: "Both"}, nil), refused: strategy},
		{name: "unknown interval", object: sharing(v1alpha1.Sharing{Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: "Tiny"}}, nil), refused: []string{"spec.sharing.timeSlicing.interval"}},
		{name: "time slicing beside isolation", object: sharing(slices, exclusively), refused: strategy},
		{name: "MPS for NVIDIA's driver", object: sharing(mps(1, "1Gi"), nvidia), refused: strategy},
		{name: "interval without time slicing", object: sharing(v1alpha1.Sharing{Strategy: v1alpha1.SharingMPS, TimeSlicing: slices.TimeSlicing}, nil), refused: []string{"spec.sharing.timeSlicing"}},
		{name: "limits without MPS", object: sharing(v1alpha1.Sharing{MPS: &v1alpha1.MPS{}}, nil), refused: []string{"spec.sharing.mps"}},
		{name: "no threads", object: sharing(mps(0, "1Gi"), nil), refused: []string{"spec.sharing.mps.activeThreadPercentage"}},
		{name: "too many threads", object: sharing(mps(101, "1Gi"), nil), refused: []string{"spec.sharing.mps.activeThreadPercentage"}},
		{name: "less than a MiB", object: sharing(mps(1, "1048575"), nil), refused: []string{"spec.sharing.mps.pinnedDeviceMemoryLimit"}},
	})
}

// TestLabelSyntax pins the one place where the API server is more lenient than
// Validate: CEL's cost limits don't let a CRD look into the unbounded strings
// of a label selector. The policy controller validates again and says so.
func TestLabelSyntax(t *testing.T) {
	for name, selector := range map[string]metav1.LabelSelector{
		"key":   {MatchLabels: map[string]string{"a b": "c"}},
		"value": {MatchLabels: map[string]string{"a": "b c"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy(func(s *v1alpha1.AcceleratorPolicySpec) { s.NamespaceSelector = &selector })
			if got, want := paths(p.Validate()), []string{"spec.namespaceSelector.matchLabels"}; !slices.Equal(got, want) {
				t.Errorf("Validate refuses %q, want %q", got, want)
			}
			if err := apiserver.Get(t).Client.Create(t.Context(), p, client.DryRunAll); err != nil {
				t.Errorf("the API server refuses it by now, so the tables can hold it: %v", err)
			}
		})
	}
}
