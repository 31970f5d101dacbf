package plugin

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/prometheus/client_golang/prometheus"

	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
)

// The recorder takes Events of one Node and one reason for repetitions of the
// first unless they refer to something else: what each says must come out.
func TestEventsOfOneNodeAreToldApart(t *testing.T) {
	client := fake.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{
		metrics: m, recorder: broadcaster.NewRecorder(scheme.Scheme, "ladder-driver"),
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1-uid"},
		cdi:  t.TempDir(), data: t.TempDir(),
	}
	for _, device := range []string{"gpu-0", "gpu-1"} {
		for _, reason := range []string{"Xid48", "RemapPending"} {
			o.healthChanged(health.Transition{Device: device, From: inventory.Healthy, To: inventory.Suspect, Reason: reason})
		}
	}
	for _, claim := range []string{"a", "b"} {
		o.Collected(types.NamespacedName{Namespace: "team", Name: claim}, types.UID("uid-"+claim), "its Pod is gone")
	}
	want := []string{
		"DeviceUnhealthy Device gpu-0 is suspect: RemapPending", "DeviceUnhealthy Device gpu-0 is suspect: Xid48",
		"DeviceUnhealthy Device gpu-1 is suspect: RemapPending", "DeviceUnhealthy Device gpu-1 is suspect: Xid48",
		"StaleClaimCollected Took back what was prepared for claim team/a", "StaleClaimCollected Took back what was prepared for claim team/b",
	}
	var got []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && len(got) < len(want); time.Sleep(10 * time.Millisecond) {
		list, err := client.EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, e := range list.Items {
			got = append(got, e.Reason+" "+e.Note)
		}
	}
	slices.Sort(got)
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("Events %q, want %q", got, want)
	}
}
