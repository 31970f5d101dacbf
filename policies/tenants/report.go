package tenants

// What a tenant's status says.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

const (
	// maxNext is how many Pods that wait a status lists.
	maxNext = 10
	// fewest Pods that say something about how often the first choice is had.
	fewest = 10
	// rare is the part of them, in percent, that has to be without it.
	rare = 90
	// maxMessage is the schema's limit.
	maxMessage = 1024
)

// Reasons of conditions.
const (
	reasonHeld        = "Held"
	reasonInvalid     = "Invalid"
	reasonConflict    = "NamespaceConflict"
	reasonNotListed   = "ModelNotInQuota"
	reasonLimit       = "LimitReached"
	reasonGuarantee   = "GuaranteeUsed"
	reasonOften       = "FirstChoiceHad"
	reasonTooFewKnown = "TooFewPods"
)

// Status is what the status of a quota should be. Conditions have no time of
// transition yet.
func (m *Mirror) Status(q *v1alpha1.TenantQuota) v1alpha1.TenantQuotaStatus {
	usage := m.state.Usage(q.Name)
	s := v1alpha1.TenantQuotaStatus{ObservedGeneration: q.Generation, SharePermille: int32(math.Round(usage.Share * 1000))}
	first := m.firstChoices(q.Name)
	models := map[string]bool{}
	for _, u := range usage.Models {
		models[u.Model] = true
		s.Models = append(s.Models, v1alpha1.ModelUsage{
			Model: u.Model, Used: clip(u.Allocated), Charged: clip(u.Charged), Borrowed: clip(u.Borrowed),
			FirstChoice: first[u.Model].pods, Fallbacks: first[u.Model].without,
		})
	}
	for model, f := range first {
		if !models[model] {
			s.Models = append(s.Models, v1alpha1.ModelUsage{Model: model, FirstChoice: f.pods, Fallbacks: f.without})
		}
	}
	slices.SortFunc(s.Models, func(a, b v1alpha1.ModelUsage) int { return cmp.Compare(a.Model, b.Model) })
	m.line(q.Name, &s)
	s.Conditions = []metav1.Condition{m.ready(q), firstChoiceRare(q, &usage, s.Models)}
	return s
}

// choice counts Pods by the model that they ask for first.
type choice struct{ pods, without int32 }

func (m *Mirror) firstChoices(tenant string) map[string]choice {
	counts := map[string]choice{}
	for _, w := range m.told {
		if w.entry.Tenant != tenant || w.phase != open {
			continue
		}
		for _, pod := range w.served {
			c := counts[pod.wanted[0]]
			c.pods++
			if !slices.ContainsFunc(pod.devices, func(d fair.Devices) bool { return slices.Contains(pod.wanted, d.Model) }) {
				c.without++
			}
			counts[pod.wanted[0]] = c
		}
	}
	return counts
}

// place is a Pod, or a gang, that waits.
type place struct {
	id       string
	priority int32
	created  time.Time
	reason   fair.Reason // of those that the engine does not know
	pods     []string
	gang     *gang // if it is one
}

// line fills in who waits.
func (m *Mirror) line(tenant string, s *v1alpha1.TenantQuotaStatus) {
	var list []place
	for id, w := range m.told {
		if w.entry.Tenant == tenant && w.phase == waiting {
			list = append(list, m.placeOf(id, place{priority: w.entry.Priority, created: w.entry.Created}))
		}
	}
	for id, reason := range m.blocked {
		p := m.placeOf(id, place{reason: reason})
		if pod := m.pods[p.pods[0]]; pod != nil && m.owner[pod.Namespace] == tenant {
			p.created, p.priority = pod.CreationTimestamp.UTC(), ptr.Deref(pod.Spec.Priority, 0)
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b place) int {
		return cmp.Or(cmp.Compare(m.state.Rank(b.priority, b.created), m.state.Rank(a.priority, a.created)),
			a.created.Compare(b.created), cmp.Compare(a.id, b.id))
	})
	var count int64
	var oldest time.Time
	for _, p := range list {
		count += int64(len(p.pods))
		for _, id := range p.pods {
			if pod := m.pods[id]; pod != nil && (oldest.IsZero() || pod.CreationTimestamp.Time.Before(oldest)) {
				oldest = pod.CreationTimestamp.UTC()
			}
		}
	}
	s.Waiting = clip(count)
	if !oldest.IsZero() {
		at := metav1.NewTime(oldest)
		s.WaitingSince = &at
	}
	for i, p := range list[:min(len(list), maxNext)] {
		namespace, name, _, _ := SplitID(p.pods[0])
		next := v1alpha1.WaitingPod{Position: int32(i + 1), Namespace: namespace, Name: name, Reason: string(p.reason)}
		if p.reason == "" {
			next.Reason, next.Message = m.why(p.id)
		}
		if p.gang != nil {
			next.Message = brief(p.gang.words() + next.Message)
		}
		s.Next = append(s.Next, next)
	}
}

// placeOf completes the place of a Pod, or of a gang.
func (m *Mirror) placeOf(id string, p place) place {
	p.id, p.pods = id, []string{id}
	if group := m.groupAt(id); group != nil {
		if g := m.gang(group); g != nil && len(g.core) > 0 {
			p.gang, p.pods = g, g.core
		}
	}
	return p
}

// words say which gang it is and how much of it is there.
func (g *gang) words() string {
	parts := strings.Split(g.id, "/")
	s := fmt.Sprintf("PodGroup %s, %d of %d Pods are there", parts[2], g.total, g.least)
	if g.complete() {
		s = fmt.Sprintf("PodGroup %s, %d Pods together: ", parts[2], len(g.core))
	}
	return s
}

// explain is what the engine says, and of a gang what it can't know: that no
// fleet of this size can ever serve all of it.
func (m *Mirror) explain(id string) (fair.Explanation, error) {
	x, err := m.state.Explain(id)
	w := m.told[id]
	if err == nil && w != nil && w.pods != nil && (x.Reason == fair.ReasonNoFreeDevices || x.Reason == fair.ReasonLimitReached) && m.tooLarge(w) {
		x.Reason, x.Detail = fair.ReasonNeverFits, "all of it together is more than the limit, or than the fleet has"
	}
	return x, err
}

// why a Pod or a gang waits, in one line.
func (m *Mirror) why(id string) (reason, message string) {
	x, err := m.explain(id)
	if err != nil {
		return "Unknown", err.Error()
	}
	var words []string
	for _, w := range x.Ways {
		word := string(w.Reason)
		if w.Model != "" {
			word = w.Model + ": " + word
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	message = strings.Join(words, "; ")
	if message == "" || x.Reason == fair.ReasonAwaitingReclaim {
		message = x.Detail
	}
	return string(x.Reason), brief(message)
}

// brief keeps a message inside the schema's limit.
func brief(message string) string {
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	return message
}

// Explain says where a Pod stands, or its gang, by namespace and name. False: the engine does
// not know it, for the reason or because it does not count.
func (m *Mirror) Explain(namespace, name string) (x fair.Explanation, blocked fair.Reason, ok bool) {
	for id, pod := range m.pods {
		if pod.Namespace != namespace || pod.Name != name {
			continue
		}
		id = m.entryOf(id)
		if reason, found := m.blocked[id]; found {
			return x, reason, false
		}
		x, err := m.explain(id)
		return x, "", err == nil
	}
	return x, "", false
}

// Usage of a tenant.
func (m *Mirror) Usage(tenant string) fair.Usage { return m.state.Usage(tenant) }

// Capacity of a model and how much of it is free.
func (m *Mirror) Capacity(model string) (devices, free int64) { return m.state.Capacity(model) }

// ready says whether the quota is held.
func (m *Mirror) ready(q *v1alpha1.TenantQuota) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, ObservedGeneration: q.Generation, Status: metav1.ConditionFalse}
	conflicts := m.Conflicts(q.Name)
	switch {
	case m.refused["quota/"+q.Name] != nil:
		c.Reason, c.Message = reasonInvalid, m.refused["quota/"+q.Name].Error()
	case len(conflicts) > 0:
		var words []string
		for _, x := range conflicts[:min(len(conflicts), maxNext)] {
			words = append(words, fmt.Sprintf("namespace %s belongs to TenantQuota %s", x.Namespace, x.Owner))
		}
		c.Reason, c.Message = reasonConflict, strings.Join(words, "; ")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonHeld, "the quota is held in all of its namespaces"
	}
	return c
}

// firstChoiceRare says whether Pods hardly ever get what they ask for first,
// and which field of the quota stands against it.
func firstChoiceRare(q *v1alpha1.TenantQuota, usage *fair.Usage, models []v1alpha1.ModelUsage) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionFirstChoiceRare, ObservedGeneration: q.Generation, Status: metav1.ConditionFalse,
		Reason: reasonTooFewKnown, Message: fmt.Sprintf("fewer than %d Pods with devices ask for one model first", fewest),
	}
	var worst *v1alpha1.ModelUsage
	for i := range models {
		m := &models[i]
		if m.FirstChoice < fewest {
			continue
		}
		if c.Reason == reasonTooFewKnown {
			c.Reason, c.Message = reasonOften, "Pods get the model that they ask for first"
		}
		if m.Fallbacks*100 >= m.FirstChoice*rare && (worst == nil || m.Fallbacks > worst.Fallbacks) {
			worst = m
		}
	}
	if worst == nil {
		return c
	}
	c.Status = metav1.ConditionTrue
	given := usage.Of(worst.Model)
	says := fmt.Sprintf("%d of %d Pods that ask for %s first got a lower tier", worst.Fallbacks, worst.FirstChoice, worst.Model)
	listed := slices.ContainsFunc(q.Spec.Models, func(m v1alpha1.ModelQuota) bool { return m.Model == worst.Model })
	switch {
	case !listed:
		c.Reason, c.Message = reasonNotListed, fmt.Sprintf("%s: spec.models does not list it", says)
	case given.Limit != nil && given.Charged >= *given.Limit:
		c.Reason, c.Message = reasonLimit, fmt.Sprintf("%s: the limit of %d %s is reached; raise limit of %s in spec.models", says, *given.Limit, worst.Model, worst.Model)
	default:
		weight := int32(1)
		if q.Spec.Weight != nil {
			weight = *q.Spec.Weight
		}
		c.Reason, c.Message = reasonGuarantee, fmt.Sprintf("%s: others hold what is not guaranteed; raise guaranteed of %s in spec.models (now %d), or spec.weight (now %d)",
			says, worst.Model, given.Guaranteed, weight)
	}
	return c
}

// clip makes a count fit for the API.
func clip(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }
