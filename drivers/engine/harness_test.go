package engine

// This file is a node to test on: hardware, API server, disk, and a driver that
// can be killed.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	testingclock "k8s.io/utils/clock/testing"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/cdi"
	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

const (
	driver = "gpu.gpuladder.dev"
	pool   = "node-1"
)

// quiet is a context without a log: nobody reads thousands of lines.
var quiet = klog.NewContext(context.Background(), klog.New(nil))

// fataler is what a *testing.T and a *rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// node outlives its drivers.
type node struct {
	t        fataler
	data     string
	cdi      string
	bootFile string
	clock    *testingclock.FakePassiveClock
	hardware *hardware
	api      *api
	observer *observer
	hooks    *hooks
	engine   *Engine
}

func newNode(t *testing.T, gpus int) *node {
	t.Helper()
	return nodeIn(t, t.TempDir(), gpus)
}

func nodeIn(t fataler, folder string, gpus int) *node {
	t.Helper()
	n := &node{
		t: t, data: filepath.Join(folder, "data"), cdi: filepath.Join(folder, "cdi"), bootFile: filepath.Join(folder, "boot_id"),
		clock:    testingclock.NewFakePassiveClock(time.Date(2026, 11, 29, 18, 0, 0, 0, time.UTC)),
		hardware: newHardware(gpus), api: &api{claims: map[string]*resourcev1.ResourceClaim{}}, observer: &observer{}, hooks: &hooks{},
	}
	for _, made := range []string{n.data, n.cdi} {
		if err := os.MkdirAll(made, 0o700); err != nil {
			t.Fatalf("%v", err)
		}
	}
	n.boot("boot-1")
	n.restart()
	return n
}

// boot gives the node another boot ID. No setting of a device outlives it.
func (n *node) boot(id string) {
	n.t.Helper()
	clear(n.hardware.shares)
	if err := os.WriteFile(n.bootFile, []byte(id+"\n"), 0o600); err != nil {
		n.t.Fatalf("%v", err)
	}
}

// driver makes another driver on the node.
func (n *node) driver() *Engine {
	return New(Config{
		Driver: driver, Pool: pool, Store: checkpoint.NewStore(n.data), CDI: cdi.NewFolder(n.cdi, driver),
		Hardware: n.hardware, Sharer: n.hardware, Claims: n.api, Observer: n.observer, Clock: n.clock,
		BootIDFile: n.bootFile, StaleAfter: 10 * time.Minute, Hooks: n.hooks,
	})
}

// restart replaces the node's driver.
func (n *node) restart() {
	n.t.Helper()
	n.engine = n.driver()
	if err := n.engine.Start(quiet); err != nil {
		n.t.Fatalf("starting: %v", err)
	}
}

// crashed is what a hook panics with in the place of a killed process.
type crashed struct{}

// alive runs f and says whether the driver survived it.
func alive(f func()) (survived bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ours := r.(crashed); !ours {
				panic(r)
			}
			survived = false
		}
	}()
	f()
	return true
}

type hooks struct {
	mu     sync.Mutex
	crash  Point
	fail   map[Point]error
	called []Point
	then   func(Point)
}

func (h *hooks) At(_ context.Context, point Point, _ types.UID) error {
	h.mu.Lock()
	h.called = append(h.called, point)
	crash, err, then := h.crash == point, h.fail[point], h.then
	if crash {
		h.crash = ""
	}
	h.mu.Unlock()
	if then != nil {
		then(point)
	}
	if crash {
		panic(crashed{})
	}
	return err
}

// hardware has gpus whole devices, and board "mig-0" in two halves.
type hardware struct {
	mu       sync.Mutex
	pool     inventory.Pool
	troubles map[string]string
	severity map[string]inventory.Severity
	err      error
	editErr  error
	onEdits  func()
	released []string
	shares   map[inventory.Share]v1alpha1.Sharing
	shareErr error
	onShare  func()
}

func newHardware(gpus int) *hardware {
	h := &hardware{troubles: map[string]string{}, severity: map[string]inventory.Severity{}}
	model := "H100"
	for i := range gpus {
		h.pool.Devices = append(h.pool.Devices, resourcev1.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}},
		})
	}
	counters := func(amount string) map[string]resourcev1.Counter {
		return map[string]resourcev1.Counter{"slices": {Value: resource.MustParse(amount)}}
	}
	h.pool.SharedCounters = []resourcev1.CounterSet{{Name: "board", Counters: counters("2")}}
	for name, amount := range map[string]string{"mig-a": "1", "mig-b": "1", "mig-c": "1", "mig-whole": "2"} {
		h.pool.Devices = append(h.pool.Devices, resourcev1.Device{
			Name: name, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "board", Counters: counters(amount)}},
		})
	}
	return h
}

func (h *hardware) Pool(context.Context) (inventory.Pool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pool.DeepCopy(), h.err
}

func (h *hardware) Trouble(device string) (inventory.Severity, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.severity[device], h.troubles[device]
}

func (h *hardware) Edits(_ context.Context, device string) (specs.ContainerEdits, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.onEdits != nil {
		h.onEdits()
	}
	return specs.ContainerEdits{Env: []string{"OF=" + device}}, h.editErr
}

func (h *hardware) Release(_ context.Context, device string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = append(h.released, device)
	return h.editErr
}

// Share keeps what it is asked for also where it fails: a Share that fails may
// have come half of its way.
func (h *hardware) Share(_ context.Context, device string, claim types.UID, sharing v1alpha1.Sharing) (specs.ContainerEdits, error) {
	h.mu.Lock()
	onShare := h.onShare
	h.mu.Unlock()
	if onShare != nil {
		onShare()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shares == nil {
		h.shares = map[inventory.Share]v1alpha1.Sharing{}
	}
	h.shares[inventory.Share{Device: device, Claim: claim}] = sharing
	return specs.ContainerEdits{Env: []string{"SHARED=" + string(sharing.Strategy)}}, h.shareErr
}

func (h *hardware) Unshare(_ context.Context, device string, claim types.UID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.editErr != nil {
		return h.editErr
	}
	delete(h.shares, inventory.Share{Device: device, Claim: claim})
	return nil
}

func (h *hardware) Shared(context.Context) ([]inventory.Share, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.shares)), nil
}

// sharing of a device for a claim, or "".
func (h *hardware) sharing(device string, claim types.UID) v1alpha1.SharingStrategy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shares[inventory.Share{Device: device, Claim: claim}].Strategy
}

// api is the API server.
type api struct {
	mu     sync.Mutex
	claims map[string]*resourcev1.ResourceClaim
	err    error
	serial int
}

func (a *api) Get(_ context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claims[namespace+"/"+name].DeepCopy(), a.err
}

func (a *api) List(context.Context) ([]*resourcev1.ResourceClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*resourcev1.ResourceClaim
	for _, claim := range a.claims {
		all = append(all, claim.DeepCopy())
	}
	return all, a.err
}

// allocate makes a claim that has devices and is reserved for a Pod.
func (a *api) allocate(name string, devices ...string) *resourcev1.ResourceClaim {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serial++
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(fmt.Sprintf("%s-uid-%d", name, a.serial))},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: "pod"}},
		},
	}
	for _, device := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "accelerator/h100", Driver: driver, Pool: pool, Device: device})
	}
	a.claims[claim.Namespace+"/"+name] = claim
	return claim.DeepCopy()
}

// allocateWith is allocate for a claim with parameters: what they say of sharing.
func (a *api) allocateWith(name, sharing string, devices ...string) *resourcev1.ResourceClaim {
	claim := a.allocate(name, devices...)
	a.mu.Lock()
	defer a.mu.Unlock()
	stored := a.claims[claim.Namespace+"/"+name]
	stored.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{
		parameters(resourcev1.AllocationConfigSourceClaim, sharing),
	}
	return stored.DeepCopy()
}

// parameters of a claim or a class, for some requests or with none for all.
func parameters(source resourcev1.AllocationConfigSource, sharing string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	raw := `{"apiVersion":"gpuladder.dev/v1alpha1","kind":"GPUConfig","sharing":` + sharing + `}`
	return resourcev1.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)},
		}},
	}
}

func (a *api) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claims, "team-a/"+name)
}

type observer struct {
	mu        sync.Mutex
	prepared  []error
	recovered []checkpoint.Origin
	rebooted  []int
	collected []string
	holding   int
}

func (o *observer) Prepared(_ types.NamespacedName, _ time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prepared = append(o.prepared, err)
}
func (o *observer) Unprepared(types.NamespacedName, time.Duration, error) {}
func (o *observer) Holding(claims int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holding = claims
}

func (o *observer) Recovered(from checkpoint.Origin, _ error, _ int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recovered = append(o.recovered, from)
}

func (o *observer) Rebooted(claims int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rebooted = append(o.rebooted, claims)
}

func (o *observer) Collected(claim types.NamespacedName, _ types.UID, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.collected = append(o.collected, claim.Name+": "+why)
}

// prepare prepares one claim.
func (n *node) prepare(claim *resourcev1.ResourceClaim) ([]kubeletplugin.Device, error) {
	result := n.engine.Prepare(quiet, []*resourcev1.ResourceClaim{claim})[claim.UID]
	return result.Devices, result.Err
}

func (n *node) mustPrepare(claim *resourcev1.ResourceClaim) []kubeletplugin.Device {
	n.t.Helper()
	devices, err := n.prepare(claim)
	if err != nil {
		n.t.Fatalf("preparing: %v", err)
	}
	return devices
}

func (n *node) unprepare(claim *resourcev1.ResourceClaim) error {
	return n.engine.Unprepare(quiet, []kubeletplugin.NamespacedObject{{
		UID: claim.UID, NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
	}})[claim.UID]
}

// files are the CDI files there are, by the UID in their names.
func (n *node) files() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.cdi)
	if err != nil {
		n.t.Fatalf("%v", err)
	}
	var uids []string
	for _, entry := range entries {
		uids = append(uids, strings.TrimSuffix(strings.TrimPrefix(entry.Name(), "gpu.gpuladder.dev-claim_"), ".json"))
	}
	return uids
}

// record is what the checkpoint has, read past the engine: uid=phase.
func (n *node) record() []string {
	n.t.Helper()
	loaded, err := checkpoint.NewStore(n.data).Load()
	if err != nil || loaded.Origin == checkpoint.Lost {
		n.t.Fatalf("loading checkpoint: %v, %v", loaded.Problem, err)
	}
	var all []string
	for uid, claim := range loaded.State.Claims {
		all = append(all, fmt.Sprintf("%s=%s", uid, claim.Phase))
	}
	slices.Sort(all)
	return all
}

// expect compares the files and the record.
func (n *node) expect(when string, files, record []string) {
	n.t.Helper()
	if got := n.files(); !slices.Equal(got, files) {
		n.t.Errorf("%s: CDI files are %v, want %v", when, got, files)
	}
	if got := n.record(); !slices.Equal(got, record) {
		n.t.Errorf("%s: recorded are %v, want %v", when, got, record)
	}
}

// tear cuts a file of the checkpoint.
func (n *node) tear(name string) {
	n.t.Helper()
	path := filepath.Join(n.data, name)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = os.Truncate(path, info.Size()/2)
	}
	if err != nil {
		n.t.Fatalf("%v", err)
	}
}
