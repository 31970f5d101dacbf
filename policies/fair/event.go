package fair

// What happens outside and is told to the State.

import (
	"errors"
	"time"
)

// Errors of Apply. The State is then as it was.
var (
	// ErrInvalid: the event or the configuration says what cannot be.
	ErrInvalid = errors.New("invalid")
	// ErrUnknownEntry: no entry of this ID is known.
	ErrUnknownEntry = errors.New("unknown entry")
	// ErrConflict: what the event tells cannot follow from where the entry is.
	ErrConflict = errors.New("conflict")
)

// Event is one of the types of this file. What an event tells is a fact: the
// State takes it even where it would not have decided so.
type Event interface{ apply(st *State) error }

// Arrived: an entry waits at its gate. The same entry again changes nothing.
type Arrived struct{ Entry Entry }

// Opened: the gate of an entry is open, whoever opened it. Known already where
// Next asked for it.
type Opened struct {
	ID string
	// Models that it may use, as the Open said; empty: any.
	Models []string
}

// Allocated: members of an entry got devices.
type Allocated struct {
	ID string
	// Members that got theirs. Zero: all that had none.
	Members int64
	// Devices that were really allocated, by model.
	Devices []Devices
	// Started is when their work began. Zero: now.
	Started time.Time
	// Rest is what is still to be had, of an entry of one member of which only
	// a part got devices: a gang whose Pods ask for different things. Devices
	// are then all that it has by now. No request of it names a claim.
	Rest []Request
}

// Devices is a number of devices of one model.
type Devices struct {
	Model string
	Count int64
	// Claim that is shared and got them; empty: the entry's own. Told again by
	// others that share the claim, the amount is not counted again.
	Claim string
}

// Finished: the work is done and its devices are free.
type Finished struct{ ID string }

// Deleted: the Pods are gone from the API, by force or not. Devices stay
// charged until Released; without an allocation the entry is forgotten.
type Deleted struct{ ID string }

// Released: the nodes have released the devices of a deleted entry.
type Released struct{ ID string }

// Requeued: an entry that was opened waits again, and its devices are free. It
// keeps its age. Also the answer to an Open that could not be carried out.
type Requeued struct{ ID string }

// QuotaSet: what a tenant is given, now.
type QuotaSet struct{ Quota Quota }

// QuotaRemoved: a tenant has no quota, so none of its counts is limited or guaranteed.
type QuotaRemoved struct{ Tenant string }

// CapacitySet: how many usable devices of a model the fleet has, free or not.
type CapacitySet struct {
	Model   string
	Devices int64
}

// ReclaimNoticed: notice was given; known already where Next asked for it.
type ReclaimNoticed struct {
	ID       string
	For      string
	Deadline time.Time
}

// ReclaimExpired: the eviction was asked for; known already where Next did.
type ReclaimExpired struct{ ID string }

// ReclaimCancelled: the notice, or the eviction that was refused, is void.
type ReclaimCancelled struct{ ID string }

// Quota is what a tenant is given.
type Quota struct {
	Tenant string
	// Weight of the tenant in what is not guaranteed. Zero is one.
	Weight int64
	// Models that the tenant may use; others it may not.
	Models []ModelQuota
}

// ModelQuota is a tenant's part of one model.
type ModelQuota struct {
	Model string
	// Guaranteed devices are never reclaimed.
	Guaranteed int64
	// Limit is the most that the tenant may hold; nil: up to what is free.
	Limit *int64
}
