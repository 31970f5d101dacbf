package plugin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/inventory"
)

func TestClaimsThroughKubelet(t *testing.T) {
	n := newNode(t, 2)
	n.start()
	if err := n.driver.Ready(); err == nil {
		t.Error("it is ready before kubelet has registered it")
	}
	kubelet := n.register()
	n.eventually("it is ready", func() bool { return n.driver.Ready() == nil })
	n.eventually("the devices are published", func() bool { return n.taints() == "gpu-0= gpu-1=" })

	claim, other := n.claim("c", "gpu-0"), n.claim("other", "gpu-0")
	prepared, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim, other}})
	if err != nil {
		t.Fatal(err)
	}
	mine, refused := prepared.Claims["c-uid"], prepared.Claims["other-uid"]
	if mine.Error != "" || len(mine.Devices) != 1 || mine.Devices[0].DeviceName != "gpu-0" || mine.Devices[0].PoolName != nodeName {
		t.Errorf("kubelet is told %v", mine)
	}
	if want := "gpu.gpuladder.dev/claim=c-uid_H100_gpu-0"; mine.Devices[0].CdiDeviceIds[0] != want {
		t.Errorf("the device is called %v, want %s", mine.Devices[0].CdiDeviceIds, want)
	}
	if last := mine.Devices[0].CdiDeviceIds[len(mine.Devices[0].CdiDeviceIds)-1]; last != "gpu.gpuladder.dev/metadata=c-uid_accelerator" {
		t.Errorf("the last CDI device is %s, not the metadata", last)
	}
	if !strings.Contains(refused.Error, "device gpu-0 is still held by claim team-a/c (c-uid)") {
		t.Errorf("the second claim of a device got %q", refused.Error)
	}
	if n.files(n.config.CDIFolder, "gpu.gpuladder.dev") != 2 {
		t.Error("the claim does not have a CDI file for its devices and one for their metadata")
	}
	if got := testutil.ToFloat64(n.driver.metrics.prepareFailures.WithLabelValues("DeviceHeld")); got != 1 {
		t.Errorf("%v failures are counted", got)
	}
	if got := testutil.ToFloat64(n.driver.metrics.held); got != 1 {
		t.Errorf("%v claims are counted", got)
	}

	// Another driver goes on, without a Pod UID this time.
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if n.files(n.config.RegistrarFolder, "") != 0 || len(n.slices()) != 1 {
		t.Error("sockets were left, or the slices were not")
	}
	n.config.PodUID = ""
	n.start()
	kubelet = n.register()
	unprepared, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim, other}})
	if err != nil || unprepared.Claims["c-uid"].Error != "" || unprepared.Claims["other-uid"].Error != "" {
		t.Fatalf("unpreparing: %v, %v", unprepared, err)
	}
	if n.files(n.config.CDIFolder, "") != 0 || n.files(filepath.Join(n.config.DataFolder, "dra-device-metadata"), "") != 0 {
		t.Error("files are left")
	}
}

func TestHealthReachesSlicesKubeletAndEvents(t *testing.T) {
	n := newNode(t, 2)
	n.start()
	n.register()
	next := n.watch("gpu-1")
	if got := next(); got.Health != healthpb.HealthStatus_HEALTHY || got.Message != "gpu-1, H100 (NVIDIA H100 80GB HBM3): healthy" {
		t.Errorf("kubelet is told %v", got)
	}
	n.board.trouble(nil, troubleOf("gpu-1", inventory.Suspect))
	n.eventually("the suspicion is published", func() bool { return n.taints() == "gpu-0= gpu-1=NoSchedule:Xid79," })
	n.board.trouble(nil, troubleOf("gpu-1", inventory.Failed))
	n.eventually("the failure is published", func() bool { return n.taints() == "gpu-0= gpu-1=NoSchedule:Xid79,NoExecute:Xid79," })
	n.eventually("kubelet is told", func() bool {
		got := next()
		return got.Health == healthpb.HealthStatus_UNHEALTHY &&
			got.Message == "gpu-1, H100 (NVIDIA H100 80GB HBM3): failed, Xid79, GPU has fallen off the bus"
	})
	if got := testutil.ToFloat64(n.driver.metrics.devices.WithLabelValues("failed")); got != 1 {
		t.Errorf("%v devices are counted as failed", got)
	}
	for _, want := range []string{"Warning DeviceUnhealthy Device gpu-1 is suspect: Xid79, GPU has", "Warning DeviceFailed Device gpu-1 has failed: Xid79"} {
		if got := <-n.recorder.Events; !strings.HasPrefix(got, want) {
			t.Errorf("the Event is %q, want %q", got, want)
		}
	}

	// A driver that comes back knows, though the hardware says nothing yet.
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	before := n.slices()[0].Spec.Devices[1].Taints[0].TimeAdded
	n.board.trouble(nil)
	n.config.Recovery = time.Hour
	n.start()
	n.register()
	time.Sleep(100 * time.Millisecond)
	if got := n.taints(); got != "gpu-0= gpu-1=NoSchedule:Xid79,NoExecute:Xid79," {
		t.Errorf("after a restart the taints are %s", got)
	}
	if after := n.slices()[0].Spec.Devices[1].Taints[0].TimeAdded; !after.Equal(before) {
		t.Errorf("the taint was added at %v, and then at %v", before, after)
	}
	if len(n.recorder.Events) != 0 {
		t.Errorf("what was known made an Event: %s", <-n.recorder.Events)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.config.Recovery = 50 * time.Millisecond
	n.start()
	n.eventually("it recovers", func() bool { return n.taints() == "gpu-0= gpu-1=" })
	if got := <-n.recorder.Events; !strings.HasPrefix(got, "Normal DeviceRecovered Device gpu-1 is healthy again: Xid79 is over") {
		t.Errorf("the Event is %q", got)
	}
}

// TestFailedDeviceIsNotPrepared: between the allocation and kubelet's call the
// device has failed.
func TestFailedDeviceIsNotPrepared(t *testing.T) {
	n := newNode(t, 1)
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Failed))
	n.start()
	kubelet := n.register()
	prepared, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{n.claim("c", "gpu-0")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := prepared.Claims["c-uid"].Error; !strings.Contains(got, "device gpu-0 has failed: Xid79, GPU has fallen off the bus") {
		t.Errorf("kubelet is told %q", got)
	}
}

// TestSilentHardware: kubelet is told nothing that is not known.
func TestSilentHardware(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	n.board.trouble(errors.New("nvml hangs"))
	n.eventually("reports end", func() bool {
		_, next := n.driver.beat.now()
		select {
		case <-next:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
	n.board.trouble(nil)
	_, next := n.driver.beat.now()
	select {
	case <-next:
	case <-time.After(10 * time.Second):
		t.Error("reports did not begin again")
	}
}

// TestPublishingSticks: the API server refuses for a while.
func TestPublishingSticks(t *testing.T) {
	n := newNode(t, 1)
	refusals := 3
	n.client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusals--; refusals >= 0 {
			return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
		}
		return false, nil, nil
	})
	n.start()
	n.eventually("the devices are published", func() bool { return n.taints() == "gpu-0=" })
	if got := testutil.ToFloat64(n.driver.metrics.publishErrors); got != 3 {
		t.Errorf("%v errors are counted", got)
	}
}

// TestHealthDoesNotWaitForTheAPIServer: slices can't even be listed, and
// kubelet is told of the devices' health all the same.
func TestHealthDoesNotWaitForTheAPIServer(t *testing.T) {
	n := newNode(t, 1)
	n.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("it is away")
	})
	n.start()
	n.register()
	next := n.watch("gpu-0")
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Failed))
	n.eventually("kubelet is told", func() bool { return next().Health == healthpb.HealthStatus_UNHEALTHY })
}

func TestGateHoldsBack(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	n.eventually("the devices are published", func() bool { return n.taints() == "gpu-0=" })
	n.gate.set(PublishNoChange)
	n.board.trouble(nil, troubleOf("gpu-0", inventory.Suspect))
	n.eventually("the trouble is known", func() bool { severity, _ := n.driver.devices.Trouble("gpu-0"); return severity == inventory.Suspect })
	time.Sleep(50 * time.Millisecond)
	if got := n.taints(); got != "gpu-0=" {
		t.Errorf("a stale slice has %s", got)
	}
	n.gate.set(PublishNothing)
	n.eventually("the slices are taken back", func() bool { return len(n.slices()) == 0 })
	n.gate.set(PublishAll)
	n.eventually("they are published", func() bool { return n.taints() == "gpu-0=NoSchedule:Xid79," })
}

func TestDamagedCheckpointIsToldAndMended(t *testing.T) {
	n := newNode(t, 2)
	n.start()
	kubelet := n.register()
	request := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{n.claim("c", "gpu-0")}}
	if _, err := kubelet.NodePrepareResources(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.NewStore(n.config.DataFolder).Tear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.eventually("it is mended", func() bool { return n.driver.started.Load() })
	if got := <-n.recorder.Events; !strings.HasPrefix(got, "Warning CheckpointRecovered The driver's checkpoint was made again with 1 claims") || !strings.Contains(got, "checkpoint.json is damaged") {
		t.Errorf("the Event is %q", got)
	}
	if got := testutil.ToFloat64(n.driver.metrics.recoveries.WithLabelValues("previous")); got != 1 {
		t.Errorf("%v recoveries are counted", got)
	}
	again, err := n.register().NodePrepareResources(t.Context(), request)
	if err != nil || again.Claims["c-uid"].Error != "" || len(again.Claims["c-uid"].Devices) != 1 {
		t.Errorf("kubelet is told %v, %v", again, err)
	}
}

// TestNewerCheckpointIsRefusedWithoutACrash: the driver stays up and says why.
func TestNewerCheckpointIsRefusedWithoutACrash(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.config.DataFolder, checkpoint.FileName)
	old, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(`{"schema":2}`), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	kubelet := n.register()
	if got := <-n.recorder.Events; !strings.HasPrefix(got, "Warning CheckpointRefused No claim can be prepared: ") {
		t.Errorf("the Event is %q", got)
	}
	request := &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{n.claim("c", "gpu-0")}}
	prepared, err := kubelet.NodePrepareResources(t.Context(), request)
	if err != nil || !strings.Contains(prepared.Claims["c-uid"].Error, "has schema version 2 and this driver knows up to 1") {
		t.Errorf("kubelet is told %v, %v", prepared, err)
	}
	if err := n.driver.Ready(); err == nil || !strings.Contains(err.Error(), "state on disk") {
		t.Errorf("it is ready: %v", err)
	}
	n.eventually("the devices are published all the same", func() bool { return n.taints() == "gpu-0=" })
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	n.eventually("it is ready once the file is", func() bool { return n.driver.Ready() == nil })
}

func TestClaimsThatAreOverAreCollectedWithTheirMetadata(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	if _, err := n.register().NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{n.claim("c", "gpu-0")}}); err != nil {
		t.Fatal(err)
	}
	if n.files(n.config.CDIFolder, "") != 2 {
		t.Fatal("it was not prepared")
	}
	if err := n.client.ResourceV1().ResourceClaims("team-a").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.eventually("it is collected", func() bool {
		return n.files(n.config.CDIFolder, "") == 0 && n.files(filepath.Join(n.config.DataFolder, "dra-device-metadata"), "") == 0
	})
	if got := <-n.recorder.Events; !strings.HasPrefix(got, "Warning StaleClaimCollected Took back what was prepared for claim team-a/c (c-uid)") {
		t.Errorf("the Event is %q", got)
	}
}

func TestTwoDriversShareANode(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	old := n.register()
	claim := n.claim("c", "gpu-0")
	if _, err := old.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}}); err != nil {
		t.Fatal(err)
	}
	stopOld := n.stop
	n.config.PodUID = "pod-2"
	n.start()
	if n.files(n.config.RegistrarFolder, "") != 2 {
		t.Error("there are not two sockets to register by")
	}
	unprepared, err := n.register().NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil || unprepared.Claims["c-uid"].Error != "" {
		t.Errorf("unpreparing by the new one: %v, %v", unprepared, err)
	}
	prepared, err := old.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{n.claim("next", "gpu-0")}})
	if err != nil || prepared.Claims["next-uid"].Error != "" {
		t.Errorf("preparing by the old one: %v, %v", prepared, err)
	}
	if err := stopOld(); err != nil {
		t.Error(err)
	}
	if err := n.driver.Healthy(t.Context()); err != nil {
		t.Errorf("the end of the old one harmed the new one: %v", err)
	}
}

func TestHandler(t *testing.T) {
	n := newNode(t, 1)
	n.start()
	n.eventually("the disk is in order", func() bool { return n.driver.started.Load() })
	handler := n.driver.Handler(n.registry)
	get := func(path string) (int, string) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		return recorder.Code, recorder.Body.String()
	}
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("healthz answers %d %q", code, body)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "kubelet has not registered") {
		t.Errorf("readyz answers %d %q", code, body)
	}
	n.register()
	n.eventually("it is ready", func() bool { code, _ := get("/readyz"); return code == http.StatusOK })
	if _, body := get("/metrics"); !strings.Contains(body, `ladder_driver_prepare_failures_total{class="DeviceHeld"} 0`) || !strings.Contains(body, `ladder_driver_devices{health="healthy"} 1`) {
		t.Errorf("metrics are\n%s", body)
	}
	if err := os.Remove(n.config.registrarSocket()); err != nil {
		t.Fatal(err)
	}
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "registration socket") {
		t.Errorf("without a socket healthz answers %d %q", code, body)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no node":        func(c *Config) { c.NodeName = "" },
		"no data":        func(c *Config) { c.DataFolder = "" },
		"no boot ID":     func(c *Config) { c.BootIDFile = "" },
		"boot ID gone":   func(c *Config) { c.BootIDFile += ".gone" },
		"seldom":         func(c *Config) { c.HealthPeriod = 13 * time.Second },
		"negative":       func(c *Config) { c.StaleAfter = -1 },
		"health forever": func(c *Config) { c.HealthPeriod = -1 },
	} {
		n := newNode(t, 1)
		change(&n.config)
		if _, err := New(t.Context(), n.config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFatalErrorEndsTheDriver(t *testing.T) {
	n := newNode(t, 1)
	driver, err := New(t.Context(), n.config)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- driver.Run(t.Context()) }()
	n.eventually("it runs", func() bool { return driver.Healthy(t.Context()) == nil })
	plugin{driver}.HandleError(t.Context(), errors.New("the socket is gone"), "serving")
	if err := <-ended; err == nil || err.Error() != "serving, the socket is gone" {
		t.Errorf("it ended with %v", err)
	}
}
