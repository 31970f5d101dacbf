package decidetest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// Epoch is when the Pods of random clusters were created.
var Epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// draw builds one random cluster. The vocabularies are small and the first
// entries the most frequent, so that devices collide in every way that the
// contract speaks of.
type draw struct {
	*rapid.T
	c *Cluster
	// counters, sharing, fabric, nvidia and admin switch features on for the
	// whole cluster, so that most clusters stay easy to read.
	counters, sharing, fabric, nvidia, admin bool
	// roughNodes and roughPools let nodes and pools be unusable.
	roughNodes, roughPools bool
	// load is how many of 8 devices are taken.
	load int
}

// Clusters generates small clusters of 1 to 6 nodes with 1 to 3 pending Pods.
func Clusters() *rapid.Generator[*Cluster] {
	return rapid.Custom(func(t *rapid.T) *Cluster {
		d := &draw{T: t, c: &Cluster{}}
		d.counters, d.sharing = d.oneIn4("counters"), d.oneIn4("sharing")
		d.fabric, d.nvidia = d.oneIn4("fabric"), d.oneIn8("nvidia")
		// The in-tree allocator charges admin access for shares and not for
		// whole devices; the two are kept apart.
		d.admin = !d.sharing && d.oneIn4("admin")
		d.roughNodes, d.roughPools = d.oneIn4("rough nodes"), d.oneIn4("rough pools")
		d.load = pickOne(d, "load", 0, 2, 4, 6, 8)
		d.nodes()
		d.pools()
		d.rules()
		d.classes()
		d.quotas()
		d.policies()
		d.allocations()
		d.pods()
		d.c.Now = Epoch.Add(pickOne(d, "waited", 0, time.Minute, 5*time.Minute, 10*time.Minute, time.Hour))
		return d.c
	})
}

// oneIn2, oneIn4, oneIn8 and oneIn16 are fair, which rapid's integers are not,
// and shrink to false.
func (d *draw) oneIn2(label string) bool  { return d.bits(1, label) == 1 }
func (d *draw) oneIn4(label string) bool  { return d.bits(2, label) == 3 }
func (d *draw) oneIn8(label string) bool  { return d.bits(3, label) == 7 }
func (d *draw) oneIn16(label string) bool { return d.bits(4, label) == 15 }

// bits is a fair number of n bits.
func (d *draw) bits(n int, label string) int {
	x := 0
	for range n {
		x *= 2
		if rapid.Bool().Draw(d.T, label) {
			x++
		}
	}
	return x
}

// rarely is the first value now and then, else the second.
func (d *draw) rarely(label, unusual, usual string) string {
	if d.roughNodes && d.oneIn4(label) {
		return unusual
	}
	return usual
}

func pickOne[T any](d *draw, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(d.T, label)
}

func (d *draw) nodes() {
	names := rapid.Permutation([]string{"n-1", "n-10", "n-2", "n-a", "n-b", "n-c"}).Draw(d.T, "node names")
	for _, name := range names[:1+d.bits(2, "nodes")+d.bits(1, "nodes")+d.bits(1, "nodes")] {
		n := &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"kubernetes.io/hostname": name, "zone": pickOne(d, "zone", "a", "b"),
			}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse(d.rarely("cpu", "2", "8")),
					corev1.ResourceMemory: resource.MustParse("32Gi"),
					corev1.ResourcePods:   resource.MustParse(d.rarely("max pods", "1", "110")),
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		n.Spec.Unschedulable = d.roughNodes && d.oneIn4("cordoned")
		if d.roughNodes && d.oneIn4("not ready") {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		}
		if d.roughNodes && d.oneIn4("node tainted") {
			n.Spec.Taints = []corev1.Taint{{
				Key: "dedicated", Value: "x",
				Effect: pickOne(d, "node effect", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule),
			}}
		}
		d.c.Nodes = append(d.c.Nodes, n)
	}
	for _, ns := range []string{"team-a", "team-b"} {
		d.c.Namespaces = append(d.c.Namespaces, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"team": ns}},
		})
	}
}

// pods makes the Pods that run and those that wait.
func (d *draw) pods() {
	for i, n := range d.c.Nodes {
		if d.oneIn8("busy node") {
			p := newPod("other", fmt.Sprintf("busy-%d", i), pickOne(d, "busy cpu", "1", "7"))
			p.Spec.NodeName = n.Name
			p.Status.Phase = pickOne(d, "phase", corev1.PodRunning, corev1.PodSucceeded)
			d.c.Pods = append(d.c.Pods, p)
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(d.T, "pending pods") {
		p := newPod(pickOne(d, "namespace", "team-a", "team-b"), fmt.Sprintf("p-%d", i), pickOne(d, "pod cpu", "1", "3"))
		if d.oneIn8("node selector") {
			p.Spec.NodeSelector = map[string]string{"zone": pickOne(d, "wanted zone", "a", "b")}
		}
		if d.oneIn4("tolerates") {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
		}
		if d.oneIn4("plain claims") {
			d.plainClaims(p)
		} else {
			d.usePolicy(p)
			if d.oneIn16("another claim") {
				d.plainClaims(p)
			}
		}
		d.turn(p)
		d.c.Pods = append(d.c.Pods, p)
	}
}

func newPod(namespace, name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uid("pod", namespace, name),
			CreationTimestamp: metav1.NewTime(Epoch), Labels: map[string]string{},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "example.com/train:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}},
		}}},
	}
}
