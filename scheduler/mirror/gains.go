package mirror

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// gains counts the changes after which a Pod that was told no may be told yes:
// devices that were given back, anything new about nodes, slices and classes,
// and every change of policies, quotas and namespaces. That devices are taken is
// none, nor is what a Pod brings along.
type gains struct {
	count uint64
	// held is what each claim was allocated when it was last seen.
	held map[types.NamespacedName][]heldDevice
}

// heldDevice is a device, or the part of one, that a claim was allocated.
type heldDevice struct {
	driver, pool, name string
	share              types.UID
}

func newGains() gains { return gains{held: map[types.NamespacedName][]heldDevice{}} }

// Gains is how many changes up to the last Sync may have helped Pods that wait.
// It never falls.
func (m *Mirror) Gains() uint64 { return m.gains.count }

// appeared counts an object that is new or changed. One that is gone helps
// nobody.
func (g *gains) appeared(gone bool) {
	if !gone {
		g.count++
	}
}

// claim counts a claim that has given back a device since it was last seen.
func (g *gains) claim(claim *resourceapi.ResourceClaim, gone bool) {
	key := keyOf(claim)
	var now []heldDevice
	if claim.Status.Allocation != nil && !gone {
		for _, r := range claim.Status.Allocation.Devices.Results {
			d := heldDevice{driver: r.Driver, pool: r.Pool, name: r.Device}
			if r.ShareID != nil {
				d.share = *r.ShareID
			}
			now = append(now, d)
		}
	}
	for _, d := range g.held[key] {
		if !slices.Contains(now, d) {
			g.count++
			break
		}
	}
	if len(now) == 0 {
		delete(g.held, key)
	} else {
		g.held[key] = now
	}
}
