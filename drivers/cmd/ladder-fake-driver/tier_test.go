package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"gpuladder.dev/ladder/drivers/checkpoint"
	driverfake "gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// labelled is a node that has these labels, and who follows them.
type labelled struct {
	*tierWatch
	t        *testing.T
	recorder *events.FakeRecorder
	claims   map[types.UID]*checkpoint.Claim
}

func label(t *testing.T, path string, labels map[string]string, objects ...runtime.Object) *labelled {
	t.Helper()
	l := &labelled{t: t, recorder: events.NewFakeRecorder(10)}
	l.tierWatch = &tierWatch{
		client: fake.NewClientset(objects...), catalog: tiers.Default(), path: path, recorder: l.recorder,
		node:        &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}},
		exclusively: func(_ context.Context, f func(map[types.UID]*checkpoint.Claim) error) error { return f(l.claims) },
	}
	pool, err := l.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.hardware = driverfake.NewHardware(t.Context(), pool, nil)
	return l
}

// expect compares the devices and the Events since the last time.
func (l *labelled) expect(when string, devices int, said ...string) {
	l.t.Helper()
	if got := len(l.hardware.Names()); got != devices {
		l.t.Errorf("%s: there are %d devices, want %d", when, got, devices)
	}
	for _, want := range said {
		select {
		case got := <-l.recorder.Events:
			if !strings.Contains(got, want) {
				l.t.Errorf("%s: the Event is %q, want %q", when, got, want)
			}
		default:
			l.t.Errorf("%s: there is no Event %q", when, want)
		}
	}
	if len(l.recorder.Events) > 0 {
		l.t.Errorf("%s: there is another Event, %q", when, <-l.recorder.Events)
	}
}

func (l *labelled) follows(labels map[string]string) {
	l.t.Helper()
	if err := l.follow(l.t.Context(), labels); err != nil {
		l.t.Fatal(err)
	}
}

func tier(name, gpus string) map[string]string {
	labels := map[string]string{tiers.LabelTier: name}
	if gpus != "" {
		labels[tiers.LabelGPUs] = gpus
	}
	return labels
}

func TestTierFollowsTheLabels(t *testing.T) {
	l := label(t, filepath.Join(t.TempDir(), tierFileName), tier("h100", "2"))
	l.expect("at first", 2)
	l.follows(tier("h100", "2"))
	l.expect("the same", 2)
	l.follows(tier("l4", ""))
	l.expect("another tier", 4, "Normal FakeTierChanged The node has 4 GPUs of tier l4 now")
	l.follows(tier("quantum", ""))
	l.expect("a tier that is not there", 4, `Keeping 4 GPUs of tier l4: label gpuladder.dev/fake-tier: there is no tier "quantum"`)
	l.follows(tier("quantum", ""))
	l.expect("once more", 4)
	l.follows(nil)
	l.expect("no label", 4, "Keeping 4 GPUs of tier l4: the node has no label")
	l.follows(tier("l4", "1"))
	l.expect("another number", 1, "Normal FakeTierChanged The node has 1 GPU of tier l4 now")
}

func TestTierDoesNotChangeUnderItsUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), tierFileName)
	allocated := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "waiting"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: "n", Device: "gpu-0"}},
		}}},
	}
	elsewhere := allocated.DeepCopy()
	elsewhere.Name, elsewhere.Status.Allocation.Devices.Results[0].Pool = "elsewhere", "other"
	l := label(t, path, tier("h100", "2"), allocated, elsewhere)
	l.claims = map[types.UID]*checkpoint.Claim{"uid": {Namespace: "team-b", Name: "running"}}
	l.follows(tier("l4", "1"))
	l.expect("prepared", 2, "Keeping 2 GPUs of tier h100: the labels say 1 GPU of tier l4, and claim team-b/running has a device")
	l.claims = nil
	l.follows(tier("l4", "1"))
	l.expect("allocated", 2, "claim team-a/waiting has a device")

	// A driver that starts anew keeps what the node had, and then sees.
	l = label(t, path, tier("l4", "1"), elsewhere)
	l.expect("after a restart", 2)
	l.follows(tier("l4", "1"))
	l.expect("free", 1, "Normal FakeTierChanged The node has 1 GPU of tier l4 now")
	l = label(t, path, tier("l4", "1"))
	l.expect("after another restart", 1)
}

func TestNodeWithoutATier(t *testing.T) {
	l := label(t, filepath.Join(t.TempDir(), tierFileName), nil)
	l.expect("at first", 0, "Warning FakeTierRefused Publishing no devices: the node has no label gpuladder.dev/fake-tier")
	l.follows(tier("t4", "3"))
	l.expect("labelled", 3, "Normal FakeTierChanged The node has 3 GPUs of tier t4 now")
}

func TestRecordsThatCanNotBeUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), tierFileName)
	for _, content := range []string{"torn", `{"Tier":"abacus","GPUs":8}`, `{}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		label(t, path, tier("l4", "1")).expect(content, 1)
	}
}

func TestErrorsOfTheClusterAreTold(t *testing.T) {
	l := label(t, filepath.Join(t.TempDir(), tierFileName), tier("l4", "1"))
	l.exclusively = func(context.Context, func(map[types.UID]*checkpoint.Claim) error) error {
		return errors.New("no checkpoint")
	}
	if err := l.follow(t.Context(), tier("l4", "2")); err == nil {
		t.Error("the tier was changed though no one could say whether it is in use")
	}
	l.expect("afterwards", 1)
}

// TestAClaimIsPreparedMeanwhile: it was not there when the API server was asked,
// and is when the lock is held.
func TestAClaimIsPreparedMeanwhile(t *testing.T) {
	l := label(t, filepath.Join(t.TempDir(), tierFileName), tier("l4", "1"))
	exclusively := l.exclusively
	l.exclusively = func(ctx context.Context, f func(map[types.UID]*checkpoint.Claim) error) error {
		l.claims = map[types.UID]*checkpoint.Claim{"uid": {Namespace: "team-a", Name: "late"}}
		return exclusively(ctx, f)
	}
	l.follows(tier("l4", "2"))
	l.expect("prepared", 1, "claim team-a/late has a device")

	// The change is whole when the lock is given back.
	inside := 0
	l.exclusively = func(_ context.Context, f func(map[types.UID]*checkpoint.Claim) error) error {
		err := f(nil)
		inside = len(l.hardware.Names())
		return err
	}
	l.follows(tier("l4", "2"))
	l.expect("free", 2, "FakeTierChanged")
	if inside != 2 {
		t.Errorf("under the lock there are %d devices", inside)
	}
}

// TestAPoolThatWasLookedUpBefore is no base to prepare a claim on, in this
// driver and in the other one of a rolling update.
func TestAPoolThatWasLookedUpBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), tierFileName)
	first, second := label(t, path, tier("h100", "2")), label(t, path, tier("h100", "2"))
	pool := func(l *labelled) inventory.Pool {
		pool, err := l.hardware.Pool(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	before := pool(first)
	if err := errors.Join(first.settled(t.Context(), before), second.settled(t.Context(), before)); err != nil {
		t.Errorf("nothing has changed: %v", err)
	}
	first.follows(tier("l4", "2"))
	for name, l := range map[string]*labelled{"this driver": first, "the other": second} {
		if err := l.settled(t.Context(), before); !errors.Is(err, errReplaced) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := first.settled(t.Context(), pool(first)); err != nil {
		t.Error(err)
	}
	// A claim is prepared by the one that has changed, and the other follows all
	// the same.
	second.claims = map[types.UID]*checkpoint.Claim{"uid": {Namespace: "team-a", Name: "new"}}
	second.follows(tier("l4", "2"))
	second.expect("the other", 2, "Normal FakeTierChanged The node has 2 GPUs of tier l4 now")
	if err := second.settled(t.Context(), pool(second)); err != nil {
		t.Error(err)
	}
	// Without the record each goes by what it has.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := second.settled(t.Context(), pool(second)); err != nil {
		t.Error(err)
	}
	if err := second.settled(t.Context(), before); !errors.Is(err, errReplaced) {
		t.Errorf("got %v", err)
	}
}

// TestAChangeThatCanNotBeRecorded is made when it can.
func TestAChangeThatCanNotBeRecorded(t *testing.T) {
	folder := t.TempDir()
	l := label(t, filepath.Join(folder, tierFileName), tier("l4", "1"))
	l.path = filepath.Join(folder, "gone", tierFileName)
	if err := l.follow(t.Context(), tier("l4", "2")); err == nil {
		t.Error("it was recorded nowhere")
	}
	l.expect("not recorded", 1)
	if err := os.Mkdir(filepath.Dir(l.path), 0o700); err != nil {
		t.Fatal(err)
	}
	l.follows(tier("l4", "2"))
	l.expect("recorded", 2, "FakeTierChanged")
}
