//go:build e2e

package suites

import (
	"context"
	"testing"
)

func TestDeletionFrees(t *testing.T) {
	suite{
		name: "deletion-frees", core: true, providers: everywhere,
		describe: "When a Pod is gone its device is free, nothing of it is left on the node, and the next Pod gets the device.",
	}.then("the device is used again", func(ctx context.Context, t *testing.T, s *scene) {
		s.shipped(ctx, t, "h100-first")
		first := s.start(ctx, t, s.pod("first", "h100-first"))
		was := s.got(ctx, t, first, "H100", "h100", 1)[0]
		s.delete(ctx, t, first.Name)
		s.await(ctx, t, within.freed, "device "+was.String()+" to be free", func() (bool, string) {
			for _, d := range s.devices("H100") {
				if d.String() == was.String() {
					return d.claim == "", "held by " + d.claim
				}
			}
			return false, "it is not there"
		})
		if node, ok := s.provider.(nodes); ok {
			if err := s.clean(ctx, node); err != nil {
				t.Fatal(err)
			}
		}
		second := s.start(ctx, t, s.pod("second", "h100-first"))
		if is := s.got(ctx, t, second, "H100", "h100", 1)[0]; is.String() != was.String() {
			t.Errorf("the second Pod got %s, the first had %s", is, was)
		}
	}).run(t)
}
