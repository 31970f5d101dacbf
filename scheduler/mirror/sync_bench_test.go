package mirror

// What it costs to find out that nothing, or one claim, has changed.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// A cluster's slices are listed in another order each time. With "told" they are
// listed after a change only, and here none is.
func BenchmarkSync(b *testing.B) {
	for _, told := range []bool{false, true} {
		for _, nodes := range []int{100, 500, 1000, 5000, 10000} {
			b.Run(fmt.Sprintf("told=%v/nodes=%d", told, nodes), func(b *testing.B) { benchmarkSync(b, nodes, told) })
		}
	}
}

func benchmarkSync(b *testing.B, nodes int, told bool) {
	b.Helper()
	m, _, w, _ := newMirror()
	var all []*corev1.Node
	var list []*resourceapi.ResourceSlice
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		all = append(all, node(name, nil))
		list = append(list, poolSlice(name+"-slice", name))
	}
	w.setNodes(all...)
	var orders [][]*resourceapi.ResourceSlice
	r := rand.New(rand.NewPCG(1, 2))
	for range 16 {
		order := slices.Clone(list)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		orders = append(orders, order)
	}
	for i := range 1000 {
		w.claims = append(w.claims, allocated(fmt.Sprintf("claim-%04d", i), "gpu-0"))
	}
	if told {
		m.TellOfSlices()
	}
	w.slices = list
	if err := m.Sync(w.nodes, w); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		w.claims[i%len(w.claims)] = w.claims[i%len(w.claims)].DeepCopy()
		w.slices = orders[i%len(orders)]
		i++
		if err := m.Sync(w.nodes, w); err != nil {
			b.Fatal(err)
		}
	}
}
