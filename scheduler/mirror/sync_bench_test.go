package mirror

// What it costs to find out that nothing, or one claim, has changed.

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func BenchmarkSync(b *testing.B) {
	for _, nodes := range []int{100, 500, 1000, 5000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			m, _, w, _ := newMirror()
			var all []*corev1.Node
			for i := range nodes {
				name := fmt.Sprintf("node-%05d", i)
				all = append(all, node(name, nil))
				w.slices = append(w.slices, poolSlice(name+"-slice", name))
			}
			w.setNodes(all...)
			for i := range 1000 {
				w.claims = append(w.claims, allocated(fmt.Sprintf("claim-%04d", i), "gpu-0"))
			}
			if err := m.Sync(w.nodes, w); err != nil {
				b.Fatal(err)
			}
			i := 0
			for b.Loop() {
				w.claims[i%len(w.claims)] = w.claims[i%len(w.claims)].DeepCopy()
				i++
				if err := m.Sync(w.nodes, w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
