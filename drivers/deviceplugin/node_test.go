package deviceplugin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/fault"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func aNode(name string, labels ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		node.Labels[key] = value
	}
	return node
}

const (
	ours   = LabelStack + "=" + StackDevicePlugin
	theirs = LabelStack + "=dra"
	two    = tiers.LabelGPUs + "=2"
	three  = tiers.LabelGPUs + "=3"
	l4     = tiers.LabelTier + "=l4"
)

// watch runs a source over a client that has the node.
func watch(t *testing.T, node *corev1.Node) (client *fake.Clientset, source *NodeSource, faults *Faults) {
	t.Helper()
	client = fake.NewClientset(node, aNode("other", ours, l4, three))
	faults = NewFaults(func() []string { return source.Names() }, func() time.Time { return noon })
	source = NewNodeSource(node.Name, tiers.Default(), faults)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx, client) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watching ended with %v", err)
		}
	})
	return client, source, faults
}

// words is an offer in short: "gpu-0 gpu-1(XID 79)" or why there is none.
func words(t *testing.T, source *NodeSource) func() string {
	return func() string {
		offer, err := source.Offer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if offer.Refused != "" {
			return offer.Refused
		}
		var names []string
		for _, d := range offer.Devices {
			name := d.Name
			if d.Unhealthy != "" {
				name += "(" + d.Unhealthy + ")"
			}
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}
}

func update(t *testing.T, client *fake.Clientset, node *corev1.Node) {
	t.Helper()
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The label decides, at the start and at any time after; the tier stays what it was.
func TestLabelsDecide(t *testing.T) {
	refused := func(value string) string {
		return fmt.Sprintf(`label gpuladder.dev/stack of node n is %q, not "device-plugin"`, value)
	}
	client, source, _ := watch(t, aNode("n", theirs, l4, two))
	got := words(t, source)
	eventually(t, "at the start", got, refused("dra"))
	update(t, client, aNode("n", ours, l4, two))
	eventually(t, "ours", got, "gpu-0 gpu-1")
	update(t, client, aNode("n", ours, l4, three))
	update(t, client, aNode("n", l4, two))
	eventually(t, "without the label", got, refused(""))
	update(t, client, aNode("n", ours))
	eventually(t, "back, with another tier", got, "gpu-0 gpu-1")
	if err := client.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted", got, refused(""))
}

// A node without a tier offers nothing, and says why, until it gets one.
func TestTierComesLater(t *testing.T) {
	client, source, _ := watch(t, aNode("n", ours))
	got := words(t, source)
	eventually(t, "no tier", got, "the node has no label gpuladder.dev/fake-tier")
	update(t, client, aNode("n", ours, tiers.LabelTier+"=b200"))
	eventually(t, "no such tier", func() bool { return strings.Contains(got(), `there is no tier "b200"`) }, true)
	if source.Names() != nil {
		t.Errorf("has %v", source.Names())
	}
	update(t, client, aNode("n", ours, l4, three))
	eventually(t, "a tier", got, "gpu-0 gpu-1 gpu-2")
}

// Before the node has been seen nothing is known, and nothing is said.
func TestOfferWaitsForTheNode(t *testing.T) {
	_, source, _ := watch(t, aNode("n"))
	lost := NewNodeSource("nowhere", tiers.Default(), nil)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if offer, err := lost.Offer(ctx); err == nil {
		t.Errorf("a node that nobody has seen offers %+v", offer)
	}
	eventually(t, "another node's labels mean nothing", words(t, source), `label gpuladder.dev/stack of node n is "", not "device-plugin"`)
}

// The same board is the same device for both stacks: UUID, name and place are
// those of the DRA driver's slices.
func TestDevicesAreThoseOfTheDRADriver(t *testing.T) {
	labels := map[string]string{tiers.LabelTier: "h100", tiers.LabelGPUs: "4"}
	pool, err := tiers.Default().ForNode("n", labels)
	if err != nil {
		t.Fatal(err)
	}
	devices := Devices(pool)
	if len(devices) != 4 {
		t.Fatalf("%d devices", len(devices))
	}
	for i, d := range devices {
		of := pool.Devices[i]
		if d.Name != of.Name || d.ID != *of.Attributes["uuid"].StringValue || d.Model != "H100" || d.NUMANode != int64(i/2) {
			t.Errorf("device %d is %+v", i, d)
		}
	}
}

// Of boards with MIG the plugin hands out whole ones.
func TestPartitionsAreNotHandedOut(t *testing.T) {
	pool, err := tiers.Default().ForNode("n", map[string]string{tiers.LabelTier: "h100-mig", tiers.LabelGPUs: "2"})
	if err != nil {
		t.Fatal(err)
	}
	devices := Devices(pool)
	if len(devices) != 2 || devices[0].Name != "gpu-0" || devices[1].Name != "gpu-1" {
		t.Errorf("devices are %+v", devices)
	}
}

func TestFaultsMakeUnhealthy(t *testing.T) {
	_, source, faults := watch(t, aNode("n", ours, l4, three))
	got := words(t, source)
	eventually(t, "healthy", got, "gpu-0 gpu-1 gpu-2")
	inject := func(spec fault.Spec) fault.Fault {
		t.Helper()
		f, err := faults.Inject(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	inject(fault.Spec{Kind: fault.XID, Device: "gpu-0", Code: 31}) // the application's
	if f := inject(fault.Spec{Kind: fault.XID, Device: "gpu-1", Code: 79}); f.ID != "2" || !f.Since.Equal(noon) {
		t.Errorf("injected %+v", f)
	}
	lost := inject(fault.Spec{Kind: fault.Lost, Device: "gpu-2"})
	eventually(t, "faults", got, "gpu-0 gpu-1(XID 79) gpu-2(the GPU is lost)")
	if _, err := faults.Clear(t.Context(), fault.Selector{ID: lost.ID}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one cleared", got, "gpu-0 gpu-1(XID 79) gpu-2")
	if cleared, err := faults.Clear(t.Context(), fault.Selector{}); err != nil || len(cleared) != 2 {
		t.Errorf("cleared %v, %v", cleared, err)
	}
	eventually(t, "all cleared", got, "gpu-0 gpu-1 gpu-2")
	if left, err := faults.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFaultsRefused(t *testing.T) {
	_, source, faults := watch(t, aNode("n", ours, l4, two))
	eventually(t, "healthy", words(t, source), "gpu-0 gpu-1")
	for _, tc := range []struct {
		spec fault.Spec
		want string
	}{
		{fault.Spec{Kind: fault.Lost, Device: "gpu-9"}, `there is no device "gpu-9"; this node has gpu-0, gpu-1`},
		{fault.Spec{Kind: fault.Remap, Device: "gpu-0"}, "the device plugin has no remap, only xid and lost, unsupported"},
		{fault.Spec{Kind: fault.CrashAt, Point: fault.AfterCDI}, "the device plugin has no crash-at, only xid and lost, unsupported"},
	} {
		if _, err := faults.Inject(t.Context(), tc.spec); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: %v, want %s", tc.spec, err, tc.want)
		}
	}
	if _, err := faults.Clear(t.Context(), fault.Selector{ID: "1"}); err == nil || err.Error() != `no fault "1" is in force` {
		t.Errorf("clearing a fault that is not there: %v", err)
	}
	if _, err := faults.Clear(t.Context(), fault.Selector{Device: "gpu-9"}); err == nil {
		t.Error("clearing a device that is not there")
	}
}

// The whole way: label, fault, kubelet.
func TestFromLabelToKubelet(t *testing.T) {
	k := newKubelet(t)
	k.start()
	client, source, faults := watch(t, aNode("n", ours, l4, two))
	run(t, k, source)
	eventually(t, "the first list", k.allocatable, "2 of 2 on NUMA nodes [0 0]")
	if _, err := faults.Inject(t.Context(), fault.Spec{Kind: fault.Lost, Device: "gpu-1"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a lost device", k.allocatable, "1 of 2 on NUMA nodes [0 0]")
	update(t, client, aNode("n", theirs, l4, two))
	eventually(t, "the other stack's turn", k.allocatable, "0 of 0 on NUMA nodes []")
	update(t, client, aNode("n", ours, l4, two))
	eventually(t, "back", k.allocatable, "1 of 2 on NUMA nodes [0 0]")
}
