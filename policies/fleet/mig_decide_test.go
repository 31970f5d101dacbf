package fleet_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/fleet"
)

var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// taker gives devices to one Pod after another.
type taker struct {
	t     *testing.T
	state *decide.State
	count int
}

func newTaker(t *testing.T, f *fleet.Fleet, spec v1alpha1.AcceleratorPolicySpec) *taker {
	t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}
	policy.Default()
	if errs := policy.Spec.Validate(nil); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	taker := &taker{t: t, state: decide.NewState(decide.Options{Examples: -1})}
	for _, node := range f.Nodes() {
		taker.must(taker.state.Put(node))
	}
	for _, slice := range f.Slices() {
		taker.must(taker.state.Put(slice))
	}
	taker.must(taker.state.Put(policy))
	return taker
}

func (k *taker) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// next decides for one more Pod, and takes what it gets.
func (k *taker) next() *decide.Decision {
	k.t.Helper()
	k.count++
	name := fmt.Sprintf("pod-%d", k.count)
	k.must(k.state.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(epoch),
			Labels: map[string]string{v1alpha1.LabelPolicy: "p"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}))
	d, err := k.state.Decide(decide.Query{Pod: types.NamespacedName{Namespace: "team-a", Name: name}, Now: epoch})
	k.must(err)
	if d.Outcome == v1alpha1.OutcomeAllocated {
		k.must(k.state.Assume(d, false))
	}
	return d
}

func partitioned(gpus int) *fleet.Fleet {
	return fleet.New(fleet.Group{Name: "g", Nodes: 1, Board: "H100-SXM5-80GB", GPUs: gpus, MIG: &fleet.MIG{}})
}

// TestDecideOnPartitions: a partition of an H100 is an H100, the memory
// constraint is about the partition's memory, and the counters keep partitions
// that exclude each other apart.
func TestDecideOnPartitions(t *testing.T) {
	taker := newTaker(t, partitioned(2), v1alpha1.AcceleratorPolicySpec{
		Constraints: v1alpha1.Constraints{
			MinMemory: ptr.To(resource.MustParse("39Gi")),
			Selectors: []string{`device.attributes["gpu.gpuladder.dev"].?type.orValue("") == "mig"`},
		},
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
	})
	var got []string
	for range 4 {
		d := taker.next()
		if d.Outcome != v1alpha1.OutcomeAllocated {
			t.Fatalf("%s: %s", d.Pod, d.Message)
		}
		if d.Devices[0].Model != "H100" {
			t.Errorf("%s is of model %q", d.Devices[0].Device, d.Devices[0].Model)
		}
		got = append(got, d.Devices[0].Device)
	}
	// 1g and 2g are too small. Two halves of each board are all there is: the
	// second 3g takes the place of 4g and 7g.
	if want := []string{"gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4", "gpu-1-mig-3g40gb-9-0", "gpu-1-mig-3g40gb-9-4"}; !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
	d := taker.next()
	counts := map[v1alpha1.Reason]int64{}
	for _, r := range d.Tiers[0].Rejections {
		counts[r.Code] += int64(r.Count)
	}
	// Of each board the two that are taken, and 24 others with the board itself
	// that they leave nothing to.
	if d.Outcome != v1alpha1.OutcomePending || counts[v1alpha1.ReasonInUse] != 4 || counts[v1alpha1.ReasonCountersExhausted] != 2*24 {
		t.Errorf("the fifth: %s, %v", d.Outcome, counts)
	}
}

// TestDecideWholeBoardBesidePartitions: without a word about the type the whole
// board comes first, and while it is taken it has no partition.
func TestDecideWholeBoardBesidePartitions(t *testing.T) {
	taker := newTaker(t, partitioned(2), v1alpha1.AcceleratorPolicySpec{
		Constraints: v1alpha1.Constraints{MinMemory: ptr.To(resource.MustParse("79Gi"))},
		Tiers:       []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
	})
	for _, want := range []string{"gpu-0", "gpu-1", ""} {
		d := taker.next()
		got := ""
		if d.Outcome == v1alpha1.OutcomeAllocated {
			got = d.Devices[0].Device
		}
		if got != want {
			t.Errorf("%s got %q, want %q: %s", d.Pod, got, want, d.Message)
		}
	}
}

// TestDecideSevenSlices: of the smallest partitions a board has seven, and with
// media extensions one.
func TestDecideSevenSlices(t *testing.T) {
	taker := newTaker(t, partitioned(1), v1alpha1.AcceleratorPolicySpec{
		Constraints: v1alpha1.Constraints{
			Selectors: []string{`device.attributes["gpu.gpuladder.dev"].?profile.orValue("").startsWith("1g.10gb")`},
		},
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
	})
	seen := map[string]bool{}
	for i := range 8 {
		d := taker.next()
		if got := d.Outcome == v1alpha1.OutcomeAllocated; got != (i < 7) {
			t.Errorf("partition %d: %s", i, d.Message)
		} else if got {
			seen[d.Devices[0].Device] = true
		}
	}
	if len(seen) != 7 {
		t.Errorf("took %v", seen)
	}
}

// TestDecideSetsOfPartitions: several partitions for one Pod, all of one board.
func TestDecideSetsOfPartitions(t *testing.T) {
	taker := newTaker(t, partitioned(8), v1alpha1.AcceleratorPolicySpec{
		Count: ptr.To[int32](4),
		Constraints: v1alpha1.Constraints{
			MatchAttributes: []string{"gpu.gpuladder.dev/parentUUID"},
			Selectors:       []string{`device.attributes["gpu.gpuladder.dev"].?profile.orValue("") == "1g.10gb"`},
		},
		Tiers: []v1alpha1.Tier{{Name: "h100", Models: []string{"H100"}}},
	})
	boards := map[string]bool{}
	for i := range 9 {
		d := taker.next()
		// Four of a board's seven: the other three are not enough for one more.
		if got := d.Outcome == v1alpha1.OutcomeAllocated; got != (i < 8) {
			t.Fatalf("set %d: %s", i, d.Message)
		} else if !got {
			continue
		}
		board := fleet.GPUOf(d.Devices[0].Device)
		for _, device := range d.Devices {
			if fleet.GPUOf(device.Device) != board || boards[board] {
				t.Errorf("set %d is %v", i, d.Devices)
			}
		}
		boards[board] = true
	}
}
