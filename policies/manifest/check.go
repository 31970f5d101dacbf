package manifest

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Check looks at what objects say about one another: revisions and the
// policies' activeRevision, the Pods' labels, namespaces in two quotas. The
// error is an [*Error] at the first object that is wrong.
//
// In a cluster such things happen: what an object names was changed or deleted
// after it. So objects that [FromCluster] is true of are left as they are, for
// whoever reads the set to treat as the cluster does. [Set.Warnings] tells of
// policies and quotas among them; of a Pod it is told when it is decided.
func (s *Set) Check() error {
	s.unsettled = nil
	revisions := map[string]map[int64]bool{}
	for r := range All[*v1alpha1.PolicyRevision](s) {
		if revisions[r.Spec.Policy] == nil {
			revisions[r.Spec.Policy] = map[int64]bool{}
		}
		revisions[r.Spec.Policy][r.Spec.Revision] = true
	}
	for p, o := range All[*v1alpha1.AcceleratorPolicy](s) {
		// Without any revision a policy is revision 1.
		if n := p.Spec.ActiveRevision; n != nil && !has(revisions[p.Name], *n) {
			err := o.Errorf("spec.activeRevision", "names revision %d, which is not there; add the PolicyRevision %s", *n, v1alpha1.RevisionName(p.Name, *n))
			if !FromCluster(p) {
				return err
			}
			s.unsettled = append(s.unsettled, err)
		}
	}
	tenants := map[string]*v1alpha1.TenantQuota{}
	for q, o := range All[*v1alpha1.TenantQuota](s) {
		for i, ns := range q.Spec.Namespaces {
			other := tenants[ns]
			if other == nil {
				tenants[ns] = q
				continue
			}
			err := o.Errorf(fmt.Sprintf("spec.namespaces[%d]", i), "namespace %s belongs to TenantQuota %s already; a namespace has one tenant", ns, other.Name)
			if !FromCluster(q) || !FromCluster(other) {
				return err
			}
			s.unsettled = append(s.unsettled, err)
		}
	}
	for pod, o := range All[*corev1.Pod](s) {
		if !Undecided(pod) || FromCluster(pod) {
			continue // what a placed one has was decided by what the policy was then
		}
		if err := s.checkLabels(pod, o, revisions); err != nil {
			return err
		}
	}
	return nil
}

// checkLabels looks up what a Pod's labels name.
func (s *Set) checkLabels(pod *corev1.Pod, o Object, revisions map[string]map[int64]bool) error {
	policyField := "metadata.labels[" + v1alpha1.LabelPolicy + "]"
	revisionField := "metadata.labels[" + v1alpha1.LabelPolicyRevision + "]"
	policy, labelled := pod.Labels[v1alpha1.LabelPolicy]
	text, pinned := pod.Labels[v1alpha1.LabelPolicyRevision]
	if !labelled {
		if pinned {
			return o.Errorf(revisionField, "pins a revision but %s names no policy; name the policy", v1alpha1.LabelPolicy)
		}
		return nil
	}
	if _, ok := s.Find("AcceleratorPolicy", "", policy); !ok {
		return o.Errorf(policyField, "names AcceleratorPolicy %q, which is not there; add it or correct the label", policy)
	}
	if !pinned {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != text {
		return o.Errorf(revisionField, "%q is not a revision; give a whole number from 1", text)
	}
	if !has(revisions[policy], n) {
		return o.Errorf(revisionField, "names revision %d of %s, which is not there; add the PolicyRevision %s or correct the label", n, policy, v1alpha1.RevisionName(policy, n))
	}
	return nil
}

// FromCluster says whether an API server made an object, rather than a person
// by hand: it has a UID.
func FromCluster(o metav1.Object) bool { return o.GetUID() != "" }

// has says whether a policy with these revisions has revision n. One without
// any is revision 1.
func has(revisions map[int64]bool, n int64) bool {
	if len(revisions) == 0 {
		return n == 1
	}
	return revisions[n]
}

// Undecided says whether a Pod still waits for a node: it has none, and it is
// neither done nor being deleted.
func Undecided(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" &&
		pod.DeletionTimestamp == nil &&
		pod.Status.Phase != corev1.PodSucceeded &&
		pod.Status.Phase != corev1.PodFailed
}
