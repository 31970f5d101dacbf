package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/policies/journal"
)

// On 500 nodes, 160 one-GPU Pods get the 160 H100 of 20 neighbouring nodes,
// without exception, and no two deciders ever disagree.
func TestFiveHundredNodes(t *testing.T) {
	c := newCluster(t)
	c.addFleet(
		fleet.Group{Name: "a", Nodes: 240, Board: "A100-SXM4-80GB", GPUs: 8},
		fleet.Group{Name: "b", Nodes: 20, Board: "H100-SXM5-80GB", GPUs: 8},
		fleet.Group{Name: "c", Nodes: 240, Board: "L4", GPUs: 8},
	)
	c.addPolicy("h100-first", ladderOf("H100", "A100", "L4"))
	c.startScheduler()
	const pods = 160
	for i := range pods {
		c.addPod(fmt.Sprintf("pod-%03d", i), "h100-first")
	}
	start := time.Now()
	c.eventually(func() error {
		list := &corev1.PodList{}
		if err := c.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Spec.NodeName == "" {
				return fmt.Errorf("pod %s is not bound", list.Items[i].Name)
			}
		}
		return nil
	})
	t.Logf("the last of %d Pods was bound %s after it was created", pods, time.Since(start))
	for i := range pods {
		at := c.placed(fmt.Sprintf("pod-%03d", i))
		assert.True(t, strings.HasPrefix(at, "b-"), "pod-%03d is at %s", i, at)
	}
	metrics := gather(t)
	t.Logf("seconds in a decision: %v", metrics)
	assert.Zero(t, metrics["ladder_decider_mismatches_total"])
}

// Devices that every node reaches are given where the Pod fits, with those of that
// node beside them.
func TestDevicesThatEveryNodeReaches(t *testing.T) {
	c := newCluster(t)
	const nodes = 20
	c.addFleet(fleet.Group{Name: "n", Nodes: nodes, Board: "A100-SXM4-80GB", GPUs: 1})
	fabric := c.slice("n-0000")
	fabric.ObjectMeta = metav1.ObjectMeta{Name: "fabric"}
	fabric.Spec.NodeName, fabric.Spec.AllNodes, fabric.Spec.Pool.Name = nil, ptr.To(true), "fabric"
	fabric.Spec.Devices[0].Name = "remote"
	fabric.Spec.Devices[0].Attributes["model"] = resourceapi.DeviceAttribute{StringValue: ptr.To("H100")}
	c.create(fabric)
	for i := range nodes - 1 {
		full := plainPod(fmt.Sprintf("full-%02d", i), withCPU("31"))
		full.Spec.NodeName = fmt.Sprintf("n-%04d", i)
		c.create(full)
	}
	before := gather(t)["ladder_decider_mismatches_total"]
	c.startScheduler()
	remote := resourceapi.DeviceRequest{Name: "remote", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes[%q].model == %q", v1alpha1.DriverName, "H100"),
		}}},
	}}
	local := *remote.DeepCopy()
	local.Name = "local"
	local.Exactly.Selectors[0].CEL.Expression = fmt.Sprintf("device.attributes[%q].model == %q", v1alpha1.DriverName, "A100")
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "both"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{remote, local}
	c.create(claim, plainPod("pod", withCPU("4"), func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: ptr.To("both")}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
	}))
	assert.Equal(t, "n-0019/remote+gpu-0", c.placed("pod"))
	assert.Equal(t, before, gather(t)["ladder_decider_mismatches_total"])
}

// gather returns Ladder's counters and the mean of its histograms.
func gather(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	result := map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "ladder_") {
			continue
		}
		for _, m := range family.GetMetric() {
			labelled := family.GetName()
			for _, l := range m.GetLabel() {
				labelled += "/" + l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				result[labelled] = h.GetSampleSum() / float64(max(h.GetSampleCount(), 1))
				continue
			}
			result[labelled] = m.GetCounter().GetValue()
			if labelled != family.GetName() {
				result[family.GetName()] += m.GetCounter().GetValue()
			}
		}
	}
	return result
}

// Everything that was decided can be decided again from the journal.
func TestJournal(t *testing.T) {
	c := newCluster(t)
	c.addFleet(mixed()...)
	c.addPolicy("h100-first", ladderOf("H100", "A100", "L4"))
	c.addPolicy("t4", ladderOf("T4"))
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	stop := c.startSchedulerWith(path)
	for i := range 6 {
		c.addPod(fmt.Sprintf("pod-%d", i), "h100-first")
		c.placed(fmt.Sprintf("pod-%d", i))
	}
	c.addPod("never", "t4")
	c.condition("never", "Unsatisfiable")
	c.remove("pod-0")
	c.addPod("next", "h100-first")
	assert.Equal(t, "h100-0000/gpu-0", c.placed("next"))
	record := c.record("next", v1alpha1.OutcomeAllocated)
	assert.Contains(t, record.Spec.Journal, "journal.jsonl@")
	stop()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	report, err := journal.Replay(file)
	require.NoError(t, err)
	assert.Empty(t, report.Differences)
	assert.GreaterOrEqual(t, report.Decisions, 8)
}
