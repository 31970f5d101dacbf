package manifest

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Check looks at what objects say about one another: revisions and the
// policies' activeRevision, the Pods' labels, namespaces in two quotas. The
// error is an [*Error] at the first object that is wrong.
func (s *Set) Check() error {
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
			return o.Errorf("spec.activeRevision", "names revision %d, which is not there; add the PolicyRevision %s", *n, v1alpha1.RevisionName(p.Name, *n))
		}
	}
	tenants := map[string]string{}
	for q, o := range All[*v1alpha1.TenantQuota](s) {
		for i, ns := range q.Spec.Namespaces {
			if other, taken := tenants[ns]; taken {
				return o.Errorf(fmt.Sprintf("spec.namespaces[%d]", i), "namespace %s belongs to TenantQuota %s already; a namespace has one tenant", ns, other)
			}
			tenants[ns] = q.Name
		}
	}
	for pod, o := range All[*corev1.Pod](s) {
		if !Undecided(pod) {
			continue // what it has was decided by what the policy was then
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
