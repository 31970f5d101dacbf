package fleet

import "testing"

func TestResize(t *testing.T) {
	for _, tc := range []struct{ numa, from, to, want int }{
		{0, 8, 2, 1},
		{0, 8, 4, 2},
		{0, 2, 8, 2},
		{4, 8, 16, 4},
		{4, 8, 3, 3},
		{1, 8, 16, 1},
	} {
		f := New(Group{Name: "g", Nodes: 1, Board: "T4", GPUs: tc.from, NUMANodes: tc.numa})
		g := &f.Groups[0]
		if g.Resize(tc.to); g.GPUs != tc.to || g.NUMANodes != tc.want {
			t.Errorf("%+v: %d GPUs on %d NUMA nodes", tc, g.GPUs, g.NUMANodes)
		}
		if errs := f.Validate(); len(errs) > 0 {
			t.Errorf("%+v: %v", tc, errs)
		}
	}
}
