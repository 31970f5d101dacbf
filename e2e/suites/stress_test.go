//go:build e2e

package suites

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/stress"
	"gpuladder.dev/ladder/e2e/workload"
)

// How much stress: the whole suite, and its core.
const (
	stressRounds     = 10
	stressCoreRounds = 2
	stressPods       = 20
	stressKills      = 3
)

func TestStress(t *testing.T) {
	suite{
		name: "stress", core: true, providers: everywhere,
		describe: "Rounds of 20 Pods come and go while the driver (on the lab, whose nodes have none, the scheduler) is killed at random moments. " +
			"No device is in two running claims, and nothing is left.",
	}.then("the rounds", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "any.yaml")
		drawn := *seed
		if drawn == 0 {
			drawn = rand.Uint64()
		}
		t.Attr("seed", fmt.Sprint(drawn))
		rounds := stressCoreRounds
		if s.full {
			rounds = stressRounds
		}
		err := stress.Run(ctx, stress.Options{
			Seed: drawn, Rounds: rounds, Pods: stressPods, Devices: len(s.devices("")), KillsPerRound: stressKills,
			Within: within.round, Out: t.Output(),
		}, &stressed{scene: s, t: t})
		if err != nil {
			t.Fatalf("%v\nto repeat it: go test -tags e2e ./suites -run TestStress -args -seed=%d", err, drawn)
		}
	}).run(t)
}

// stressed is the cluster as package stress sees it.
type stressed struct {
	*scene
	t       *testing.T
	killing sync.Mutex // one at a time
}

var _ stress.World = &stressed{}

// Create implements [stress.World].
func (w *stressed) Create(ctx context.Context, name string) error {
	return w.write(ctx, "creating Pod "+name, func(ctx context.Context) error {
		err := w.client.Create(ctx, w.pod(name, "e2e-any"))
		if apierrors.IsAlreadyExists(err) {
			return nil // the answer to an earlier try was lost
		}
		return err
	})
}

// write tries to write until the API server takes it, or says for good that it
// does not: stress on a small machine makes it late.
func (w *stressed) write(ctx context.Context, what string, try func(context.Context) error) error {
	return workload.WaitFor(ctx, within.admission, what, func(ctx context.Context) (bool, string, error) {
		err := try(ctx)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
			return false, "", err
		}
		return err == nil, fmt.Sprint(err), nil
	})
}

// Delete implements [stress.World].
func (w *stressed) Delete(ctx context.Context, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	return w.write(ctx, "deleting Pod "+name, func(ctx context.Context) error {
		return client.IgnoreNotFound(w.client.Delete(ctx, pod))
	})
}

// Pods implements [stress.World].
func (w *stressed) Pods() []*corev1.Pod { return watchlog.List[*corev1.Pod](w.log, w.ns) }

// Changed implements [stress.World].
func (w *stressed) Changed() <-chan struct{} { return w.log.Changed() }

// Kill implements [stress.World].
func (w *stressed) Kill(ctx context.Context, choice float64) (string, error) {
	w.killing.Lock()
	defer w.killing.Unlock()
	if node, ok := w.provider.(nodes); ok {
		all := w.devices("")
		victim := all[int(choice*float64(len(all)))].node
		return "the driver of " + victim, node.killDriver(ctx, victim)
	}
	if err := w.killScheduler(ctx); err != nil {
		return "", err
	}
	return "the scheduler", w.startScheduler(context.WithoutCancel(ctx))
}

// Running implements [stress.World].
func (w *stressed) Running(ctx context.Context, pod *corev1.Pod) error {
	node, ok := w.provider.(nodes)
	if !ok {
		return nil
	}
	return w.sight(ctx, node, pod)
}

// Settled implements [stress.World].
func (w *stressed) Settled(ctx context.Context, round int) error {
	err := w.log.Await(ctx, within.freed, fmt.Sprintf("all devices to be free after round %d", round), func() (bool, string) {
		if pods := w.Pods(); len(pods) > 0 {
			return false, fmt.Sprintf("%d Pods are left", len(pods))
		}
		for _, d := range w.devices("") {
			if strings.HasPrefix(d.claim, w.ns+"/") {
				return false, fmt.Sprintf("%s is held by %s", d, d.claim)
			}
		}
		return true, ""
	})
	if err != nil {
		return err
	}
	if node, ok := w.provider.(nodes); ok {
		return w.clean(ctx, node)
	}
	return nil
}
