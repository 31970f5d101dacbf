package checkpoint

// This file goes from one version of the driver to another and back. The files
// of testdata are as drivers of different versions have written them, and are
// never written again:
//
//	schema1-first    the first driver, which shared no devices
//	schema1-sharing  the driver that knows how a device is shared
//	schema1-later    one to come: fields that no driver until now knows
//	schema2          one to come whose file older drivers must not touch

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// installed is a folder with a file that another version has left.
func installed(t *testing.T, name string) (*Store, []byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	s := store(t)
	put(t, s, FileName, string(data))
	return s, data
}

// claims are those in the files of the first two versions.
func claims() map[types.UID]*Claim {
	return map[types.UID]*Claim{
		"uid-0": {
			Namespace: "team-a", Name: "claim-0", Phase: PrepareCompleted, Since: time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC),
			Devices: []Device{{Request: "accelerator/h100", Name: "gpu-0", Model: "H100"}},
		},
		"uid-1": {
			Namespace: "team-b", Name: "claim-1", Phase: PrepareStarted, Since: time.Date(2026, 11, 29, 18, 0, 1, 0, time.UTC), Evidence: FromAPI,
			Devices: []Device{{Request: "accelerator", Name: "gpu-1-mig-3g40gb-9-4", Model: "A100"}, {Request: "watch", Name: "gpu-2", AdminAccess: true}},
		},
	}
}

// TestUpgrade: this version reads what each earlier one has written, all of it,
// and writes the same bytes again: nothing changes by a mere start.
func TestUpgrade(t *testing.T) {
	shared := claims()
	shared["uid-0"].Sharing = map[string]v1alpha1.Sharing{
		"gpu-0": {Strategy: v1alpha1.SharingTimeSlicing, TimeSlicing: &v1alpha1.TimeSlicing{Interval: v1alpha1.IntervalLong}},
	}
	for name, want := range map[string]map[types.UID]*Claim{"schema1-first": claims(), "schema1-sharing": shared} {
		t.Run(name, func(t *testing.T) {
			s, before := installed(t, name)
			got := load(t, s)
			if got.Origin != Current || got.Problem != nil || got.State.BootID != "boot-1" || !reflect.DeepEqual(got.State.Claims, want) {
				t.Fatalf("read from %s is %+v, %v", got.Origin, got.State, got.Problem)
			}
			save(t, s, got.State)
			if after, err := os.ReadFile(s.Path()); err != nil || !bytes.Equal(after, before) {
				t.Errorf("written is\n%swas\n%s%v", after, before, err)
			}
			if data, err := os.ReadFile(s.path(PreviousFileName)); err != nil || !bytes.Equal(data, before) {
				t.Errorf("kept is %s, %v", data, err)
			}
		})
	}
}

// firstState is the state as the first version knew it, and keeps unknown fields
// as that did.
type firstState struct {
	BootID string                 `json:"bootID"`
	Claims map[string]*firstClaim `json:"claims"`
	kept   fields
}

type firstClaim struct {
	firstFields
	kept fields
}

type firstFields struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Phase     Phase     `json:"phase"`
	Devices   []Device  `json:"devices"`
	Since     time.Time `json:"since,omitzero"`
	Evidence  Evidence  `json:"evidence,omitempty"`
}

func (c *firstClaim) UnmarshalJSON(data []byte) (err error) {
	c.kept, err = unmarshal(data, &c.firstFields)
	return err
}
func (c *firstClaim) MarshalJSON() ([]byte, error) { return c.kept.marshal(c.firstFields) }

// downgrade has the first version read the file, change it and write it back:
// a claim more, and another phase of one.
func downgrade(t *testing.T, s *Store) {
	t.Helper()
	data, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	var read envelope
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if read.Schema != 1 || read.Checksum != checksum(read.Payload) {
		t.Fatalf("the first version does not take the file: %s", data)
	}
	var state firstState
	if state.kept, err = unmarshal(read.Payload, &state); err != nil {
		t.Fatal(err)
	}
	state.Claims["uid-0"].Phase = PrepareStarted
	state.Claims["uid-9"] = &firstClaim{firstFields: firstFields{Namespace: "team-c", Name: "claim-9", Phase: PrepareCompleted, Devices: []Device{{Request: "r", Name: "gpu-9"}}}}
	payload, err := state.kept.marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(envelope{Schema: 1, Checksum: checksum(payload), Payload: payload}); err != nil {
		t.Fatal(err)
	}
	put(t, s, FileName, string(data)+"\n")
}

// TestDowngradeAndBack: an older version works on the file of this one, and this
// one finds after it what only it knows.
func TestDowngradeAndBack(t *testing.T) {
	s, _ := installed(t, "schema1-sharing")
	downgrade(t, s)
	got := load(t, s)
	if got.Origin != Current || len(got.State.Claims) != 3 || got.State.Claims["uid-9"].Devices[0].Name != "gpu-9" {
		t.Fatalf("read from %s is %+v, %v", got.Origin, got.State, got.Problem)
	}
	claim := got.State.Claims["uid-0"]
	if sharing := claim.Sharing["gpu-0"]; claim.Phase != PrepareStarted || sharing.Strategy != v1alpha1.SharingTimeSlicing || sharing.TimeSlicing.Interval != v1alpha1.IntervalLong {
		t.Errorf("after the older version the claim is %+v", claim)
	}
}

// TestDowngradeFromALaterVersion: this version is the older one now.
func TestDowngradeFromALaterVersion(t *testing.T) {
	s, _ := installed(t, "schema1-later")
	got := load(t, s)
	if got.Origin != Current || got.State.Claims["uid-0"].Devices[0].Name != "gpu-0" {
		t.Fatalf("read from %s is %+v, %v", got.Origin, got.State, got.Problem)
	}
	got.State.Claims["uid-0"].Phase = PrepareStarted
	got.State.Claims["uid-1"] = &Claim{Name: "new"}
	save(t, s, got.State.DeepCopy())
	data, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{`"reset":{"after":"Unprepare","times":9007199254740993}`, `"links":[{"gpus":["gpu-0","gpu-1"]}]`} {
		if !strings.Contains(string(data), kept) {
			t.Errorf("%s is not in %s", kept, data)
		}
	}
	delete(got.State.Claims, "uid-0") // what a claim had goes with it
	save(t, s, got.State)
	if data, err = os.ReadFile(s.Path()); err != nil || strings.Contains(string(data), "reset") || !strings.Contains(string(data), "links") {
		t.Errorf("written is %s, %v", data, err)
	}
}

// TestDowngradeOverASchema: a file that this version must not touch is refused
// in words, and is byte for byte the same after; whoever removes it starts anew,
// and one that a crash tore is no reason to lose the file before it.
func TestDowngradeOverASchema(t *testing.T) {
	s, before := installed(t, "schema2")
	for range 3 { // a driver that starts again and again
		var newer *SchemaError
		if _, err := s.Load(); !errors.As(err, &newer) || newer.Found != 2 || newer.Known != SchemaVersion || newer.Path != s.Path() {
			t.Fatalf("got %v", err)
		}
	}
	if after, err := os.ReadFile(s.Path()); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file is %s, %v", after, err)
	}
	if err := os.Remove(s.Path()); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Origin != Fresh {
		t.Errorf("without it: %+v", got)
	}
	s, first := installed(t, "schema1-first")
	put(t, s, PreviousFileName, string(first))
	put(t, s, FileName, string(before[:len(before)/2]))
	if got := load(t, s); got.Origin != Previous || len(got.State.Claims) != 2 {
		t.Errorf("with a torn one: %+v", got)
	}
}
