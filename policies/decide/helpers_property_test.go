package decide_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/policies/decide/decidetest"
)

// failer is what *testing.T and *rapid.T share here.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// everyDevice lets the evidence name every device.
var everyDevice = decide.Options{Examples: -1}

// newState puts the objects in their order.
func newState(t failer, opts decide.Options, objects []runtime.Object) *decide.State {
	t.Helper()
	s := decide.NewState(opts)
	for _, o := range objects {
		if err := s.Put(o); err != nil {
			t.Fatalf("putting %T: %v\n%s", o, err, toJSON(o))
		}
	}
	return s
}

func mustDecide(t failer, s *decide.State, q decide.Query) *decide.Decision {
	t.Helper()
	d, err := s.Decide(q)
	if err != nil {
		t.Fatalf("deciding %s: %v", q.Pod, err)
	}
	return d
}

func toJSON(v any) string {
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(out)
}

func deviceID(d v1alpha1.DecidedDevice) decidetest.DeviceID {
	return decidetest.DeviceID{Driver: d.Driver, Pool: d.Pool, Device: d.Device}
}

func counts(t v1alpha1.TierEvidence) map[v1alpha1.Reason]int {
	out := map[v1alpha1.Reason]int{}
	for _, r := range t.Rejections {
		out[r.Code] += int(r.Count)
	}
	return out
}

func total(t v1alpha1.TierEvidence) int {
	n := 0
	for _, r := range t.Rejections {
		n += int(r.Count)
	}
	return n
}

// compareWithTwin holds an engine's decision against the twin's answer.
func compareWithTwin(t failer, c *decidetest.Cluster, got *decide.Decision, want *decidetest.Answer) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("pod %s/%s: %s\nengine: %s\ntwin: %s on %q, tier %q, devices %v\n%v\ninput:\n%s", got.Namespace, got.Pod,
			fmt.Sprintf(format, args...), toJSON(got), want.Outcome, want.Node, want.Tier, want.Devices, want.Tiers, documents(c))
	}
	if got.Outcome != want.Outcome {
		fail("outcome %s, twin says %s", got.Outcome, want.Outcome)
	}
	if got.Node != want.Node {
		fail("node %q, twin says %q", got.Node, want.Node)
	}
	if w, g := places(want.Devices), places(got.Devices); !slices.Equal(w, g) {
		fail("devices %v, twin says %v", g, w)
	}
	if want.Parked != (got.Class == v1alpha1.FailurePolicyInvalid) {
		fail("class %q, twin says parked is %t", got.Class, want.Parked)
	}
	if !want.SingleRequest {
		return
	}
	if got.Tier != want.Tier {
		fail("tier %q, twin says %q", got.Tier, want.Tier)
	}
	if len(got.Tiers) != len(want.Tiers) {
		fail("%d tiers, twin says %d", len(got.Tiers), len(want.Tiers))
	}
	for i, g := range got.Tiers {
		w := want.Tiers[i]
		if g.Name != w.Name || g.Outcome != w.Outcome {
			fail("tier %d is %s %s, twin says %s %s", i, g.Name, g.Outcome, w.Name, w.Outcome)
		}
		if w, g := w.Counts(), counts(g); !maps.Equal(w, g) {
			fail("counts of tier %s are %v, twin says %v", want.Tiers[i].Name, g, w)
		}
	}
}

// places says what was chosen for what, without the model.
func places(devices []v1alpha1.DecidedDevice) []v1alpha1.DecidedDevice {
	var out []v1alpha1.DecidedDevice
	for _, d := range devices {
		d.Model, d.Claim = "", ""
		out = append(out, d)
	}
	return out
}

// documents prints a cluster so that it can be fed to the CLI.
func documents(c *decidetest.Cluster) string {
	out := ""
	for _, o := range c.Objects() {
		line, err := json.Marshal(o)
		if err != nil {
			return err.Error()
		}
		out += "---\n" + string(line) + "\n"
	}
	return out
}

func question(c *decidetest.Cluster, name types.NamespacedName) (decide.Query, decidetest.Question) {
	return decide.Query{Pod: name, Now: c.Now}, decidetest.Question{Pod: name, Now: c.Now}
}

// fleetSize counts the devices of the newest generation of each pool.
func fleetSize(c *decidetest.Cluster) int {
	type pool struct{ driver, name string }
	newest := map[pool]int64{}
	for _, s := range c.Slices {
		k := pool{s.Spec.Driver, s.Spec.Pool.Name}
		newest[k] = max(newest[k], s.Spec.Pool.Generation)
	}
	ids := map[decidetest.DeviceID]bool{}
	for _, s := range c.Slices {
		if s.Spec.Pool.Generation != newest[pool{s.Spec.Driver, s.Spec.Pool.Name}] {
			continue
		}
		for _, d := range s.Spec.Devices {
			ids[decidetest.DeviceID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Device: d.Name}] = true
		}
	}
	return len(ids)
}

var _ failer = (*testing.T)(nil)
