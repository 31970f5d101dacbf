//go:build e2e

package suites

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// halves of this profile fit twice on a board, although four more of its seven
// compute slices' worth of other partitions are published beside them.
const halfProfile = "3g.40gb"

func TestPartitions(t *testing.T) {
	var node string
	suite{
		name: "partitions", core: false, providers: realNodes,
		describe: "A node's board is in MIG mode. Two Pods share it by partitions, a third waits until one of them is gone. " +
			"Each sees its partition alone, and what the partitions share is never overdrawn.",
	}.then("the board is published in partitions", func(ctx context.Context, t *testing.T, s *scene) {
		node = s.devices("A100")[0].node
		s.atEnd(func(ctx context.Context) error {
			// While a Pod has a device, a driver keeps what the node has.
			return errors.Join(s.deleteAll(ctx), s.equip(ctx, node, "a100-80", gpus["a100-80"]), s.awaitDevices(ctx, node, "gpu-", gpus["a100-80"]))
		})
		if err := s.equip(ctx, node, "a100-80-mig", 1); err != nil {
			t.Fatal(err)
		}
		if err := s.awaitDevices(ctx, node, profileInName(halfProfile), 2); err != nil {
			t.Fatal(err)
		}
	}).then("two Pods share it", func(ctx context.Context, t *testing.T, s *scene) {
		s.apply(ctx, t, "partitions.yaml")
		for _, name := range []string{"left", "right"} {
			pod := s.start(ctx, t, s.pod(name, "e2e-half"))
			s.got(ctx, t, pod, "A100", "half", 1)
		}
	}).then("a third waits for one of them", func(ctx context.Context, t *testing.T, s *scene) {
		third := s.pod("third", "e2e-half")
		s.create(ctx, t, third)
		s.waits(ctx, t, "third", reasonPending, string(v1alpha1.ReasonInUse))
		s.delete(ctx, t, "left")
		s.got(ctx, t, s.running(ctx, t, "third"), "A100", "half", 1)
		s.prepared(ctx, t, node, s.current("right"), s.current("third"))
	}).run(t)
}

// profileInName is how a device's name spells a profile.
func profileInName(profile string) string {
	return "-" + strings.NewReplacer(".", "", "+", "").Replace(profile) + "-"
}

// equip gives a node other hardware.
func (s *scene) equip(ctx context.Context, node, tier string, count int) error {
	n, ok := s.provider.(nodes)
	if !ok {
		return fmt.Errorf("equipping node %s, it is simulated", node)
	}
	return n.equip(ctx, node, tier, count)
}

// awaitDevices waits until a node has exactly so many devices with this in
// their names.
func (s *scene) awaitDevices(ctx context.Context, node, part string, want int) error {
	return s.log.Await(ctx, within.rollout, fmt.Sprintf("node %s to publish %d devices like %s", node, want, part), func() (bool, string) {
		var all []string
		n := 0
		for _, d := range s.devices("") {
			if d.node != node {
				continue
			}
			all = append(all, d.name)
			if strings.Contains(d.name, part) {
				n++
			}
		}
		return n == want, fmt.Sprintf("it has %v", all)
	})
}
