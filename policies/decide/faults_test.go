package decide

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// needsSlot fails on devices without the attribute.
const needsSlot = `device.attributes["gpu.gpuladder.dev"].slot == 1`

func TestFaultyNodes(t *testing.T) {
	slotted := attr("slot", number(1))
	shared := aSlice("n-3", aGPU("gpu-0", "H100"))
	shared.Spec.NodeName, shared.Spec.AllNodes = nil, ptr.To(true)
	incomplete := aSlice("n-2", aGPU("gpu-0", "H100"))
	incomplete.Spec.Pool.ResourceSliceCount = 2
	first := exactly("r", 1)
	first.Exactly = nil
	first.FirstAvailable = []resourceapi.DeviceSubRequest{
		{Name: "slotted", DeviceClassName: "gpu", Selectors: celOf(needsSlot)}, {Name: "any", DeviceClassName: "gpu"},
	}
	for name, c := range map[string]struct {
		claim   *resourceapi.ResourceClaim
		objects []runtime.Object
		refused map[string]string
		want    []string
	}{
		"no selector":              {aClaim("c", exactly("r", 1)), nil, nil, nil},
		"it fails on one node":     {aClaim("c", exactly("r", 1, needsSlot)), nil, nil, []string{"n-2"}},
		"it fails nowhere":         {aClaim("c", exactly("r", 1, "has(device.attributes)")), nil, nil, nil},
		"another comes first":      {aClaim("c", exactly("r", 1, `device.driver == "other"`, needsSlot)), nil, nil, nil},
		"in a list":                {aClaim("c", first), nil, nil, []string{"n-2"}},
		"the node is refused":      {aClaim("c", exactly("r", 1, needsSlot)), nil, map[string]string{"n-2": "cordoned"}, nil},
		"the device is taken":      {aClaim("c", exactly("r", 1, needsSlot)), []runtime.Object{allocated(aClaim("o", exactly("r", 1)), "r", [2]string{"n-2", "gpu-0"})}, nil, nil},
		"the pool is incomplete":   {aClaim("c", exactly("r", 1, needsSlot)), []runtime.Object{incomplete}, nil, nil},
		"every node reaches it":    {aClaim("c", exactly("r", 1, needsSlot)), []runtime.Object{shared}, nil, []string{"n-1", "n-2", "n-3"}},
		"the class's selector":     {aClaim("c", exactly("r", 1)), []runtime.Object{aClass("gpu", needsSlot)}, nil, []string{"n-2"}},
		"the claim is allocated":   {allocated(aClaim("c", exactly("r", 1, needsSlot)), "r", [2]string{"n-1", "gpu-0"}), nil, nil, nil},
		"on a node without object": {aClaim("c", exactly("r", 1, needsSlot)), []runtime.Object{aSlice("n-9", aGPU("gpu-0", "H100"))}, nil, []string{"n-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			st := stateWith(t, Options{NodeChecks: ExternalNodeChecks}, aNode("n-1"), aNode("n-2"), aNode("n-3"), aClass("gpu"),
				aSlice("n-1", aGPU("gpu-0", "H100", slotted)), aSlice("n-2", aGPU("gpu-0", "H100")), aPod("p", plain("c")), c.claim)
			mustPut(t, st, c.objects...)
			q := ask("p")
			q.NodeRejections = c.refused
			got, err := st.FaultyNodes(q)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("FaultyNodes = %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

// On a policy's devices a selector that fails is a reason like any other.
func TestAPolicyHasNoFaultyNodes(t *testing.T) {
	policy := ladder()
	policy.Spec.Tiers[0].Selectors = []string{needsSlot}
	st := stateOf(t, aNode("n-1"), aSlice("n-1", aGPU("gpu-0", "H100")), policy, aPod("p"))
	if got, err := st.FaultyNodes(ask("p")); err != nil || got != nil {
		t.Errorf("FaultyNodes = %v, %v", got, err)
	}
	if got := countsOf(t, decideFor(t, st, ask("p")), "h100")[reasons[selectorError]]; got != 1 {
		t.Errorf("%d devices fail the selector", got)
	}
	mustPut(t, st, aClass("gpu"), aClaim("c", exactly("r", 1, needsSlot)), aPod("q", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "c", ResourceClaimName: ptr.To("c")})
	}))
	if got, err := st.FaultyNodes(ask("q")); err != nil || !slices.Equal(got, []string{"n-1"}) {
		t.Errorf("with a claim of one's own besides: %v, %v", got, err)
	}
}

func TestFaultyNodesOfAnUnknownPod(t *testing.T) {
	if _, err := stateOf(t).FaultyNodes(ask("p")); !errors.Is(err, ErrNotFound) {
		t.Errorf("err = %v", err)
	}
}
