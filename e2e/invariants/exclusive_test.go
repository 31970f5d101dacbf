package invariants

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func TestExclusivePasses(t *testing.T) {
	admin := claimOf("admin", "gpu-0")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	shared := func(pod string, share types.UID) *resourcev1.ResourceClaim {
		c := claimOf(pod, "gpu-7")
		c.Status.Allocation.Devices.Results[0].ShareID = &share
		return c
	}
	otherPool := claimOf("c", "gpu-0")
	otherPool.Status.Allocation.Devices.Results[0].Pool = "other"
	for name, s := range map[string]*story{
		"different devices":   (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-1")),
		"one after another":   (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Modified, claimOf("a")).claim(watch.Added, claimOf("b", "gpu-0")),
		"after the claim":     (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Deleted, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-0")),
		"told again":          (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Modified, claimOf("a", "gpu-0")),
		"same name elsewhere": (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, otherPool),
		"admin access":        (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, admin),
		"shares": (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).
			claim(watch.Added, shared("b", "s1")).claim(watch.Added, shared("c", "s2")),
		"partitions that fit": (&story{}).add(Entry{Type: watch.Added, Slice: partitions()}).
			claim(watch.Added, claimOf("a", "mig-0")).claim(watch.Added, claimOf("b", "mig-1")),
		"containers one after another": (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).pod(watch.Modified, "a", true).probe("a", "gpu-0").gone("a").
			claim(watch.Deleted, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-0")).pod(watch.Modified, "b", true).probe("b", "gpu-0"),
	} {
		t.Run(name, func(t *testing.T) { judged(t, ExclusiveDevices(s.History), Pass) })
	}
}

// Histories that the checker must fail.
func TestExclusiveFails(t *testing.T) {
	stale := partitions()
	stale.UID, stale.Spec.Pool.Generation, stale.Spec.SharedCounters = "old", 0, nil
	for name, tc := range map[string]struct {
		story    *story
		mentions []string
	}{
		"two claims": {
			(&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-1", "gpu-0")),
			[]string{"gpu.gpuladder.dev/node/gpu-0", "ns/b-claim", "ns/a-claim", "version 2"},
		},
		"a claim that gets one more": {
			(&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-1")).claim(watch.Modified, claimOf("b", "gpu-1", "gpu-0")),
			[]string{"gpu-0"},
		},
		"too early": {
			(&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-0")).claim(watch.Deleted, claimOf("a", "gpu-0")),
			[]string{"gpu-0"},
		},
		"partitions that do not fit": {
			(&story{}).add(Entry{Type: watch.Added, Slice: partitions()}).
				claim(watch.Added, claimOf("a", "mig-0")).claim(watch.Added, claimOf("b", "mig-1", "mig-2")),
			[]string{"gpu-0/memory", "overdrawn by 40Gi", "ns/b-claim"},
		},
		"a whole device and its partition": {
			(&story{}).add(Entry{Type: watch.Added, Slice: stale}).add(Entry{Type: watch.Added, Slice: partitions()}).
				claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "mig-1")),
			[]string{"overdrawn"},
		},
		"containers at the same time": {
			(&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Added, claimOf("b", "gpu-1")).
				pod(watch.Modified, "a", true).probe("a", "gpu-0").pod(watch.Modified, "b", true).probe("b", "gpu-0"),
			[]string{"a and b both saw device gpu-0 of node node"},
		},
		"containers that overlap": {
			(&story{}).pod(watch.Modified, "a", true).pod(watch.Modified, "b", true).probe("b", "gpu-0").gone("a").probe("a", "gpu-0"),
			[]string{"both saw"},
		},
	} {
		t.Run(name, func(t *testing.T) { judged(t, ExclusiveDevices(tc.story.History), Fail, tc.mentions...) })
	}
}

// The order of observation says nothing: the claim that lost the device was
// heard of late.
func TestExclusiveGoesByVersion(t *testing.T) {
	before, after, next := claimOf("a", "gpu-0"), claimOf("a"), claimOf("b", "gpu-0")
	s := (&story{}).claim(watch.Added, before).claim(watch.Added, next).claim(watch.Modified, after)
	next.ResourceVersion, after.ResourceVersion = "3", "2"
	judged(t, ExclusiveDevices(s.History), Pass)
	next.ResourceVersion, after.ResourceVersion = "2", "3"
	judged(t, ExclusiveDevices(s.History), Fail)
}

// Pods that share a claim share its devices.
func TestContainersOfOneClaim(t *testing.T) {
	s := (&story{}).pod(watch.Modified, "a", true).probe("a", "gpu-0").pod(watch.Modified, "b", true).probe("b", "gpu-0")
	for i := range s.History {
		if s.History[i].Probe != nil {
			s.History[i].Probe.Claims = []types.UID{"one"}
		}
	}
	judged(t, ExclusiveDevices(s.History), Pass)
}

func TestExclusiveIsInconclusive(t *testing.T) {
	judged(t, ExclusiveDevices(nil), Inconclusive)
	gap := (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).add(Entry{Gap: "the watch was too old"})
	judged(t, ExclusiveDevices(gap.History), Inconclusive, "the watch was too old")
	gap.claim(watch.Added, claimOf("b", "gpu-0"))
	judged(t, ExclusiveDevices(gap.History), Fail)
}
