package invariants

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var epoch = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// story builds histories: each entry is a second after the one before, and each
// object's version is its place in the story.
type story struct{ History }

func (s *story) add(e Entry) *story {
	e.At = epoch.Add(time.Duration(len(s.History)) * time.Second)
	if object := e.object(); object != nil {
		object.SetResourceVersion(fmt.Sprint(len(s.History) + 1))
	}
	s.History = append(s.History, e)
	return s
}

// later lets time go by.
func (s *story) later(seconds int) *story {
	for range seconds {
		s.add(Entry{Slice: &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{UID: "clock"}}, Type: watch.Modified})
	}
	return s
}

func (s *story) claim(t watch.EventType, claim *resourcev1.ResourceClaim) *story {
	return s.add(Entry{Type: t, Claim: claim})
}

// claimOf is the claim of a Pod with devices of the pool "node".
func claimOf(pod string, devices ...string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: pod + "-claim", UID: types.UID(pod + "-claim"),
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: new(true)}},
	}}
	if len(devices) > 0 {
		claim.Status.Allocation = &resourcev1.AllocationResult{}
	}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: "gpu.gpuladder.dev", Pool: "node", Device: d})
	}
	return claim
}

func podNamed(name string, running bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	if running {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	return pod
}

func (s *story) pod(t watch.EventType, name string, running bool) *story {
	return s.add(Entry{Type: t, Pod: podNamed(name, running)})
}

func (s *story) gone(pod string) *story { return s.pod(watch.Deleted, pod, false) }

func (s *story) probe(pod string, devices ...string) *story {
	return s.add(Entry{Probe: &Probe{Pod: types.UID(pod), Name: pod, Node: "node", Claims: []types.UID{types.UID(pod + "-claim")}, Devices: devices}})
}

func (s *story) host(cdi, prepared []types.UID) *story {
	return s.add(Entry{Host: &Host{Node: "node", CDI: cdi, Prepared: prepared}})
}

// partitions is a slice with one counter set of 80 GiB and two kinds of devices
// that consume it.
func partitions() *resourcev1.ResourceSlice {
	memory := func(v string) map[string]resourcev1.Counter {
		return map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(v)}}
	}
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{UID: "slice"}}
	s.Spec.Driver, s.Spec.Pool = "gpu.gpuladder.dev", resourcev1.ResourcePool{Name: "node", Generation: 1}
	s.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "gpu-0", Counters: memory("80Gi")}}
	for name, size := range map[string]string{"gpu-0": "80Gi", "mig-0": "40Gi", "mig-1": "40Gi", "mig-2": "40Gi"} {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: name, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "gpu-0", Counters: memory(size)}},
		})
	}
	return s
}

// judged checks a verdict and that the findings name what they should.
func judged(t *testing.T, r Report, want Verdict, mentions ...string) {
	t.Helper()
	if r.Verdict != want {
		t.Errorf("verdict %s, want %s: %s", r.Verdict, want, r.String())
	}
	for _, m := range mentions {
		if !strings.Contains(r.String(), m) {
			t.Errorf("the report does not mention %q: %s", m, r.String())
		}
	}
}

func TestHistoryIsKeptAsJSONLines(t *testing.T) {
	s := (&story{}).claim(watch.Added, claimOf("a", "gpu-0")).pod(watch.Added, "a", true).probe("a", "gpu-0").
		host([]types.UID{"a-claim"}, nil).add(Entry{Gap: "too old"})
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(b.String(), "\n"); lines != len(s.History) {
		t.Errorf("%d lines for %d entries", lines, len(s.History))
	}
	again, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	var c bytes.Buffer
	if err := again.Write(&c); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	_ = s.Write(&b)
	if b.String() != c.String() {
		t.Errorf("read back:\n%swant:\n%s", c.String(), b.String())
	}
	if _, err := Read(strings.NewReader("{\"at\":\"2026-05-01T12:00:00Z\"}\n{\"what\":1}\n")); err == nil || !strings.Contains(err.Error(), "entry 2") {
		t.Errorf("a history with an unknown field is read: %v", err)
	}
}

func TestOrderIsThatOfVersions(t *testing.T) {
	early, late := claimOf("a"), claimOf("b")
	early.ResourceVersion, late.ResourceVersion = "99", "100"
	got := History{{Claim: late}, {Host: &Host{}}, {Claim: early}}.ByVersion()
	if len(got) != 2 || got[0].Claim != early || got[1].Claim != late {
		t.Errorf("order %v", got)
	}
}
