//go:build e2e

package suites

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func TestSharedClaim(t *testing.T) {
	suite{
		name: "shared-claim", core: true, providers: everywhere,
		describe: "Two containers of a Pod share its claim: one device, seen by both.",
	}.then("both containers use the one device", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		pod := s.pod("twins", "h100-first", func(pod *corev1.Pod) {
			second := *pod.Spec.Containers[0].DeepCopy()
			second.Name = "second"
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		})
		pod = s.start(ctx, t, pod)
		s.got(ctx, t, pod, "H100", "h100", 1)
		for _, c := range pod.Spec.Containers {
			if len(c.Resources.Claims) != 1 || c.Resources.Claims[0].Name != v1alpha1.ClaimRefName {
				t.Errorf("container %s uses the claims %v", c.Name, c.Resources.Claims)
			}
		}
		if claims := s.claims(pod); len(claims) != 1 {
			t.Errorf("the Pod has %d claims", len(claims))
		}
	}).run(t)
}

func TestSeveralDevices(t *testing.T) {
	suite{
		name: "several-devices", core: true, providers: everywhere,
		describe: "A Pod that needs two devices gets two of one model on one node, or goes one tier down.",
	}.then("two devices of one tier", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "pairs.yaml")
		if n := len(s.devices("H100")); n != 2 {
			t.Fatalf("this suite wants 2 H100, there are %d", n)
		}
		pod := s.start(ctx, t, s.pod("pair", "e2e-pair"))
		s.got(ctx, t, pod, "H100", "h100", 2)
		s.delete(ctx, t, pod.Name)
	}).then("one free device of a tier is not enough", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		s.got(ctx, t, s.start(ctx, t, s.pod("one", "h100-first")), "H100", "h100", 1)
		pod := s.start(ctx, t, s.pod("lower", "e2e-pair"))
		s.got(ctx, t, pod, "A100", "a100", 2)
		record := s.record(ctx, t, pod, v1alpha1.OutcomeAllocated)
		wantRejected(t, record, "h100", v1alpha1.ReasonInUse, 1)
		wantRejected(t, record, "h100", v1alpha1.ReasonNotEnoughDevices, 1)
	}).run(t)
}

func TestNUMAPair(t *testing.T) {
	suite{
		name: "numa-pair", core: true, providers: everywhere,
		describe: "Two devices of one NUMA node, although the first two free ones in the order of names are of two.",
	}.then("the pair is of one NUMA node", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "pairs.yaml")
		nodes := map[int64][]device{}
		for _, d := range s.devices("A100") {
			nodes[d.numa] = append(nodes[d.numa], d)
		}
		if len(nodes) < 2 {
			t.Fatalf("the A100s are on one NUMA node: %v", nodes)
		}
		first := s.got(ctx, t, s.start(ctx, t, s.pod("single", "e2e-a100")), "A100", "a100", 1)[0]
		pod := s.start(ctx, t, s.pod("pair", "e2e-numa-pair"))
		pair := s.got(ctx, t, pod, "A100", "a100", 2)
		if pair[0].numa != pair[1].numa {
			t.Errorf("%s is on NUMA node %d, %s on %d", pair[0], pair[0].numa, pair[1], pair[1].numa)
		}
		if len(nodes[first.numa]) == 2 && pair[0].numa == first.numa {
			t.Errorf("the pair %v is on NUMA node %d, which has one device left", pair, first.numa)
		}
	}).then("a NUMA node with one free device serves no pair", func(ctx context.Context, t *testing.T, s *scene) {
		free := map[int64]int{}
		for _, d := range s.devices("A100") {
			if d.claim == "" {
				free[d.numa]++
			}
		}
		pairs := 0
		for _, n := range free {
			pairs += n / 2
		}
		if pairs > 0 {
			t.Skipf("this fleet has %d pairs left", pairs)
		}
		pod := s.pod("late", "e2e-numa-pair")
		s.create(ctx, t, pod)
		s.waits(ctx, t, pod.Name, reasonPending)
	}).run(t)
}
