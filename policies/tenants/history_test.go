package tenants

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// history plays a cluster at random: users, a scheduler that follows tiers and
// limits, nodes that release late, and a Mirror that is replaced now and then.
type history struct {
	*world
	r    *rand.Rand
	n    int
	pods map[string]*corev1.Pod
	held map[string]string // device to Pod
}

func (h *history) step() {
	h.t.Helper()
	h.now = h.now.Add(time.Duration(h.r.IntN(20)) * time.Second)
	switch h.r.IntN(6) {
	case 0, 1:
		h.n++
		namespace := []string{"x", "x2", "y"}[h.r.IntN(3)]
		p := h.pod(namespace, fmt.Sprintf("p%03d", h.n), []string{"h", "ha"}[h.r.IntN(2)])
		h.pods[p.Name] = p
	case 2:
		h.schedule()
	case 3:
		h.finish()
	case 4:
		h.mirror = h.fresh()
	}
	h.act()
}

// drain serves what is left, and says whether all is gone.
func (h *history) drain() bool {
	h.t.Helper()
	h.now = h.now.Add(30 * time.Second)
	h.schedule()
	h.act()
	h.finish()
	h.act()
	return len(h.pods) == 0
}

// act carries out what the Mirror says.
func (h *history) act() {
	h.t.Helper()
	h.requireSameAsRestarted()
	for _, a := range h.actions() {
		_, name, _, _ := SplitID(a.ID)
		p := h.pods[name]
		switch a.Kind {
		case fair.Open:
			if !HasGate(p) {
				h.t.Fatalf("%s is opened twice", name)
			}
			h.pods[name] = h.opened(p)
		case fair.Notice:
			_, _, servant, _ := SplitID(a.For)
			h.pods[name] = h.edit(p, func(p *corev1.Pod) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationReclaimDeadline, a.Deadline.Format(time.RFC3339Nano))
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationReclaimFor, string(servant))
			})
		case fair.Cancel:
			h.pods[name] = h.edit(p, func(p *corev1.Pod) {
				delete(p.Annotations, v1alpha1.AnnotationReclaimDeadline)
				delete(p.Annotations, v1alpha1.AnnotationReclaimFor)
			})
		case fair.Evict:
			h.end(name)
		}
	}
	h.requireLimits()
}

// requireLimits: no tenant holds, or is charged, more than its limit.
func (h *history) requireLimits() {
	h.t.Helper()
	h.sync()
	held := map[string]int64{}
	for device, name := range h.held {
		held[h.mirror.owner[h.pods[name].Namespace]+" "+modelOf(device)]++
	}
	for _, q := range h.mirror.Quotas() {
		usage := h.mirror.Usage(q.Name)
		for _, m := range q.Spec.Models {
			u := usage.Of(m.Model)
			if limit := int64(*m.Limit); u.Charged > limit || held[q.Name+" "+m.Model] > limit {
				h.t.Fatalf("tenant %s has %d %s and is charged %d, its limit is %d", q.Name, held[q.Name+" "+m.Model], m.Model, u.Charged, limit)
			}
			if u.Allocated != held[q.Name+" "+m.Model] {
				h.t.Fatalf("tenant %s has %d %s, counted are %d", q.Name, held[q.Name+" "+m.Model], m.Model, u.Allocated)
			}
		}
	}
}

func modelOf(device string) string {
	return map[byte]string{'h': "H100", 'a': "A100"}[device[0]]
}

func (h *history) deviceOf(pod string) string {
	for device, name := range h.held {
		if name == pod {
			return device
		}
	}
	return ""
}

// schedule gives open Pods devices, by tiers and within limits, of the models that
// they were opened for.
func (h *history) schedule() {
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[name]
		if HasGate(p) || h.deviceOf(name) != "" || h.r.IntN(3) == 0 {
			continue
		}
		pools := map[string][]string{"h": {"h"}, "ha": {"h", "a"}}[p.Labels[v1alpha1.LabelPolicy]]
		if device := h.place(p, pools); device != "" {
			h.held[device] = name
			h.allocate(p, device)
		}
	}
}

func (h *history) place(p *corev1.Pod, pools []string) string {
	models := modelsOn(p)
	for _, pool := range pools {
		if len(models) > 0 && !slices.Contains(models, modelOf(pool)) {
			continue
		}
		used := int32(0)
		tenant := h.mirror.owner[p.Namespace]
		for device, name := range h.held {
			if device[:1] == pool && h.mirror.owner[h.pods[name].Namespace] == tenant {
				used++
			}
		}
		for _, m := range h.mirror.Quota(tenant).Spec.Models {
			if m.Model == modelOf(pool) && used >= *m.Limit {
				used = -1
			}
		}
		for i := range 3 {
			if device := fmt.Sprintf("%s/gpu-%d", pool, i); used >= 0 && h.held[device] == "" {
				return device
			}
		}
	}
	return ""
}

// finish ends Pods with devices, and releases those that are ending.
func (h *history) finish() {
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[name]
		switch {
		case !p.DeletionTimestamp.IsZero() && h.r.IntN(2) == 0:
			h.release(name)
		case h.deviceOf(name) != "" && h.r.IntN(3) == 0:
			h.end(name)
		}
	}
}

func (h *history) end(name string) {
	h.pods[name] = h.terminating(h.pods[name])
	if h.deviceOf(name) == "" {
		h.release(name)
	}
}

// release lets the Pod go first or its claim, as it comes.
func (h *history) release(name string) {
	p, device := h.pods[name], h.deviceOf(name)
	h.remove(p)
	if device != "" {
		h.remove(h.objects["*v1.ResourceClaim "+p.Namespace+"/"+p.Name+"-accelerator"])
		delete(h.held, device)
	}
	delete(h.pods, name)
}
