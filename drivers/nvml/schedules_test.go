package nvml

// This file runs random schedules of what can happen to a node, with partitions
// and time slicing over the simulated library, and with the fake driver's
// hardware: which containers may be running is all that the test knows.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/tiers"
)

// fainting ends a call of the engine at a point, as a kill ends the process; the
// process lives on, so that hundreds of schedules can be run.
type fainting struct{ at engine.Point }

// fainted is what it panics with.
type fainted struct{}

func (f *fainting) At(_ context.Context, point engine.Point, _ types.UID) error {
	if f.at == point {
		f.at = ""
		panic(fainted{})
	}
	return nil
}

// survives runs f and says whether nothing ended it.
func survives(f func()) (survived bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ours := r.(fainted); !ours {
				panic(r)
			}
		}
	}()
	f()
	return true
}

// schedule is one run, and what someone knows who sees API server and containers.
type schedule struct {
	*testing.T
	*disk
	random *rand.Rand
	hooks  *fainting
	drives func() *driver // another driver
	boots  func()
	*driver

	devices  []string
	sharings []string
	serial   int
	steps    []string
	// live claims are in the API server, no two with what excludes each other;
	// running ones were prepared with success and not unprepared since; touched
	// ones may have left something.
	live, running, touched map[types.UID]*resourcev1.ResourceClaim
}

// collide says whether two devices can't be used at once: the same, or a board
// and a partition of it, or partitions on the same memory.
func collide(a, b string) bool {
	gpuA, partA, _ := strings.Cut(a, "-mig-")
	gpuB, partB, _ := strings.Cut(b, "-mig-")
	if gpuA != gpuB {
		return false
	}
	lower := func(part string) bool { return strings.HasSuffix(part, "-0") }
	return partA == "" || partB == "" || lower(partA) == lower(partB)
}

func devicesOf(claim *resourcev1.ResourceClaim) (names []string) {
	for _, result := range claim.Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return names
}

func collides(claim *resourcev1.ResourceClaim, with map[types.UID]*resourcev1.ResourceClaim) bool {
	for uid, other := range with {
		for _, a := range devicesOf(claim) {
			if uid != claim.UID && slices.ContainsFunc(devicesOf(other), func(b string) bool { return collide(a, b) }) {
				return true
			}
		}
	}
	return false
}

func (s *schedule) pick(from map[types.UID]*resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	var uids []types.UID
	for uid := range from {
		uids = append(uids, uid)
	}
	if len(uids) == 0 {
		return nil
	}
	slices.Sort(uids)
	return from[uids[s.random.IntN(len(uids))]]
}

func (s *schedule) fail(format string, args ...any) {
	s.Helper()
	s.Fatalf("%s\nafter: %s", fmt.Sprintf(format, args...), strings.Join(s.steps, ", "))
}

// step is one thing that happens.
func (s *schedule) step() {
	s.serial++
	switch what := s.random.IntN(20); {
	case what < 6:
		s.allocate()
	case what < 12:
		s.prepareOne()
	case what < 16:
		s.unprepareOne(s.pick(s.touched))
	case what < 17:
		if claim := s.pick(s.live); claim != nil { // deleted by force: its containers run on
			s.steps = append(s.steps, "delete "+claim.Name)
			s.forget(claim)
		}
	case what < 18:
		s.steps = append(s.steps, "restart")
		s.restart()
	case what < 19:
		s.lose()
	default:
		s.steps = append(s.steps, "boot")
		s.stop()
		s.boots()
		must(s.T, os.WriteFile(s.Boot, fmt.Appendf(nil, "boot-%d\n", s.serial), 0o600))
		clear(s.running)
		clear(s.touched)
		s.restart()
	}
	s.check()
}

func (s *schedule) forget(claim *resourcev1.ResourceClaim) {
	claims(s.API).remove(s.T, claim.UID)
	delete(s.live, claim.UID)
}

func (s *schedule) restart() {
	s.stop()
	s.hooks.at = ""
	s.driver = s.drives()
}

// lose tears the checkpoint, or all of it.
func (s *schedule) lose() {
	names := []string{checkpoint.FileName, checkpoint.PreviousFileName}[:1+s.random.IntN(2)]
	s.steps = append(s.steps, fmt.Sprint("lose ", names))
	for _, name := range names {
		path := filepath.Join(s.Data, name)
		if info, err := os.Stat(path); err == nil {
			must(s.T, os.Truncate(path, info.Size()/2))
		}
	}
	s.restart()
}

func (s *schedule) allocate() {
	devices := []string{s.devices[s.random.IntN(len(s.devices))]}
	if other := s.devices[s.random.IntN(len(s.devices))]; s.random.IntN(3) == 0 && !collide(devices[0], other) {
		devices = append(devices, other)
	}
	claim := allocated(fmt.Sprintf("c%d", s.serial), fmt.Sprintf("uid-%d", s.serial), s.sharings[s.random.IntN(len(s.sharings))], devices...)
	if collides(claim, s.live) {
		return // no scheduler would
	}
	s.steps = append(s.steps, fmt.Sprint("allocate ", claim.Name, devices))
	s.live[claim.UID] = claims(s.API).add(s.T, claim)
}

// maybe runs a call that may be ended at one of the points.
func (s *schedule) maybe(call func() error) (err error, survived bool) {
	if s.random.IntN(2) == 0 {
		s.hooks.at = engine.Points()[s.random.IntN(len(engine.Points()))]
		s.steps[len(s.steps)-1] += " killed at " + string(s.hooks.at)
	}
	if !survives(func() { err = call() }) {
		s.restart()
		return nil, false
	}
	s.hooks.at = ""
	return err, true
}

func (s *schedule) prepareOne() {
	claim := s.pick(s.live)
	if claim == nil {
		return
	}
	s.steps = append(s.steps, "prepare "+claim.Name)
	mustRefuse, mayRefuse := collides(claim, s.running), collides(claim, s.touched)
	s.touched[claim.UID] = claim
	call := func() error { _, err := s.prepare(claim); return err }
	err, survived := s.maybe(call)
	// What was left on a board by a claim that nobody knows any more is taken away
	// in a while; kubelet asks again.
	for end := time.Now().Add(20 * time.Second); survived && err != nil && !mayRefuse && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		err = call()
	}
	switch {
	case !survived:
	case err == nil && mustRefuse:
		s.fail("claim %s was given a device of a claim that runs", claim.Name)
	case err == nil:
		s.running[claim.UID] = claim
	case s.running[claim.UID] != nil || !mayRefuse:
		s.fail("claim %s: %v", claim.Name, err)
	}
}

func (s *schedule) unprepareOne(claim *resourcev1.ResourceClaim) {
	if claim == nil {
		return
	}
	s.steps = append(s.steps, "unprepare "+claim.Name)
	delete(s.running, claim.UID)
	err, survived := s.maybe(func() error { return s.unprepare(claim) })
	if err != nil {
		s.fail("unpreparing %s: %v", claim.Name, err)
	}
	if survived {
		delete(s.touched, claim.UID)
		if s.live[claim.UID] != nil {
			s.forget(claim)
		}
	}
}

// files are the claims that have a CDI file.
func (s *schedule) files() (uids []types.UID) {
	entries, err := os.ReadDir(s.CDI)
	must(s.T, err)
	for _, entry := range entries {
		uids = append(uids, types.UID(strings.TrimSuffix(strings.TrimPrefix(entry.Name(), "gpu.gpuladder.dev-claim_"), ".json")))
	}
	return uids
}

// check holds at all times: what runs has its file, its partitions and its
// turns; what is over has no file.
func (s *schedule) check() {
	files, instances := s.files(), s.instances(s.T)
	shared, err := s.gpus.(inventory.Sharer).Shared(muted)
	must(s.T, err)
	_, simulated := s.gpus.(*Inventory)
	for uid, claim := range s.running {
		if !slices.Contains(files, uid) {
			s.fail("claim %s runs and has no CDI file", claim.Name)
		}
		for _, device := range devicesOf(claim) {
			if at := s.instanceOf(device); simulated && at != "" && !slices.Contains(instances, at) {
				s.fail("claim %s runs on %s, which is not there: %v", claim.Name, device, instances)
			}
			sharing := len(claim.Status.Allocation.Devices.Config) > 0
			if simulated && sharing && !slices.Contains(shared, inventory.Share{Device: device, Claim: uid}) {
				s.fail("claim %s runs on %s, which is not shared for it: %v", claim.Name, device, shared)
			}
		}
	}
	for _, uid := range files {
		if s.touched[uid] == nil {
			s.fail("claim %s is over and has a CDI file", uid)
		}
	}
}

// instanceOf is the instance that a device is, as [disk.instances] says it.
func (s *schedule) instanceOf(device string) string {
	name, part, is := strings.Cut(device, "-mig-")
	index := slices.Index(s.devices, name) / (len(s.devices) / 2)
	switch {
	case is:
		words := strings.Split(part, "-")
		return fmt.Sprintf("GPU %d profile %s at %s with 1", index, words[len(words)-2], words[len(words)-1])
	case len(s.devices) > 2:
		return fmt.Sprintf("GPU %d profile 0 at 0 with 1", index)
	}
	return ""
}

// end unprepares all: then nothing is left.
func (s *schedule) end() {
	s.steps = append(s.steps, "end")
	s.restart()
	for _, all := range []map[types.UID]*resourcev1.ResourceClaim{s.touched, s.live} {
		for _, claim := range all {
			if err := s.unprepare(claim); err != nil {
				s.fail("unpreparing %s: %v", claim.Name, err)
			}
			claims(s.API).remove(s.T, claim.UID)
		}
	}
	must(s.T, s.Collect(muted)) // what was only guessed goes by itself
	if held, err := s.Held(muted); err != nil || len(held) > 0 || len(s.files()) > 0 {
		s.fail("in the end there are claims %v, files %v, %v", held, s.files(), err)
	}
	if shared, err := s.gpus.(inventory.Sharer).Shared(muted); err != nil || len(shared) > 0 {
		s.fail("in the end devices are shared: %v, %v", shared, err)
	}
	for until := time.Now().Add(20 * time.Second); len(s.instances(s.T)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			s.fail("in the end there are %v", s.instances(s.T))
		}
	}
	s.stop()
}

// inMemory is where syncing costs nothing; no machine crashes here.
func inMemory(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "schedules")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// schedules is how many are run with each hardware, and of how many steps.
const schedules, stepsOfEach = 200, 14

// TestRandomSchedules: with the seed in a failure's name it comes again.
func TestRandomSchedules(t *testing.T) {
	slicing := []string{"", `{"strategy":"TimeSlicing"}`, `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`}
	for name, test := range map[string]struct {
		board    string
		sharings []string
		first    uint64
		count    int
	}{
		"partitions":   {"h100-mig", []string{""}, 0, schedules / 2},
		"time slicing": {"h100", slicing, schedules / 2, schedules / 2},
		"fake":         {"", slicing[:1], 0, schedules},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			folder := inMemory(t)
			ctx, cancel := context.WithCancel(muted)
			var ended sync.WaitGroup
			defer func() { cancel(); ended.Wait() }()
			d, gpus := &disk{}, []string{"gpu-0", "gpu-1"}
			if test.board != "" {
				programs := ""
				if len(test.sharings) > 1 {
					programs = standIn(t)
				}
				d = newDisk(t, folder, test.board, programs)
				installed, err := fakenvml.Control{Dir: d.Boards}.Installed()
				must(t, err)
				gpus = []string{installed[0].Name(), installed[1].Name()}
			}
			for seed := test.first; seed < test.first+uint64(test.count); seed++ {
				d.fresh(t, folder, fmt.Sprint(seed))
				s := &schedule{
					T: t, disk: d, random: rand.New(rand.NewPCG(seed, 0)), hooks: &fainting{}, sharings: test.sharings, steps: []string{fmt.Sprint("seed ", seed)},
					live: map[types.UID]*resourcev1.ResourceClaim{}, running: map[types.UID]*resourcev1.ResourceClaim{}, touched: map[types.UID]*resourcev1.ResourceClaim{},
				}
				s.drives = func() *driver {
					made, err := d.drive(ctx, s.hooks, false, &ended)
					must(t, err)
					return made
				}
				s.boots = func() { must(t, fakenvml.Control{Dir: d.Boards}.Reboot()) }
				if test.board == "" {
					s.drives, s.boots = s.fakeDriver, func() {}
				}
				for _, gpu := range gpus {
					s.devices = append(s.devices, gpu)
					if test.board != "h100" {
						s.devices = append(s.devices, gpu+"-mig-3g40gb-9-0", gpu+"-mig-3g40gb-9-4", gpu+"-mig-1g10gb-19-0")
					}
				}
				s.driver = s.drives()
				if _, err := s.gpus.(inventory.Sharer).Shared(muted); errors.Is(err, syscall.EPERM) {
					t.Skip("a driver root needs the right to mount and to change the root folder")
				}
				for range stepsOfEach {
					s.step()
				}
				s.end()
			}
		})
	}
}

// fakeDriver drives hardware that does not exist.
func (s *schedule) fakeDriver() *driver {
	pool, err := tiers.Default().Pool("node-1", tiers.Choice{Tier: "h100-mig", GPUs: 2})
	must(s.T, err)
	made := s.newEngine(fake.NewHardware(muted, pool, nil), s.hooks)
	made.stop = func() {}
	must(s.T, made.Start(muted))
	return made
}
