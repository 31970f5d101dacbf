package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

const (
	// guardName is the policy that lets Ladder's scheduler alone allocate.
	guardName = "ladder-guard-allocations"
	// stockLease is kube-scheduler's, which ladder-scheduler takes in its place.
	stockLease = "kube-scheduler"
	// skew is how far clocks may be apart.
	skew = 10 * time.Second
)

// isLive says whether somebody holds a lease and renewed it in time.
func isLive(lease *coordinationv1.Lease, now time.Time) bool {
	spec := &lease.Spec
	if ptr.Deref(spec.HolderIdentity, "") == "" || spec.RenewTime == nil {
		return false
	}
	lasts := time.Duration(ptr.Deref(spec.LeaseDurationSeconds, 15)) * time.Second
	return now.Sub(spec.RenewTime.Time) <= lasts+skew
}

// live are the leases of a name that somebody holds: those of the namespaces in
// which Ladder runs, and those of others.
func (f *facts) live(name string) (own, others []*coordinationv1.Lease) {
	for i := range f.leases {
		lease := &f.leases[i]
		switch {
		case lease.Name != name || !isLive(lease, f.now):
		case f.isOwn(lease.Namespace):
			own = append(own, lease)
		default:
			others = append(others, lease)
		}
	}
	return own, others
}

// who are the schedulers at work.
type who struct {
	ladder   []*coordinationv1.Lease
	replaces bool // ladder-scheduler holds kube-scheduler's lease
	stock    bool // kube-scheduler holds it
	waits    bool // kube-scheduler runs and waits for it
	// strange are leases of Ladder's name where it is not known to run.
	strange []*coordinationv1.Lease
}

func (f *facts) schedulers() who {
	var w who
	w.ladder, w.strange = f.live(schedulerName)
	for i := range f.leases {
		lease := &f.leases[i]
		if lease.Name != stockLease || lease.Namespace != metav1.NamespaceSystem || !isLive(lease, f.now) {
			continue
		}
		if strings.HasPrefix(*lease.Spec.HolderIdentity, schedulerName) {
			w.replaces, w.ladder = true, append(w.ladder, lease)
		} else {
			w.stock = true
		}
	}
	w.waits = w.replaces && slices.ContainsFunc(f.pods, func(p corev1.Pod) bool {
		return p.Namespace == metav1.NamespaceSystem && p.Labels["component"] == "kube-scheduler" && p.Status.Phase == corev1.PodRunning
	})
	return w
}

func checkSchedulers(f *facts) []Finding {
	if !f.could(leasesGVR.Resource) {
		return nil
	}
	w := f.schedulers()
	var found []Finding
	if len(w.strange) > 0 {
		found = append(found, Finding{
			Severity: Warning, Summary: "somebody renews a lease of ladder-scheduler's name where Ladder is not known to run: " + places(w.strange),
			Meaning: "It is a second ladder-scheduler, which knows nothing of the decisions of the first one, or means nothing: anybody may make a lease in a namespace of his own.",
			Action:  "See whose it is (its holder is the name of a Pod). There is one Ladder per cluster.",
		})
	}
	switch {
	case len(w.ladder) == 0:
		return append(found, Finding{
			Severity: Warning, Summary: "no ladder-scheduler is at work: nobody renews its lease",
			Meaning: "With the stock scheduler policies still make claims and quotas open gates, but the order of tiers is a wish, after and ranking have no effect, a limit is not held at the moment of allocation, nothing is looked at again before it is written, and there are no records to replay.",
			Action:  "Install the chart with scheduler.enabled, or look at the Deployment ladder-scheduler and its log.",
		})
	case len(w.ladder) > 1:
		found = append(found, Finding{
			Severity: Error, Summary: "two ladder-schedulers are at work, by the leases " + places(w.ladder),
			Meaning: "Each knows only its own decisions that are under way, so they give one device to two claims sooner or later.",
			Action:  "Remove one of them. There is one Ladder per cluster.",
		})
	}
	if w.waits {
		found = append(found, Finding{
			Severity: Warning, Summary: "kube-scheduler runs and waits for the lease that ladder-scheduler holds",
			Meaning: "When ladder-scheduler ends, kube-scheduler takes over and places Pods without Ladder.",
			Action:  "Stop kube-scheduler on the control plane (docs/install.md).",
		})
	}
	if w.stock && f.could(guardsGVR.Resource) && f.could(bindingsGVR.Resource) {
		found = append(found, f.unguarded()...)
	}
	return found
}

// places names leases.
func places(leases []*coordinationv1.Lease) string {
	var where []string
	for _, lease := range leases {
		where = append(where, lease.Namespace+"/"+lease.Name)
	}
	return strings.Join(where, " and ")
}

// unguarded says what keeps the guard between two schedulers from working.
func (f *facts) unguarded() []Finding {
	const (
		meaning = "kube-scheduler and ladder-scheduler both allocate the same devices; each knows only its own decisions that are under way, so they give one device to two claims sooner or later."
		action  = "Install the chart with policies.guard.enabled and the driver in policies.guard.drivers, or let ladder-scheduler replace kube-scheduler."
	)
	id := object("ValidatingAdmissionPolicy", "", guardName)
	guard := f.guard()
	if guard == nil {
		return []Finding{{Severity: Error, Object: id, Summary: "is not installed, and two schedulers are at work", Meaning: meaning, Action: action}}
	}
	var found []Finding
	if !f.denies(guardName) {
		found = append(found, Finding{
			Severity: Error, Object: id, Summary: "is bound nowhere with the action Deny, and two schedulers are at work", Meaning: meaning, Action: action,
		})
	}
	drivers, err := guarded(guard)
	if err != nil {
		return append(found, Finding{Severity: Unknown, Object: id, Summary: err.Error()})
	}
	for _, driver := range f.ladderDrivers() {
		if !slices.Contains(drivers, driver) {
			found = append(found, Finding{Severity: Error, Object: id, Summary: "does not guard driver " + driver + ", and two schedulers are at work", Meaning: meaning, Action: action})
		}
	}
	return found
}

func (f *facts) guard() *admissionregistrationv1.ValidatingAdmissionPolicy {
	for i := range f.guards {
		if f.guards[i].Name == guardName {
			return &f.guards[i]
		}
	}
	return nil
}

// denies says whether a policy is bound so that what it refuses is refused.
func (f *facts) denies(policy string) bool {
	return slices.ContainsFunc(f.bindings, func(b admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
		return b.Spec.PolicyName == policy && slices.Contains(b.Spec.ValidationActions, admissionregistrationv1.Deny)
	})
}

// guarded are the drivers whose devices the guard keeps for Ladder.
func guarded(guard *admissionregistrationv1.ValidatingAdmissionPolicy) ([]string, error) {
	for _, v := range guard.Spec.Variables {
		if v.Name != "drivers" {
			continue
		}
		var drivers []string
		if err := json.Unmarshal([]byte(v.Expression), &drivers); err != nil {
			return nil, fmt.Errorf("the drivers that it guards can't be read, %w", err)
		}
		return drivers, nil
	}
	return nil, fmt.Errorf("it does not say which drivers it guards")
}

// ladderDrivers are the drivers that Ladder places Pods on here: those of the
// policies, and its own where it has slices.
func (f *facts) ladderDrivers() []string {
	uses := map[string]bool{}
	for i := range f.policies {
		spec := f.policies[i].Spec.DeepCopy()
		spec.Default()
		uses[spec.Driver] = true
	}
	for i := range f.slices {
		if f.slices[i].Spec.Driver == v1alpha1.DriverName {
			uses[v1alpha1.DriverName] = true
		}
	}
	var drivers []string
	for _, d := range compile.Drivers() {
		if uses[d] {
			drivers = append(drivers, d)
		}
	}
	return drivers
}
