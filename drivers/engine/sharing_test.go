package engine

// This file tests parameters: what they mean, and that what is set up for a
// claim goes with it.

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	slicing   = `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`
	exclusive = `{"strategy":"Exclusive"}`
	ofClass   = resourcev1.AllocationConfigSourceClass
	ofClaim   = resourcev1.AllocationConfigSourceClaim
)

// configure gives a claim parameters.
func configure(claim *resourcev1.ResourceClaim, configs ...resourcev1.DeviceAllocationConfiguration) *resourcev1.ResourceClaim {
	claim.Status.Allocation.Devices.Config = configs
	return claim
}

// TestWhichParametersCount: those that speak of the request, the class's
// before the claim's, the last of several.
func TestWhichParametersCount(t *testing.T) {
	foreign := parameters(ofClaim, mps)
	foreign.Opaque.Driver = "gpu.nvidia.com"
	silent := parameters(ofClaim, `null`)
	for name, test := range map[string]struct {
		configs []resourcev1.DeviceAllocationConfiguration
		want    v1alpha1.SharingStrategy
	}{
		"none":                        {nil, ""},
		"of another driver":           {[]resourcev1.DeviceAllocationConfiguration{foreign}, ""},
		"exclusive":                   {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, exclusive)}, ""},
		"for all":                     {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClass, mps)}, v1alpha1.SharingMPS},
		"for its request":             {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, mps, "accelerator")}, v1alpha1.SharingMPS},
		"for its subrequest":          {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, mps, "x", "accelerator/h100")}, v1alpha1.SharingMPS},
		"for another request":         {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, mps, "accelerator/a100", "h100")}, ""},
		"the last":                    {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, mps), parameters(ofClaim, slicing)}, v1alpha1.SharingTimeSlicing},
		"the claim's after the class": {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClaim, slicing), parameters(ofClass, mps)}, v1alpha1.SharingTimeSlicing},
		"the claim takes it back":     {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClass, mps), parameters(ofClaim, exclusive)}, ""},
		"one that says nothing":       {[]resourcev1.DeviceAllocationConfiguration{parameters(ofClass, mps), silent}, v1alpha1.SharingMPS},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			claim := configure(n.api.allocate("c", "gpu-0"), test.configs...)
			n.mustPrepare(claim)
			if got := n.hardware.sharing("gpu-0", claim.UID); got != test.want {
				t.Errorf("it is shared by %q, want %q", got, test.want)
			}
			spec, err := os.ReadFile(n.engine.CDI.Path(claim.UID))
			if err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(string(spec), `"SHARED=`+string(test.want)+`"`); has != (test.want != "") {
				t.Errorf("the CDI spec is %s", spec)
			}
			n.restart()
			n.mustPrepare(claim)
			if err := n.unprepare(claim); err != nil || len(n.hardware.shares) != 0 {
				t.Errorf("shared are %v, %v", n.hardware.shares, err)
			}
		})
	}
}

func TestParametersThatAreRefused(t *testing.T) {
	unknown := parameters(ofClaim, mps)
	unknown.Opaque.Parameters.Raw = []byte(`{"apiVersion":"gpuladder.dev/v2","kind":"GPUConfig"}`)
	yes := true
	for name, test := range map[string]struct {
		change func(n *node, claim *resourcev1.ResourceClaim)
		want   string
	}{
		"unknown version": {
			func(_ *node, c *resourcev1.ResourceClaim) { configure(c, parameters(ofClass, mps), unknown) },
			"its parameters can't be used (number 2 of its allocation, FromClaim), reading parameters, they are gpuladder.dev/v2/GPUConfig",
		},
		"unknown field": {
			func(_ *node, c *resourcev1.ResourceClaim) { configure(c, parameters(ofClass, `{"mode":1}`)) },
			`(number 1 of its allocation, FromClass), reading GPUConfig, unknown field "sharing.mode"`,
		},
		"invalid": {func(_ *node, c *resourcev1.ResourceClaim) {
			configure(c, parameters(ofClaim, `{"strategy":"MPS","mps":{"activeThreadPercentage":200}}`))
		}, "sharing.mps.activeThreadPercentage: Invalid value: 200"},
		"hardware that can't": {func(n *node, c *resourcev1.ResourceClaim) {
			configure(c, parameters(ofClaim, mps))
			n.engine.Sharer = nil
		}, "device gpu-0 can't be shared by MPS: on this node devices are Exclusive only"},
		"a device that can't": {func(n *node, c *resourcev1.ResourceClaim) {
			configure(c, parameters(ofClaim, mps))
			n.hardware.shareErr = &inventory.UnsupportedError{Device: "gpu-0", Strategy: v1alpha1.SharingMPS, Reason: "it is a partition"}
		}, "device gpu-0 can't be shared by MPS: it is a partition"},
		"an admin's": {func(_ *node, c *resourcev1.ResourceClaim) {
			configure(c, parameters(ofClaim, mps)).Status.Allocation.Devices.Results[0].AdminAccess = &yes
		}, "it is allocated with admin access"},
		"two ways": {func(_ *node, c *resourcev1.ResourceClaim) {
			results := &c.Status.Allocation.Devices.Results
			*results = append(*results, (*results)[0])
			(*results)[1].Request = "more"
			configure(c, parameters(ofClaim, mps, "more"))
		}, "its requests ask for device gpu-0 to be shared in two ways"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			claim := n.api.allocate("c", "gpu-0")
			test.change(n, claim)
			if _, err := n.prepare(claim); ClassOf(err) != ClassUnsupported || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			n.expect("refused", nil, nil)
			if len(n.hardware.shares) != 0 {
				t.Errorf("shared are %v", n.hardware.shares)
			}
		})
	}
	// The class means those who use the device, not those who look on.
	n := newNode(t, 1)
	claim := configure(n.api.allocate("admin", "gpu-0"), parameters(ofClass, mps))
	claim.Status.Allocation.Devices.Results[0].AdminAccess = &yes
	n.mustPrepare(claim)
	if len(n.hardware.shares) != 0 {
		t.Errorf("shared are %v", n.hardware.shares)
	}
}

// TestWhatCantBeSharedIsTakenBack: half a way is undone, and where that fails
// it is known and tried again.
func TestWhatCantBeSharedIsTakenBack(t *testing.T) {
	n := newNode(t, 1)
	claim := n.api.allocateWith("c", mps, "gpu-0")
	n.hardware.shareErr = errors.New("the daemon does not answer")
	if _, err := n.prepare(claim); ClassOf(err) != ClassHardware || !strings.Contains(err.Error(), "sharing device gpu-0 by MPS, the daemon does not answer") {
		t.Errorf("got %v", err)
	}
	n.expect("failed", nil, nil)
	if len(n.hardware.shares) != 0 {
		t.Errorf("shared are %v", n.hardware.shares)
	}
	n.hardware.shareErr = nil
	n.mustPrepare(claim)
	n.hardware.editErr = errors.New("away")
	if err := n.unprepare(claim); ClassOf(err) != ClassHardware || !strings.Contains(err.Error(), "setting device gpu-0 back, away") {
		t.Errorf("got %v", err)
	}
	n.expect("not set back", nil, []string{string(claim.UID) + "=PrepareCompleted"})
	n.hardware.editErr = nil
	if err := n.unprepare(claim); err != nil || len(n.hardware.shares) != 0 {
		t.Errorf("shared are %v, %v", n.hardware.shares, err)
	}
}

// TestEndedWhileItIsShared: another driver of the node unprepares the claim
// before this one has set its device up. Nothing is left, or, where the claim
// has been begun anew, nothing is taken from it.
func TestEndedWhileItIsShared(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, fails := range []error{nil, errors.New("too slow")} {
			n := newNode(t, 1)
			twin := n.driver()
			claim := n.api.allocateWith("c", slicing, "gpu-0")
			n.hardware.onShare = func() {
				n.hardware.onShare = nil
				n.engine, twin = twin, n.engine
				if err := n.unprepare(claim); err != nil {
					t.Error(err)
				}
				if again {
					n.clock.SetTime(n.clock.Now().Add(time.Second))
					n.mustPrepare(claim)
				}
				n.engine, twin = twin, n.engine
				n.hardware.shareErr = fails
			}
			_, err := n.prepare(claim)
			n.hardware.shareErr = nil
			if !again && err == nil || again && fails == nil && err != nil {
				t.Errorf("again=%v, fails=%v: got %v", again, fails, err)
			}
			want := map[bool]v1alpha1.SharingStrategy{true: v1alpha1.SharingTimeSlicing}[again]
			if got := n.hardware.sharing("gpu-0", claim.UID); got != want {
				t.Errorf("again=%v, fails=%v: it is shared by %q, want %q", again, fails, got, want)
			}
		}
	}
}

// TestClaimsThatShareADevice must want the same, and MPS has it alone.
func TestClaimsThatShareADevice(t *testing.T) {
	for name, test := range map[string]struct {
		first, second string
		fit           bool
	}{
		"as it is":          {exclusive, exclusive, true},
		"the same interval": {slicing, slicing, true},
		"another interval":  {slicing, `{"strategy":"TimeSlicing"}`, false},
		"one as it is":      {exclusive, slicing, false},
		"the other":         {slicing, exclusive, false},
		"two daemons":       {mps, mps, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			of := func(name, sharing string) *resourcev1.ResourceClaim {
				claim := n.api.allocateWith(name, sharing, "gpu-0")
				share := types.UID(name)
				claim.Status.Allocation.Devices.Results[0].ShareID = &share
				return claim
			}
			n.mustPrepare(of("a", test.first))
			_, err := n.prepare(of("b", test.second))
			var held *HeldError
			if test.fit != (err == nil) || !test.fit && (!errors.As(err, &held) || !held.OtherSharing || !strings.Contains(err.Error(), "claim team-a/a (a-uid-1), for which it is set up in another way")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestStraysAreSetBack: what is shared for nobody, at a start and whenever
// claims are collected, each for itself.
func TestStraysAreSetBack(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocateWith("c", mps, "gpu-0")
	n.mustPrepare(claim)
	stray := func() {
		n.hardware.shares[inventory.Share{Device: "gpu-1", Claim: claim.UID}] = v1alpha1.Sharing{}
		n.hardware.shares[inventory.Share{Device: "gpu-1", Claim: "nobody"}] = v1alpha1.Sharing{}
	}
	check := func(when string, left int) {
		t.Helper()
		if got := len(n.hardware.shares); got != left || n.hardware.sharing("gpu-0", claim.UID) != v1alpha1.SharingMPS {
			t.Errorf("%s: shared are %v", when, n.hardware.shares)
		}
	}
	stray()
	n.restart()
	check("restarted", 1)
	stray()
	if err := n.engine.Collect(quiet); err != nil {
		t.Error(err)
	}
	check("collected", 1)
	stray()
	n.hardware.editErr = errors.New("away")
	n.restart() // it is no reason not to start
	check("the hardware is away", 3)
	if err := n.engine.Collect(quiet); ClassOf(err) != ClassHardware {
		t.Errorf("got %v", err)
	}
	n.hardware.editErr = nil
	if err := n.unprepare(&resourcev1.ResourceClaim{}); err != nil {
		t.Error(err)
	}
	check("unprepared another", 3)
}

// TestSharingIsRecorded, and found in the CDI file where the record is lost.
func TestSharingIsRecorded(t *testing.T) {
	n := newNode(t, 2)
	claim := n.api.allocateWith("c", mps, "gpu-0", "gpu-1")
	n.mustPrepare(claim)
	recorded := func() []string {
		held, err := n.engine.Held(quiet)
		if err != nil || held[claim.UID] == nil {
			t.Fatalf("held are %v, %v", held, err)
		}
		var all []string
		for device, sharing := range held[claim.UID].Sharing {
			all = append(all, device+"="+string(sharing.Strategy)+" "+sharing.MPS.PinnedDeviceMemoryLimit.String())
		}
		slices.Sort(all)
		return all
	}
	want := []string{"gpu-0=MPS 1Gi", "gpu-1=MPS 1Gi"}
	if got := recorded(); !slices.Equal(got, want) {
		t.Errorf("recorded are %v, want %v", got, want)
	}
	for name, removed := range map[string]bool{"in the file": true, "in the allocation": false} {
		n.tear(checkpoint.FileName)
		n.tear(checkpoint.PreviousFileName)
		if removed {
			n.api.remove("c")
		}
		n.restart()
		if got := recorded(); !slices.Equal(got, want) {
			t.Errorf("%s: recorded are %v, want %v", name, got, want)
		}
		n.mustPrepare(claim)
		if len(n.hardware.shares) != 2 {
			t.Errorf("%s: shared are %v", name, n.hardware.shares)
		}
	}
}
