package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/publish/publishtest"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/fault"
)

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come", what)
		}
	}
}

// freePort may be taken by someone else a moment later, which is rare.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// TestNode runs the whole driver: its label, its slices, its faults, its
// metrics, and its end.
func TestNode(t *testing.T) {
	client := publishtest.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid", Labels: map[string]string{tiers.LabelTier: "l4", tiers.LabelGPUs: "2"}}})
	folder, err := os.MkdirTemp("", "ladder") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	o := &nodeOptions{Options: node.Options{
		Name: "n", PodUID: "pod", Plugins: filepath.Join(folder, "p"), Registrar: filepath.Join(folder, "r"), CDIFolder: filepath.Join(folder, "cdi"),
		BootIDFile: filepath.Join(folder, "boot"), Metrics: freePort(t), AllowFaults: true,
		Health: 20 * time.Millisecond, Recovery: 20 * time.Millisecond, Collect: time.Second, Stale: time.Minute,
	}}
	if err := os.WriteFile(o.BootIDFile, []byte("boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(o.Registrar, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.drive(ctx, client, tiers.Default()) }()

	published := func() string {
		list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, slice := range list.Items {
			for _, device := range slice.Spec.Devices {
				all = append(all, fmt.Sprintf("%s/%d", device.Name, len(device.Taints)))
			}
		}
		return strings.Join(all, " ")
	}
	eventually(t, "slices", func() bool { return published() == "gpu-0/0 gpu-1/0" })
	faults := fault.NewClient(o.Socket())
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-1"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "taints", func() bool { return published() == "gpu-0/0 gpu-1/2" })
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-2"}); !fault.Refused(err) {
		t.Errorf("a fault of a device that is not there: %v", err)
	}
	if _, err := faults.Clear(t.Context(), fault.Selector{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovery", func() bool { return published() == "gpu-0/0 gpu-1/0" })

	response, err := http.Get("http://" + o.Metrics + "/metrics") //nolint:noctx // a test's own server
	if err != nil {
		t.Fatal(err)
	}
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.Contains(body.String(), `ladder_driver_health_transitions_total{to="failed"} 1`) {
		t.Errorf("metrics are\n%s", &body)
	}

	object, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Labels[tiers.LabelGPUs] = "3"
	if _, err := client.CoreV1().Nodes().Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another number of GPUs", func() bool { return published() == "gpu-0/0 gpu-1/0 gpu-2/0" })

	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	left, err := filepath.Glob(filepath.Join(folder, "*", "*", "*.sock"))
	if err != nil || len(left) != 0 {
		t.Errorf("sockets are left: %v, %v", left, err)
	}
	if published() == "" {
		t.Error("the slices are gone with the driver")
	}
}
