// Package checkpoint keeps on disk what a driver has prepared for which claim,
// so that a driver that was killed, replaced or rebooted under goes on where
// the last one ended.
//
// The file is one JSON object: the schema's version, a checksum, and the
// payload, which is [State]. The checksum is of the payload's bytes as they
// are in the file, not of a structure that was read and written again, so a
// field that a later version adds never makes an old file look damaged. Fields
// that this version does not know are kept when it writes the file again.
package checkpoint

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// State is what one node's driver has to remember.
type State struct {
	// BootID is the boot of the node in which the claims were prepared. What
	// was prepared in another one is gone.
	BootID string
	// Claims by UID. The pointers are never nil.
	Claims map[types.UID]*Claim

	unknown fields
}

// Phase is how far the preparation of a claim has come.
type Phase string

// Phases.
const (
	// PrepareStarted claims hold their devices; whether anything was made for
	// them is not known.
	PrepareStarted Phase = "PrepareStarted"
	// PrepareCompleted claims have all that their containers need.
	PrepareCompleted Phase = "PrepareCompleted"
)

// Evidence is how a claim came into the checkpoint.
type Evidence string

// Kinds of evidence.
const (
	// Recorded claims were written when they were prepared.
	Recorded Evidence = ""
	// FromCDI claims were found by their CDI file after the record was lost.
	FromCDI Evidence = "CDI"
	// FromAPI claims were found by their allocation after the record was lost.
	FromAPI Evidence = "API"
)

// Claim is what is known of one claim.
type Claim struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Phase     Phase    `json:"phase"`
	Devices   []Device `json:"devices"`
	// Sharing says of each device that is set up to be shared how, by name and in
	// canonical form: what has to be undone. Versions that do not know it keep it.
	Sharing map[string]v1alpha1.Sharing `json:"sharing,omitempty"`
	// Since is when the claim came into its phase.
	Since    time.Time `json:"since,omitzero"`
	Evidence Evidence  `json:"evidence,omitempty"`

	unknown fields
}

// Device is one device of a claim's allocation.
type Device struct {
	// Request is the request's name in the allocation, with that of the
	// subrequest after a slash if there is one.
	Request string `json:"request"`
	// Name is that of the device in the node's pool.
	Name string `json:"name"`
	// Model is what the device was when it was prepared; empty if it does not
	// say.
	Model string `json:"model,omitempty"`
	// AdminAccess devices are not held: others may use them at the same time.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// ShareID tells apart those who share a device that allows it.
	ShareID types.UID `json:"shareID,omitempty"`
}

// New is the state of a node on which nothing is prepared.
func New(bootID string) *State {
	return &State{BootID: bootID, Claims: map[types.UID]*Claim{}}
}

// DeepCopy returns a State that shares nothing with this one.
func (s *State) DeepCopy() *State {
	made := &State{BootID: s.BootID, Claims: make(map[types.UID]*Claim, len(s.Claims)), unknown: s.unknown}
	for uid, claim := range s.Claims {
		made.Claims[uid] = claim.DeepCopy()
	}
	return made
}

// DeepCopy returns a Claim that shares nothing with this one.
func (c *Claim) DeepCopy() *Claim {
	made := *c
	made.Devices = append([]Device(nil), c.Devices...)
	made.Sharing = nil
	for device, sharing := range c.Sharing {
		if made.Sharing == nil {
			made.Sharing = map[string]v1alpha1.Sharing{}
		}
		made.Sharing[device] = *sharing.DeepCopy()
	}
	return &made
}

// payload is how a State is written.
type payload struct {
	BootID string                `json:"bootID"`
	Claims map[types.UID]*record `json:"claims"`
}

// record is how a Claim is written: it keeps unknown fields.
type record struct{ Claim }

// MarshalJSON implements [json.Marshaler].
func (s *State) MarshalJSON() ([]byte, error) {
	written := payload{BootID: s.BootID, Claims: make(map[types.UID]*record, len(s.Claims))}
	for uid, claim := range s.Claims {
		written.Claims[uid] = &record{*claim}
	}
	return s.unknown.marshal(written)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *State) UnmarshalJSON(data []byte) error {
	var read payload
	unknown, err := unmarshal(data, &read)
	if err != nil {
		return err
	}
	*s = State{BootID: read.BootID, Claims: make(map[types.UID]*Claim, len(read.Claims)), unknown: unknown}
	for uid, claim := range read.Claims {
		if claim == nil {
			return fmt.Errorf("claim %s is null", uid)
		}
		s.Claims[uid] = &claim.Claim
	}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (r *record) MarshalJSON() ([]byte, error) { return r.unknown.marshal(r.Claim) }

// UnmarshalJSON implements [json.Unmarshaler].
func (r *record) UnmarshalJSON(data []byte) error {
	unknown, err := unmarshal(data, &r.Claim)
	r.unknown = unknown
	return err
}

// fields are fields of an object that this version does not know.
type fields map[string]json.RawMessage

// unmarshal reads an object into a pointer to a struct and returns the rest.
func unmarshal(data []byte, into any) (fields, error) {
	if err := json.Unmarshal(data, into); err != nil {
		return nil, fmt.Errorf("reading object, %w", err)
	}
	all := fields{}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading object, %w", err)
	}
	for name := range names(into) {
		delete(all, name)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// marshal writes a struct together with the fields that it does not know.
func (f fields) marshal(from any) ([]byte, error) {
	data, err := json.Marshal(from)
	if err != nil || len(f) == 0 {
		return data, err
	}
	all := fields{}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("adding kept fields, %w", err)
	}
	for name, value := range f {
		all[name] = value
	}
	return json.Marshal(all)
}
