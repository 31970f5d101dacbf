package engine

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// TestRandomSchedules runs random sequences of what can happen to a node and
// holds the engine against a naive model: who may be running on which device.
func TestRandomSchedules(t *testing.T) {
	// Syncing costs nothing in memory, and no machine crashes here.
	folder := "/dev/shm"
	if _, err := os.Stat(folder); err != nil {
		folder = ""
	}
	rapid.Check(t, func(t *rapid.T) {
		place, err := os.MkdirTemp(folder, "engine")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(place) }()
		m := &model{
			t: t, node: nodeIn(t, place, 2),
			live: map[types.UID]*resourcev1.ResourceClaim{}, running: map[types.UID]*resourcev1.ResourceClaim{},
			touched: map[types.UID]*resourcev1.ResourceClaim{},
		}
		m.twin = m.driver()
		t.Repeat(map[string]func(*rapid.T){
			"allocate":     m.allocate,
			"prepare":      m.prepareAny,
			"unprepare":    m.unprepareAny,
			"finish":       m.finish,
			"delete force": m.deleteByForce,
			"restart":      func(*rapid.T) { m.restart() },
			"reboot":       m.reboot,
			"lose":         m.lose,
			"collect":      m.collect,
			"swap drivers": func(*rapid.T) { m.engine, m.twin = m.twin, m.engine },
			"":             m.check,
		})
		m.end()
	})
}

// model is what an observer who sees API server and containers knows.
type model struct {
	*node
	t      *rapid.T
	twin   *Engine
	serial int
	// live claims are in the API server, allocated. No two have one device.
	live map[types.UID]*resourcev1.ResourceClaim
	// running claims have been prepared with success, and their containers may
	// run until kubelet asks to unprepare them.
	running map[types.UID]*resourcev1.ResourceClaim
	// touched claims may have left something on the node.
	touched map[types.UID]*resourcev1.ResourceClaim
}

// boards of devices: two on one board exclude each other but for two halves.
func excludes(a, b string) bool {
	if a == b {
		return true
	}
	mig := func(name string) bool { return name[:3] == "mig" }
	return mig(a) && mig(b) && (a == "mig-whole" || b == "mig-whole")
}

func clash(a, b *resourcev1.ResourceClaim) bool {
	for _, x := range a.Status.Allocation.Devices.Results {
		for _, y := range b.Status.Allocation.Devices.Results {
			if excludes(x.Device, y.Device) {
				return true
			}
		}
	}
	return false
}

func (m *model) clashes(claim *resourcev1.ResourceClaim, with map[types.UID]*resourcev1.ResourceClaim) bool {
	for uid, other := range with {
		if uid != claim.UID && clash(claim, other) {
			return true
		}
	}
	return false
}

// pick draws a claim, if there is one.
func pick(t *rapid.T, from map[types.UID]*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	if len(from) == 0 {
		t.Skip("there is none")
	}
	var uids []types.UID
	for uid := range from {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return from[rapid.SampledFrom(uids).Draw(t, "claim")]
}

func (m *model) allocate(t *rapid.T) {
	devices := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"gpu-0", "gpu-1", "mig-a", "mig-b", "mig-whole"}), 1, 2, rapid.ID).Draw(t, "devices")
	if len(devices) == 2 && excludes(devices[0], devices[1]) {
		t.Skip("no scheduler would")
	}
	m.serial++
	// Names come again, as those of StatefulSets do; UIDs do not.
	sharing := rapid.SampledFrom([]string{"", mps, `{"strategy":"TimeSlicing"}`, `{"strategy":"Exclusive"}`}).Draw(t, "sharing")
	name := fmt.Sprintf("c%d", m.serial%4)
	for _, other := range m.live {
		if other.Name == name {
			t.Skip("the name is taken")
		}
	}
	claim := m.api.allocate(name, devices...)
	if sharing != "" {
		claim = m.api.allocateWith(name, sharing, devices...)
	}
	if m.clashes(claim, m.live) {
		m.api.remove(name)
		t.Skip("a device is taken")
	}
	m.live[claim.UID] = claim
}

// attempt runs something that may crash; it says whether it did not.
func (m *model) attempt(t *rapid.T, what func()) bool {
	m.hooks.crash = rapid.SampledFrom(append([]Point{"", "", "", ""}, Points()...)).Draw(t, "crash at")
	survived := alive(what)
	m.hooks.crash = ""
	if !survived {
		m.restart()
	}
	return survived
}

func (m *model) prepareAny(t *rapid.T) {
	claim := pick(t, m.live)
	var err error
	_, running := m.running[claim.UID]
	mustRefuse, mayRefuse := m.clashes(claim, m.running), m.clashes(claim, m.touched)
	m.touched[claim.UID] = claim
	if !m.attempt(t, func() { _, err = m.prepare(claim) }) {
		return
	}
	switch {
	case err == nil && mustRefuse:
		t.Fatalf("claim %s was given a device of a claim that runs", claim.UID)
	case err == nil:
		m.running[claim.UID] = claim
	case running:
		t.Fatalf("claim %s was prepared before, and now: %v", claim.UID, err)
	case ClassOf(err) != ClassDeviceHeld || !mayRefuse:
		t.Fatalf("claim %s: %v", claim.UID, err)
	}
}

func (m *model) unprepareAny(t *rapid.T) { m.end1(t, pick(t, m.touched)) }

// end1 is kubelet when a claim's containers are gone.
func (m *model) end1(t *rapid.T, claim *resourcev1.ResourceClaim) (done bool) {
	delete(m.running, claim.UID)
	var err error
	if !m.attempt(t, func() { err = m.unprepare(claim) }) {
		return false
	}
	if err != nil {
		t.Fatalf("unpreparing %s: %v", claim.UID, err)
	}
	delete(m.touched, claim.UID)
	return true
}

// finish is a Pod that ends as it should.
func (m *model) finish(t *rapid.T) {
	claim := pick(t, m.live)
	if m.end1(t, claim) {
		m.api.remove(claim.Name)
		delete(m.live, claim.UID)
	}
}

// deleteByForce frees the devices in the API server; the containers run on.
func (m *model) deleteByForce(t *rapid.T) {
	claim := pick(t, m.live)
	m.api.remove(claim.Name)
	delete(m.live, claim.UID)
}

func (m *model) reboot(t *rapid.T) {
	m.serial++
	m.boot(fmt.Sprintf("boot-%d", m.serial))
	if rapid.Bool().Draw(t, "CDI on tmpfs") {
		for _, uid := range m.files() {
			if err := os.Remove(m.engine.CDI.Path(types.UID(uid))); err != nil {
				t.Fatal(err)
			}
		}
	}
	clear(m.running)
	clear(m.touched)
	m.restart()
	m.twin = m.driver()
}

func (m *model) lose(t *rapid.T) {
	which := rapid.SampledFrom([][]string{{checkpoint.FileName}, {checkpoint.PreviousFileName}, {checkpoint.FileName, checkpoint.PreviousFileName}}).Draw(t, "files")
	for _, name := range which {
		m.tear(name)
	}
	if rapid.Bool().Draw(t, "and restart") {
		m.restart()
	}
}

// collect lets more time pass than any Pod takes to end.
func (m *model) collect(t *rapid.T) {
	for range 2 {
		if err := m.engine.Collect(quiet); err != nil {
			t.Fatal(err)
		}
		m.clock.SetTime(m.clock.Now().Add(11 * time.Minute))
	}
	for uid := range m.touched {
		if m.live[uid] == nil {
			delete(m.running, uid)
			delete(m.touched, uid)
		}
	}
}

// check holds at all times: what runs has its file, and its devices are shared
// as it wants; nothing else is.
func (m *model) check(t *rapid.T) {
	for uid, claim := range m.running {
		want := v1alpha1.SharingStrategy("")
		if configs := claim.Status.Allocation.Devices.Config; len(configs) > 0 {
			read, err := v1alpha1.DecodeGPUConfig(configs[0].Opaque.Parameters.Raw)
			if err != nil {
				t.Fatal(err)
			}
			if want = read.Sharing.Strategy; want == v1alpha1.SharingExclusive {
				want = ""
			}
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if got := m.hardware.sharing(result.Device, uid); got != want {
				t.Fatalf("device %s of claim %s, which runs, is shared by %q, want %q", result.Device, uid, got, want)
			}
		}
	}
	for share := range m.hardware.shares {
		if m.touched[share.Claim] == nil {
			t.Fatalf("claim %s is over and device %s still shared for it", share.Claim, share.Device)
		}
	}
	files := m.files()
	for uid := range m.running {
		if !slices.Contains(files, string(uid)) {
			t.Fatalf("claim %s runs and has no CDI file; there are %v", uid, files)
		}
	}
	for _, uid := range files {
		if m.touched[types.UID(uid)] == nil {
			t.Fatalf("claim %s is over and has a CDI file", uid)
		}
	}
}

// end unprepares all: then nothing is left, and every device is free.
func (m *model) end() {
	m.hooks.crash = ""
	m.restart()
	for _, claims := range []map[types.UID]*resourcev1.ResourceClaim{m.touched, m.live} {
		for _, claim := range claims {
			if err := m.unprepare(claim); err != nil {
				m.t.Fatal(err)
			}
			m.api.remove(claim.Name)
		}
	}
	// What was only guessed, after the checkpoint was lost, goes by itself.
	if err := m.engine.Collect(quiet); err != nil {
		m.t.Fatal(err)
	}
	m.expect("in the end", nil, nil)
	if len(m.hardware.shares) != 0 {
		m.t.Fatalf("in the end devices are shared: %v", m.hardware.shares)
	}
	for _, device := range []string{"gpu-0", "gpu-1", "mig-whole"} {
		m.mustPrepare(m.api.allocate("last-"+device, device))
	}
}
