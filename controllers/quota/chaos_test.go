package quota

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/tenants"
)

// chaos plays users, a scheduler and nodes at random around a controller that
// is killed before or after any of its writes, whose requests fail, and whose
// cache lags behind.
type chaos struct {
	*world
	r      *rand.Rand
	n      int
	limits map[string]int // of a tenant and model
	held   map[string]string
	gangs  bool // some Pods come as gangs of two
}

// TestKilledAtAnyMoment: no tenant has more open than its limit at any moment,
// no gate is opened twice, and in the end all is served.
func TestKilledAtAnyMoment(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := &chaos{
				world: newWorld(t), r: rand.New(rand.NewPCG(seed, 7)), held: map[string]string{}, gangs: seed >= 6,
				limits: map[string]int{"x H100": 2, "x A100": 1, "y H100": 2, "y A100": 3},
			}
			c.gpus("h", "H100", 3)
			c.gpus("a", "A100", 3)
			c.policy("h100", "H100")
			c.policy("a100", "A100")
			c.quota("x", part("H100", 1, 2), part("A100", 0, 1))
			c.quota("y", part("H100", 1, 2), part("A100", 2, 3))
			c.fail, c.lose = c.before, c.after
			for range 100 {
				c.step()
			}
			c.fail, c.lose = nil, nil
			for range 300 {
				c.clock.Step(30 * time.Second)
				c.turn()
				c.schedule()
				c.finish()
				if len(c.pods()) == 0 {
					return
				}
			}
			t.Fatalf("not all served: %d Pods are left", len(c.pods()))
		})
	}
}

// before a write the process may be killed, or the API server say no.
func (c *chaos) before(string, client.Object) error {
	switch c.r.IntN(10) {
	case 0:
		c.kill()
		return errDead
	case 1:
		return apierrors.NewServiceUnavailable("down")
	}
	return nil
}

// after a write the process may be killed, or the answer be lost.
func (c *chaos) after(string, client.Object) error {
	c.requireLimits()
	switch c.r.IntN(10) {
	case 0:
		c.kill()
		return errDead
	case 1:
		return apierrors.NewTimeoutError("lost", 1)
	}
	return nil
}

func (c *chaos) step() {
	c.clock.Step(time.Duration(c.r.IntN(15)) * time.Second)
	switch c.r.IntN(5) {
	case 0, 1:
		c.n++
		if c.gangs && c.r.IntN(2) == 0 {
			tenant := []string{"x", "y"}[c.r.IntN(2)]
			c.gang(tenant, fmt.Sprintf("g%03d", c.n), "h100", 2)
			break
		}
		c.pod([]string{"x", "y"}[c.r.IntN(2)], fmt.Sprintf("p%03d", c.n), []string{"h100", "a100"}[c.r.IntN(2)])
	case 2:
		c.schedule()
	case 3:
		c.finish()
	}
	c.turn()
}

// turn is a round of the controller, of a new one if the last was killed. Now
// and then it has not seen yet what happened.
func (c *chaos) turn() {
	c.t.Helper()
	if m, ok := c.controller.client.(*mortal); ok && (m.dead || c.r.IntN(15) == 0) {
		c.restart()
		c.watch()
	}
	if c.r.IntN(4) > 0 {
		c.watch()
	}
	c.controller.Round(c.t.Context())
	c.requireLimits()
}

func (c *chaos) pods() []corev1.Pod {
	list := &corev1.PodList{}
	if err := c.base.List(c.t.Context(), list); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

func modelOf(p *corev1.Pod) string { return strings.ToUpper(p.Labels[v1alpha1.LabelPolicy]) }

func (c *chaos) requireLimits() {
	open := map[string]int{}
	alive := map[string]bool{}
	for _, p := range c.pods() {
		alive[p.Name] = true
		if !tenants.HasGate(&p) {
			open[p.Namespace+" "+modelOf(&p)]++
		}
	}
	for device, owner := range c.held { // by Pods that are gone, until released
		tenant, name, _ := strings.Cut(owner, "/")
		if !alive[name] {
			open[tenant+" "+strings.ToUpper(device[:1])+"100"]++
		}
	}
	for key, n := range open {
		if n > c.limits[key] {
			c.t.Fatalf("%s: %d are open, the limit is %d", key, n, c.limits[key])
		}
	}
}

// groupOf is the gang of a Pod, or "".
func groupOf(p *corev1.Pod) string {
	return *cmp.Or(p.Spec.SchedulingGroup, &corev1.PodSchedulingGroup{PodGroupName: new(string)}).PodGroupName
}

// schedule gives Pods whose gate is open what they ask for, those of a gang when
// none of them waits at its gate.
func (c *chaos) schedule() {
	waits := map[string]bool{}
	for _, p := range c.pods() {
		waits[groupOf(&p)] = waits[groupOf(&p)] || tenants.HasGate(&p)
	}
	waits[""] = false
	for _, p := range c.pods() {
		owner := p.Namespace + "/" + p.Name
		if tenants.HasGate(&p) || c.r.IntN(3) == 0 || c.deviceOf(owner) != "" || waits[groupOf(&p)] {
			continue
		}
		pool := strings.ToLower(modelOf(&p)[:1])
		for i := range 3 {
			device := fmt.Sprintf("%s/gpu-%d", pool, i)
			if c.held[device] == "" {
				c.held[device] = owner
				c.allocate(p.Namespace, p.Name, device)
				break
			}
		}
	}
}

func (c *chaos) deviceOf(owner string) string {
	for device, o := range c.held {
		if o == owner {
			return device
		}
	}
	return ""
}

// finish ends Pods, some by force, and releases what they had, now or later.
func (c *chaos) finish() {
	for _, p := range c.pods() {
		owner := p.Namespace + "/" + p.Name
		if c.deviceOf(owner) == "" || c.r.IntN(3) > 0 {
			continue
		}
		if err := c.base.Delete(c.t.Context(), &p); err != nil {
			c.t.Fatal(err)
		}
	}
	claims := &resourcev1.ResourceClaimList{}
	if err := c.base.List(c.t.Context(), claims); err != nil {
		c.t.Fatal(err)
	}
	alive := c.pods()
	for _, claim := range claims.Items {
		name := strings.TrimSuffix(claim.Name, "-accelerator")
		if c.r.IntN(2) == 0 || slices.ContainsFunc(alive, func(p corev1.Pod) bool { return p.Name == name }) {
			continue
		}
		if err := c.base.Delete(c.t.Context(), &claim); err != nil {
			c.t.Fatal(err)
		}
		delete(c.held, c.deviceOf(claim.Namespace+"/"+name))
	}
}
