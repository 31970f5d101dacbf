//go:build e2e

package suites

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

func TestTenants(t *testing.T) {
	var (
		a, b        *scene
		asks, loses *corev1.Pod
		lost        device
		deadline    time.Time
		asked       int // where in the history B asked
		queue       []place
	)
	suite{
		name: "tenants", core: true, providers: everywhere,
		describe: "Two tenants. A borrows the H100 that B is guaranteed and leaves idle. B asks for it, A is told and has time, then the device changes hands. " +
			"A's next Pod falls back and is charged what it got, and those above A's limit wait in line.",
	}.then("Pods pass their tenant's gate", func(ctx context.Context, t *testing.T, s *scene) {
		if n := len(s.devices("H100")); n != 2 {
			t.Fatalf("this suite wants 2 H100, there are %d", n)
		}
		a, b = s.tenants(ctx, t)
		for i := range 2 {
			a.enter(ctx, t, a.pod(fmt.Sprintf("train-%d", i), tenantPolicy))
		}
		for i := range 2 {
			pod := a.running(ctx, t, fmt.Sprintf("train-%d", i))
			a.got(ctx, t, pod, "H100", "h100", 1)
			a.passed(ctx, t, pod)
		}
	}).then("A borrows what B leaves idle", func(ctx context.Context, t *testing.T, s *scene) {
		s.uses(ctx, t, tenantA, "H100", 2, 2, 1)
		s.uses(ctx, t, tenantB, "H100", 0, 0, 0)
	}).then("B asks for what it is guaranteed, and A is told", func(ctx context.Context, t *testing.T, s *scene) {
		asked = len(s.log.History())
		asks = b.enter(ctx, t, b.pod("asks", onlyH100))
		s.line(ctx, t, tenantB, place{asks, fair.ReasonAwaitingReclaim})
		loses, deadline = a.noticed(ctx, t, asks)
		held := a.held(loses)
		if len(held) != 1 || held[0].model != "H100" {
			t.Fatalf("Pod %s has notice and holds %v", loses.Name, held)
		}
		lost = held[0]
	}).then("A's next Pod falls back, and is charged what it got", func(ctx context.Context, t *testing.T, s *scene) {
		pod := a.enter(ctx, t, a.pod("next", tenantPolicy))
		pod = a.running(ctx, t, pod.Name)
		a.got(ctx, t, pod, "A100", "a100", 1)
		s.counts(ctx, t, tenantA, "1 A100 used and charged, and a Pod that wanted an H100", func(st *v1alpha1.TenantQuotaStatus) bool {
			first, got := usage(st, "H100"), usage(st, "A100")
			return got.Used == 1 && got.Charged == 1 && got.Borrowed == 1 && first.Charged == first.Used && first.Fallbacks == 1
		})
	}).then("who is above the limit waits in line", func(ctx context.Context, t *testing.T, s *scene) {
		for i, reason := range []fair.Reason{fair.ReasonLimitReached, fair.ReasonBehind} {
			queue = append(queue, place{a.enter(ctx, t, a.pod(fmt.Sprintf("waits-%d", i), onlyA100)), reason})
		}
		s.line(ctx, t, tenantA, queue...)
		free := 0
		for _, d := range s.devices("A100") {
			if d.claim == "" {
				free++
			}
		}
		if free < len(queue) {
			t.Errorf("%d Pods wait for %d free A100: it is not the limit that they wait for", len(queue), free)
		}
	}).then("and is told why by ladder quota explain", func(ctx context.Context, t *testing.T, s *scene) {
		first, second := s.explained(ctx, t, queue[0].pod), s.explained(ctx, t, queue[1].pod)
		for i, x := range []explanation{first, second} {
			if x.Reason != queue[i].reason || x.Ahead != i {
				t.Errorf("Pod %s is explained by %+v, want %s with %d ahead", queue[i].pod.Name, x, queue[i].reason, i)
			}
		}
		if len(first.Ways) != 1 || first.Ways[0].Model != "A100" || first.Ways[0].Reason != fair.ReasonLimitReached {
			t.Errorf("the ways to serve Pod %s are %+v", queue[0].pod.Name, first.Ways)
		}
	}).then("when the time is up B has the device", func(ctx context.Context, t *testing.T, s *scene) {
		a.evicted(ctx, t, loses, deadline)
		pod := b.running(ctx, t, asks.Name)
		if got := b.got(ctx, t, pod, "H100", "h100", 1)[0]; got.String() != lost.String() {
			t.Errorf("B has %s, A gave %s", got, lost)
		}
		b.passed(ctx, t, pod)
		s.uses(ctx, t, tenantA, "H100", 1, 1, 0)
		s.uses(ctx, t, tenantB, "H100", 1, 1, 0)
	}).then("no guarantee was touched, and no limit passed", func(_ context.Context, t *testing.T, s *scene) {
		if least, _ := a.span("H100", asked); least != 1 {
			t.Errorf("A had %d H100 at the least since B asked, it is guaranteed 1", least)
		}
		a.upTo(t, "H100", 2)
		a.upTo(t, "A100", 1)
		b.upTo(t, "H100", 1)
		for _, p := range queue {
			if now := a.current(p.pod.Name); now == nil || !gated(now) {
				t.Errorf("Pod %s has passed its gate: %s", p.pod.Name, describe(now))
			}
		}
	}).run(t)
}

func TestTenantLimit(t *testing.T) {
	var a *scene
	suite{
		name: "tenant-limit", core: false, providers: everywhere,
		describe: "A Pod is charged the dearest model that it may still get, and what it got once it is known. " +
			"A gate that is opened by hand is no way past the limit, and when a Pod is gone its devices are the tenant's again.",
	}.then("whoever has no quota has no gate", func(ctx context.Context, t *testing.T, s *scene) {
		a, _ = s.tenants(ctx, t)
		s.fill(ctx, t, "H100", onlyH100)
		for _, e := range s.log.History() {
			if e.Pod != nil && e.Pod.Namespace == s.ns && gated(e.Pod) {
				t.Fatalf("Pod %s was at the gate", e.Pod.Name)
			}
		}
	}).then("a Pod that is undecided is charged an H100", func(ctx context.Context, t *testing.T, s *scene) {
		hold := a.holdClaims(ctx, t)
		late := a.enter(ctx, t, a.pod("late", tenantPolicy))
		s.uses(ctx, t, tenantA, "H100", 0, 1, 0)
		s.uses(ctx, t, tenantA, "A100", 0, 0, 0)
		if given := a.allocations(late.Name); len(given) > 0 {
			t.Fatalf("its claim was allocated in spite of the hold: %v", given)
		}
		hold.release(ctx, t)
	}).then("and then the A100 that it got", func(ctx context.Context, t *testing.T, s *scene) {
		pod := a.running(ctx, t, "late")
		a.got(ctx, t, pod, "A100", "a100", 1)
		a.passed(ctx, t, pod)
		s.uses(ctx, t, tenantA, "A100", 1, 1, 1)
		s.uses(ctx, t, tenantA, "H100", 0, 0, 0)
	}).then("a gate that is opened by hand is no way past the limit", func(ctx context.Context, t *testing.T, s *scene) {
		second := a.enter(ctx, t, a.pod("second", onlyA100))
		s.line(ctx, t, tenantA, place{second, fair.ReasonLimitReached})
		opened := second.DeepCopy()
		opened.Spec.SchedulingGates = nil
		if err := s.client.Patch(ctx, opened, client.MergeFrom(second)); err != nil {
			t.Fatalf("opening the gate of Pod %s by hand, %v", second.Name, err)
		}
		a.waits(ctx, t, second.Name, reasonPending, string(v1alpha1.ReasonQuotaExceeded))
		s.uses(ctx, t, tenantA, "A100", 1, 1, 1)
	}).then("what a Pod held is the tenant's again when it is gone", func(ctx context.Context, t *testing.T, s *scene) {
		a.delete(ctx, t, "late")
		a.got(ctx, t, a.running(ctx, t, "second"), "A100", "a100", 1)
		s.uses(ctx, t, tenantA, "A100", 1, 1, 1)
		a.delete(ctx, t, "second")
		s.uses(ctx, t, tenantA, "A100", 0, 0, 0)
		a.upTo(t, "A100", 1)
	}).run(t)
}
