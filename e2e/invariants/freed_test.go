package invariants

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const bound = 5 * time.Second

// used is a Pod that got a device and is gone again.
func used() *story {
	return (&story{}).pod(watch.Added, "a", false).claim(watch.Added, claimOf("a")).claim(watch.Modified, claimOf("a", "gpu-0")).gone("a")
}

func TestFreedPasses(t *testing.T) {
	for name, s := range map[string]*story{
		"claim deleted":     used().claim(watch.Deleted, claimOf("a", "gpu-0")),
		"claim deallocated": used().claim(watch.Modified, claimOf("a")).later(10),
		"claim deleted first": (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).claim(watch.Deleted, claimOf("a", "gpu-0")).
			gone("a").later(10),
		"still there until the bound": used().host([]types.UID{"a-claim"}, []types.UID{"a-claim"}).claim(watch.Deleted, claimOf("a")).
			later(5).host(nil, nil),
		"others are on the node": used().claim(watch.Deleted, claimOf("a")).later(5).host([]types.UID{"b-claim"}, []types.UID{"b-claim"}),
	} {
		t.Run(name, func(t *testing.T) { judged(t, FreedDevices(s.History, bound), Pass) })
	}
}

// Histories that the checker must fail.
func TestFreedFails(t *testing.T) {
	for name, tc := range map[string]struct {
		story    *story
		mentions []string
	}{
		"the claim stays":       {used().later(6), []string{"ns/a-claim", "still has its devices"}},
		"the claim stays long":  {used().later(6).claim(watch.Deleted, claimOf("a")), []string{"kept its devices for 7s"}},
		"the claim comes back":  {used().claim(watch.Modified, claimOf("a")).claim(watch.Modified, claimOf("a", "gpu-1")).later(6), []string{"still has its devices"}},
		"the CDI file stays":    {used().claim(watch.Deleted, claimOf("a")).later(5).host([]types.UID{"a-claim"}, nil), []string{"CDI file of claim ns/a-claim"}},
		"the checkpoint stays":  {used().claim(watch.Deleted, claimOf("a")).later(5).host(nil, []types.UID{"a-claim"}), []string{"in its checkpoint"}},
		"the CDI file is back":  {used().claim(watch.Deleted, claimOf("a")).later(5).host(nil, nil).host([]types.UID{"a-claim"}, nil), []string{"CDI file"}},
		"allocated for nobody":  {(&story{}).gone("a").claim(watch.Added, claimOf("a", "gpu-0")).later(6), []string{"still has its devices"}},
		"one of two Pods stays": {used().claim(watch.Deleted, claimOf("a")).claim(watch.Added, claimOf("b", "gpu-1")).gone("b").later(6), []string{"ns/b-claim"}},
	} {
		t.Run(name, func(t *testing.T) { judged(t, FreedDevices(tc.story.History, bound), Fail, tc.mentions...) })
	}
}

func TestFreedIsInconclusive(t *testing.T) {
	judged(t, FreedDevices(nil, bound), Inconclusive)
	judged(t, FreedDevices((&story{}).claim(watch.Added, claimOf("a", "gpu-0")).later(9).History, bound), Inconclusive)
	judged(t, FreedDevices(used().later(2).History, bound), Inconclusive, "its time is not over")
	looked := (&story{}).host(nil, nil)
	looked.History = append(looked.History, used().claim(watch.Deleted, claimOf("a")).History...)
	judged(t, FreedDevices(looked.History, bound), Inconclusive, "was not looked at after")
	judged(t, FreedDevices(used().claim(watch.Deleted, claimOf("a")).add(Entry{Gap: "too old"}).History, bound), Inconclusive, "too old")
}

// A claim that a user made by hand outlives the Pods that use it.
func TestFreedLeavesNamedClaimsAlone(t *testing.T) {
	named := claimOf("a", "gpu-0")
	named.OwnerReferences = nil
	s := (&story{}).claim(watch.Added, named).gone("a").later(9)
	judged(t, FreedDevices(s.History, bound), Inconclusive, "nothing was seen")
}
