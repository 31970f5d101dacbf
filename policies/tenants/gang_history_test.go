package tenants

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpuladder.dev/ladder/policies/fair"
)

// gangs plays users, a scheduler that starts gangs whole, and a controller that
// carries out one action at a time and may be killed between any two.
type gangs struct {
	*world
	r     *rand.Rand
	n     int
	todo  []func()               // objects that are to come, in any order
	least map[string]int         // of a gang
	size  map[string]int         // how many Pods it is made with
	pods  map[string]*corev1.Pod // by name
	group map[string]string      // of a Pod
	held  map[string]string      // device to Pod
	left  map[string]string      // device to the namespace of a Pod that is gone
	queue []fair.Action
}

// Whatever comes in whatever order, and whoever is killed when: no tenant has
// more gates open than its limit, a gang's turn comes for all of it or not at
// all, who starts anew counts the same, and in the end all is served.
func TestRandomGangs(t *testing.T) {
	for seed := range uint64(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &gangs{
				world: newWorld(t), r: rand.New(rand.NewPCG(seed, 3)), least: map[string]int{}, size: map[string]int{},
				pods: map[string]*corev1.Pod{}, group: map[string]string{}, held: map[string]string{}, left: map[string]string{},
			}
			h.gpus("n", "H100", 6)
			h.policy("h", nil, tier("H100"))
			h.quota("x", []string{"x"}, part("H100", 2, 4))
			h.quota("y", []string{"y"}, part("H100", 0, 5))
			for range 150 {
				h.step()
			}
			for range 600 {
				if len(h.pods) == 0 && len(h.todo) == 0 {
					return
				}
				h.now = h.now.Add(30 * time.Second)
				h.come()
				h.carry(3)
				h.schedule()
				h.finish()
				h.act()
			}
			t.Fatalf("not all served: %d Pods are left, %v", len(h.pods), slices.Sorted(maps.Keys(h.pods)))
		})
	}
}

func (h *gangs) step() {
	h.t.Helper()
	h.now = h.now.Add(time.Duration(h.r.IntN(20)) * time.Second)
	switch h.r.IntN(9) {
	case 0:
		if len(h.pods) < 25 {
			h.submit()
		}
	case 1, 2:
		h.come()
	case 3, 4:
		h.carry(1 + h.r.IntN(3))
	case 5:
		h.schedule()
	case 6:
		h.finish()
	case 7:
		h.lose()
	case 8:
		h.queue, h.mirror = nil, h.fresh()
	}
	h.act()
}

// submit makes a gang, or a Pod alone; its objects come later, in any order.
func (h *gangs) submit() {
	h.n++
	namespace, group := []string{"x", "y"}[h.r.IntN(2)], ""
	size := 1
	if h.r.IntN(3) > 0 {
		least := 2 + h.r.IntN(3)
		group, size = fmt.Sprintf("g%03d", h.n), least+h.r.IntN(2)
		h.least[group], h.size[group] = least, size
		h.todo = append(h.todo, func() { h.world.group(namespace, group, int32(least)) })
	}
	for range size {
		h.todo = append(h.todo, func() { h.add(namespace, group) })
	}
	h.r.Shuffle(len(h.todo), func(i, j int) { h.todo[i], h.todo[j] = h.todo[j], h.todo[i] })
}

func (h *gangs) add(namespace, group string) {
	h.n++
	name := fmt.Sprintf("p%03d", h.n)
	change := func(*corev1.Pod) {}
	if group != "" {
		change = of(group)
	}
	h.pods[name], h.group[name] = h.pod(namespace, name, "h", change), group
}

func (h *gangs) come() {
	if len(h.todo) > 0 {
		h.todo[0]()
		h.todo = h.todo[1:]
	}
}

// carry carries out the next actions.
func (h *gangs) carry(n int) {
	for range min(n, len(h.queue)) {
		a := h.queue[0]
		h.queue = h.queue[1:]
		_, name, _, _ := SplitID(a.ID)
		if p := h.pods[name]; p != nil && p.DeletionTimestamp.IsZero() {
			h.pods[name] = h.opened(p)
		}
	}
}

// act asks what to do and holds it against what must be.
func (h *gangs) act() {
	h.t.Helper()
	for _, a := range h.actions() {
		if a.Kind != fair.Open {
			h.t.Fatalf("got %v of %s, nothing may be taken back", a.Kind, a.ID)
		}
		h.queue = append(h.queue, a)
	}
	if len(h.queue) == 0 {
		h.requireSameAsRestarted()
	}
	coming := map[string]bool{}
	for _, a := range h.queue {
		_, name, _, _ := SplitID(a.ID)
		if coming[name] {
			h.t.Fatalf("%s is opened twice", name)
		}
		coming[name] = true
	}
	open, all := map[string]int{}, map[string]int{}
	charged := map[string]int64{}
	for name, p := range h.pods {
		if !p.DeletionTimestamp.IsZero() {
			if h.deviceOf(name) != "" {
				charged[p.Namespace]++
			}
			continue
		}
		all[h.group[name]]++
		if !HasGate(p) || coming[name] {
			open[h.group[name]]++
			charged[p.Namespace]++
		}
	}
	for _, namespace := range h.left {
		charged[namespace]++
	}
	for _, q := range h.mirror.Quotas() {
		if limit := int64(*q.Spec.Models[0].Limit); charged[q.Name] > limit {
			h.t.Fatalf("tenant %s has %d gates open, its limit is %d", q.Name, charged[q.Name], limit)
		}
		usage := h.mirror.Usage(q.Name)
		if u := usage.Of("H100"); u.Charged > *u.Limit || u.Charged < charged[q.Name] {
			h.t.Fatalf("tenant %s is charged %d of %d, %d gates are open", q.Name, u.Charged, *u.Limit, charged[q.Name])
		}
	}
	for group, least := range h.least {
		// A Pod may be lost after the gang was let in; never was a part let in.
		if n := open[group]; n > 0 && n < least && all[group] >= least && !h.started(group) {
			h.t.Fatalf("%d of %d Pods of gang %s were let in, it starts with %d", n, all[group], group, least)
		}
	}
}

func (h *gangs) members(group string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		if h.group[name] == group && h.pods[name].DeletionTimestamp.IsZero() {
			names = append(names, name)
		}
	}
	return names
}

// running are the Pods of a gang that have devices.
func (h *gangs) running(group string) (n int) {
	for _, name := range h.members(group) {
		if h.deviceOf(name) != "" {
			n++
		}
	}
	return n
}

func (h *gangs) started(group string) bool { return h.running(group) > 0 }

func (h *gangs) deviceOf(pod string) string {
	for device, name := range h.held {
		if name == pod {
			return device
		}
	}
	return ""
}

// schedule gives devices to Pods alone and to Pods of gangs that have started,
// and starts a gang where as many of its Pods as it needs can.
func (h *gangs) schedule() {
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[name]
		if HasGate(p) || !p.DeletionTimestamp.IsZero() || h.deviceOf(name) != "" || h.r.IntN(3) == 0 {
			continue
		}
		group := h.group[name]
		if group == "" || h.started(group) {
			h.start(name)
			continue
		}
		open := slices.DeleteFunc(h.members(group), func(name string) bool { return HasGate(h.pods[name]) })
		if least := h.least[group]; len(open) >= least && 6-len(h.held)-len(h.left) >= least {
			for _, name := range open[:least] {
				h.start(name)
			}
		}
	}
}

func (h *gangs) start(name string) {
	for i := range 6 {
		device := fmt.Sprintf("n/gpu-%d", i)
		if _, gone := h.left[device]; h.held[device] == "" && !gone {
			h.held[device] = name
			h.allocate(h.pods[name], device)
			return
		}
	}
}

// finish ends what has devices, a gang whole, and releases what has ended.
func (h *gangs) finish() {
	for _, device := range slices.Sorted(maps.Keys(h.left)) {
		if h.r.IntN(2) == 0 {
			h.release(device)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[name]
		switch {
		case p == nil: // went with its gang
		case !p.DeletionTimestamp.IsZero():
			if h.r.IntN(2) == 0 {
				h.gone(name)
			}
		case h.deviceOf(name) == "" || h.r.IntN(4) > 0:
		case h.group[name] == "":
			h.pods[name] = h.terminating(p)
		default:
			if len(h.todo) > 0 {
				continue // others of it may still come
			}
			for _, other := range h.members(h.group[name]) {
				h.pods[other] = h.terminating(h.pods[other])
				if h.deviceOf(other) == "" {
					h.gone(other)
				}
			}
		}
	}
}

// lose deletes a Pod of a gang, not the last that runs, and has another one come
// for it.
func (h *gangs) lose() {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(h.pods)), func(name string) bool {
		return h.group[name] == "" || !h.pods[name].DeletionTimestamp.IsZero() || h.deviceOf(name) != "" && h.running(h.group[name]) == 1
	})
	if len(names) == 0 {
		return
	}
	name := names[h.r.IntN(len(names))]
	namespace, group := h.pods[name].Namespace, h.group[name]
	h.gone(name)
	h.todo = append(h.todo, func() { h.add(namespace, group) })
}

// gone takes a Pod away; its devices are released later.
func (h *gangs) gone(name string) {
	p, device := h.pods[name], h.deviceOf(name)
	h.remove(p)
	delete(h.pods, name)
	delete(h.group, name)
	if device != "" {
		delete(h.held, device)
		h.left[device] = p.Namespace
	}
	h.queue = slices.DeleteFunc(h.queue, func(a fair.Action) bool { return a.ID == IDOf(p.Namespace, p.Name, p.UID) })
}

func (h *gangs) release(device string) {
	for _, name := range slices.Sorted(maps.Keys(h.objects)) {
		if claim, ok := h.objects[name].(*resourceapi.ResourceClaim); ok && claim.Status.Allocation.Devices.Results[0].Device == device[len("n/"):] {
			h.remove(claim)
		}
	}
	delete(h.left, device)
}
