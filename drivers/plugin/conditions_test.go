package plugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// prepare has kubelet prepare claims.
func (n *node) prepare(kubelet drapb.DRAPluginClient, claims ...*drapb.Claim) {
	n.t.Helper()
	prepared, err := kubelet.NodePrepareResources(n.t.Context(), &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		n.t.Fatal(err)
	}
	for uid, answer := range prepared.Claims {
		if answer.Error != "" {
			n.t.Fatalf("claim %s: %s", uid, answer.Error)
		}
	}
}

// stored is a claim as the API server has it.
func (n *node) stored(name string) *resourcev1.ResourceClaim {
	n.t.Helper()
	claim, err := n.client.ResourceV1().ResourceClaims("team-a").Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return claim
}

// said is what a claim's status says of its devices: device=status:reason.
func (n *node) said(name string) string {
	n.t.Helper()
	var all []string
	for _, device := range n.stored(name).Status.Devices {
		for _, c := range device.Conditions {
			all = append(all, fmt.Sprintf("%s/%s %s=%s:%s", device.Pool, device.Device, c.Type, c.Status, c.Reason))
		}
	}
	return strings.Join(all, " ")
}

// writes counts the changes of claims' status, reads the looks at claims.
func (n *node) writes() int { return n.actions("patch", "resourceclaims/status") }
func (n *node) reads() int  { return n.actions("get", "resourceclaims") }

func (n *node) actions(verb, resource string) (count int) {
	for _, action := range n.client.Actions() {
		if action.Matches(verb, resource) {
			count++
		}
	}
	return count
}

// TestClaimsAreToldOfTheirDevices: of trouble, of worse, and of its end; only
// those that hold the device, and no more often than something changes.
func TestClaimsAreToldOfTheirDevices(t *testing.T) {
	n := newNode(t, 3)
	n.start()
	n.prepare(n.register(), n.claim("c", "gpu-0", "gpu-1"), n.claim("other", "gpu-2"))
	time.Sleep(50 * time.Millisecond)
	if n.writes() != 0 {
		t.Errorf("claims whose devices are well cost %d writes", n.writes())
	}
	n.board.trouble(nil, troubleOf("gpu-1", inventory.Suspect))
	n.eventually("the suspicion is told", func() bool { return n.said("c") == "node-1/gpu-1 Healthy=False:Xid79" })
	device := n.stored("c").Status.Devices[0]
	condition := device.Conditions[0]
	if device.Driver != v1alpha1.DriverName || condition.Message != "gpu-1, H100 (NVIDIA H100 80GB HBM3): suspect, Xid79, GPU has fallen off the bus" {
		t.Errorf("the claim is told %+v", device)
	}
	n.board.trouble(nil, troubleOf("gpu-1", inventory.Failed))
	n.eventually("the failure is told", func() bool {
		return strings.HasSuffix(strings.TrimSuffix(n.stored("c").Status.Devices[0].Conditions[0].Message, ", Xid79, GPU has fallen off the bus"), ": failed")
	})
	if since := n.stored("c").Status.Devices[0].Conditions[0].LastTransitionTime; !since.Equal(&condition.LastTransitionTime) {
		t.Errorf("it is unhealthy since %v, and was since %v", since, condition.LastTransitionTime)
	}
	made := n.writes()
	time.Sleep(100 * time.Millisecond) // some rounds of health
	if n.writes() != made {
		t.Errorf("%d writes without a change", n.writes()-made)
	}
	n.board.trouble(nil)
	n.eventually("the recovery is told", func() bool { return n.said("c") == "node-1/gpu-1 Healthy=True:Healthy" })
	if n.said("other") != "" {
		t.Errorf("the other claim is told %s", n.said("other"))
	}
}

// TestClaimIsToldWhatItMissed: the trouble came before the claim, or while no
// driver ran; the next driver finds what the one before has told.
func TestClaimIsToldWhatItMissed(t *testing.T) {
	n := newNode(t, 2)
	n.board.trouble(nil, troubleOf("gpu-1", inventory.Suspect))
	n.start()
	n.eventually("the suspicion is known", func() bool { return n.driver.devices.monitor.Reason("gpu-1") == "Xid79" })
	n.prepare(n.register(), n.claim("late", "gpu-1"), n.claim("c", "gpu-0"))
	n.eventually("the trouble is told", func() bool { return n.said("late") == "node-1/gpu-1 Healthy=False:Xid79" })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.client.ClearActions()
	n.start()
	n.eventually("the next driver has looked", func() bool { return n.reads() >= 2 })
	if n.writes() != 0 || n.said("late") != "node-1/gpu-1 Healthy=False:Xid79" {
		t.Errorf("the next driver wrote %d times; the claim is told %s", n.writes(), n.said("late"))
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Suspect))
	n.start()
	n.eventually("both are told", func() bool {
		return n.said("c") == "node-1/gpu-0 Healthy=False:Xid79" && n.said("late") == "node-1/gpu-1 Healthy=True:Healthy"
	})
}

// TestTellingClaimsSticks: the API server refuses for a while; other claims are
// told all the same.
func TestTellingClaimsSticks(t *testing.T) {
	n := newNode(t, 2)
	refusals := 3
	n.client.PrependReactor("patch", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.PatchAction).GetName() != "c" {
			return false, nil, nil
		}
		if refusals--; refusals >= 0 {
			return true, nil, apierrors.NewForbidden(resourcev1.Resource("resourceclaims"), "c", errors.New("no"))
		}
		return false, nil, nil
	})
	n.start()
	n.prepare(n.register(), n.claim("c", "gpu-0"), n.claim("d", "gpu-1"))
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Suspect), troubleOf("gpu-1", inventory.Suspect))
	n.eventually("the other one is told", func() bool { return n.said("d") != "" })
	n.eventually("it is told in the end", func() bool { return n.said("c") == "node-1/gpu-0 Healthy=False:Xid79" })
	if got := testutil.ToFloat64(n.driver.metrics.publishErrors); got < 3 {
		t.Errorf("%v errors are counted", got)
	}
}

// TestWhatOthersSayOfAClaimStays, and a claim that is not this one is left alone.
func TestWhatOthersSayOfAClaimStays(t *testing.T) {
	n := newNode(t, 2)
	n.start()
	n.prepare(n.register(), n.claim("c", "gpu-0"), n.claim("again", "gpu-1"))
	claims := n.client.ResourceV1().ResourceClaims("team-a")
	claim := n.stored("c")
	claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
		resourcev1.DeviceRequestAllocationResult{Request: "net", Driver: "net.example.com", Pool: nodeName, Device: "gpu-0"})
	claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
		Driver: "net.example.com", Pool: nodeName, Device: "gpu-0", Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Up"}},
	}}
	if _, err := claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	again := n.stored("again")
	if err := claims.Delete(t.Context(), "again", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again.UID, again.ResourceVersion = "again-uid-2", ""
	if _, err := claims.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Failed), troubleOf("gpu-1", inventory.Failed))
	n.eventually("the trouble is told", func() bool { return strings.Contains(n.said("c"), "Healthy=False:Xid79") })
	if got := n.said("c"); !strings.Contains(got, "Ready=True:Up") {
		t.Errorf("the claim is told %s", got)
	}
	time.Sleep(50 * time.Millisecond)
	if got := n.said("again"); got != "" {
		t.Errorf("a claim of the same name is told %s", got)
	}
}

// TestSharesAreToldApart: one claim has a device twice, by shares of it.
func TestSharesAreToldApart(t *testing.T) {
	n := newNode(t, 1)
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Suspect))
	n.start()
	kubelet := n.register()
	asked := n.claim("c", "gpu-0", "gpu-0")
	claim := n.stored("c")
	for i, share := range []types.UID{"share-a", "share-b"} {
		claim.Status.Allocation.Devices.Results[i].ShareID = ptr.To(share)
	}
	if _, err := n.client.ResourceV1().ResourceClaims("team-a").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.prepare(kubelet, asked)
	n.eventually("both shares are told", func() bool { return len(n.stored("c").Status.Devices) == 2 })
	for _, device := range n.stored("c").Status.Devices {
		if device.ShareID == nil || device.Conditions[0].Status != metav1.ConditionFalse {
			t.Errorf("told is %+v", device)
		}
	}
}
