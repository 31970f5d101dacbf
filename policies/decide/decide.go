package decide

// Decide: from a question to a record.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// parked is a question that needs no search: the Pod may not be placed.
type parked struct {
	class   v1alpha1.FailureClass
	message string
}

// read finds the Pod and what it asks for, and whether it may be placed at all.
func (st *State) read(q *Query) (*problem, *parked, error) {
	p := st.pods[q.Pod]
	if p == nil {
		return nil, nil, fmt.Errorf("Pod %s, %w", q.Pod, ErrNotFound)
	}
	prob, err := st.problemOf(p, 0)
	if err != nil {
		return nil, nil, err
	}
	rev := prob.revision
	switch {
	case rev == nil || p.obj.Spec.NodeName != "":
		return prob, nil, nil
	case rev.withdrawn:
		return prob, &parked{v1alpha1.FailurePolicyInvalid, fmt.Sprintf("revision %d of policy %s is withdrawn", rev.number, rev.policy)}, nil
	case !st.namespaceMayUse(rev.spec, p.key.Namespace):
		return prob, &parked{v1alpha1.FailurePolicyInvalid, fmt.Sprintf("policy %s does not select the namespace", rev.policy)}, nil
	}
	return prob, nil, nil
}

// namespaceMayUse checks the policy's namespaceSelector, where the State knows
// the namespace: files rarely hold it, and admission has checked it.
func (st *State) namespaceMayUse(spec *v1alpha1.AcceleratorPolicySpec, namespace string) bool {
	ns := st.namespaces[namespace].get()
	if ns == nil || spec.NamespaceSelector == nil {
		return true
	}
	sel, err := metav1.LabelSelectorAsSelector(spec.NamespaceSelector)
	return err == nil && sel.Matches(labels.Set(ns.Labels))
}

// Decide answers the query. The State's content does not change, only its caches.
func (st *State) Decide(q Query) (*Decision, error) {
	prob, parked, err := st.read(&q)
	if err != nil {
		return nil, err
	}
	d := st.newDecision(&q, prob)
	r := st.newRun(prob, &q, false)
	if parked != nil {
		d.Outcome, d.Class = v1alpha1.OutcomePending, parked.class
		d.Message = "Pending: " + parked.message + "."
		r.recordUnread(d)
		return d, nil
	}
	if bad := r.allocatedProblem(); bad != nil {
		d.Outcome = v1alpha1.OutcomePending
		d.Message = "Pending: a device that is already allocated to the Pod can't be used: " + bad.detail + "."
		r.recordUnread(d)
		return d, nil
	}
	best := r.choose()
	if best == nil {
		d.Outcome, d.Class = r.verdict(&q)
	} else {
		d.Outcome, d.Node = v1alpha1.OutcomeAllocated, best.node.name
		d.Devices = r.devices(best)
		if a := r.mainAlternative(best); a != nil {
			d.Tier, d.TierIndex = a.tierName(), ptr.To(int32(a.index))
		}
	}
	r.record(d, best)
	d.Message = message(d)
	return d, nil
}

// newDecision fills in what does not depend on the outcome.
func (st *State) newDecision(q *Query, prob *problem) *Decision {
	p := prob.pod
	d := &Decision{Namespace: p.key.Namespace}
	d.Pod, d.PodUID = p.key.Name, p.obj.UID
	d.Attempt = max(q.Attempt, 1)
	d.EngineVersion = EngineVersion
	now := metav1.NewMicroTime(q.Now)
	d.DecidedAt = &now
	d.InputDigest = st.inputDigest(q)
	subject, number := p.obj.UID, int64(0)
	if c := prob.mainClaim(); c != nil && c.obj != nil {
		d.Claim, subject = c.obj.Name, c.obj.UID
	}
	if rev := prob.revision; rev != nil {
		d.Policy, d.PolicyRevision, d.PolicyHash = rev.policy, rev.number, rev.hash
		number = rev.number
	}
	d.IdempotencyKey = string(subject) + "/" + strconv.FormatInt(number, 10)
	return d
}

// verdict tells waiting from hopeless: nothing was found now; could anything
// ever be?
func (r *run) verdict(q *Query) (v1alpha1.Outcome, v1alpha1.FailureClass) {
	if r.poolMissing() {
		return v1alpha1.OutcomePending, ""
	}
	if r.knownPossible(q) {
		return v1alpha1.OutcomePending, ""
	}
	relaxed := r.st.newRun(r.prob, q, true)
	if relaxed.possible() {
		return v1alpha1.OutcomePending, ""
	}
	if relaxed.budget != nil {
		relaxed = r.st.newRun(r.prob, q, true)
		if relaxed.budget = nil; relaxed.possible() {
			return v1alpha1.OutcomeUnsatisfiable, v1alpha1.FailureQuotaNeverFits
		}
	}
	return v1alpha1.OutcomeUnsatisfiable, v1alpha1.FailureUnsatisfiable
}

// poolMissing: a pool that could matter can't be used as it is published, so
// nobody knows what it will hold.
func (r *run) poolMissing() bool {
	if r.st.broken == 0 {
		return false
	}
	return slices.ContainsFunc(r.st.poolOrder, func(p *pool) bool {
		return p.problem != "" && slices.ContainsFunc(r.prob.alts, func(a *alternative) bool {
			return a.spec == nil || a.spec.Driver == p.key.driver
		})
	})
}

// message says the outcome in one sentence, without names of other tenants.
func message(d *Decision) string {
	policy := ""
	if d.Policy != "" {
		policy = fmt.Sprintf(" of policy %s revision %d", d.Policy, d.PolicyRevision)
	}
	switch d.Outcome {
	case v1alpha1.OutcomeAllocated:
		if len(d.Devices) == 0 {
			return fmt.Sprintf("Allocated: node %s, no devices asked for.", d.Node)
		}
		return fmt.Sprintf("Allocated: %s on node %s by tier %s%s.", devicesInWords(d.Devices), d.Node, d.Tier, policy)
	case v1alpha1.OutcomePending:
		return "Pending: no tier" + policy + " can be met now" + tiersInWords(d.Tiers) + "."
	default:
		if d.Class == v1alpha1.FailureQuotaNeverFits {
			return "Unsatisfiable: the tenant's quota never allows any tier" + policy + tiersInWords(d.Tiers) + "."
		}
		return "Unsatisfiable: no tier" + policy + " can ever be met by this fleet" + tiersInWords(d.Tiers) + "."
	}
}

// devicesInWords counts devices by model, in their order.
func devicesInWords(devices []v1alpha1.DecidedDevice) string {
	var models []string
	counts := map[string]int{}
	for i := range devices {
		m := devices[i].Model
		if m == "" {
			m = "device of " + devices[i].Driver
		}
		if counts[m]++; counts[m] == 1 {
			models = append(models, m)
		}
	}
	for i, m := range models {
		models[i] = fmt.Sprintf("%d %s", counts[m], m)
	}
	return strings.Join(models, ", ")
}

// tiersInWords gives the reasons of each tier, most important first: what fits
// a message.
func tiersInWords(tiers []v1alpha1.TierEvidence) string {
	const most = 700
	var b strings.Builder
	for i := range tiers {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		part := sep + tiers[i].Name + " ("
		for j, r := range tiers[i].Rejections {
			if j > 0 {
				part += ", "
			}
			part += fmt.Sprintf("%d %s", r.Count, r.Code)
		}
		if len(tiers[i].Rejections) == 0 {
			part += "no devices"
		}
		part += ")"
		if b.Len()+len(part) > most {
			b.WriteString("; ...")
			break
		}
		b.WriteString(part)
	}
	return b.String()
}
