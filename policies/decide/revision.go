package decide

// Which revision of its policy a Pod gets.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// policy is an AcceleratorPolicy.
type policy struct {
	obj  *v1alpha1.AcceleratorPolicy
	sum  lanes
	hash string // of the present spec
}

// revision is one PolicyRevision, or what stands for revision 1 of a policy
// that has none.
type revision struct {
	policy    string
	number    int64
	hash      string
	spec      *v1alpha1.AcceleratorPolicySpec
	withdrawn bool
	sum       lanes
	name      string // of the object; "" if there is none
}

func (st *State) putPolicy(obj *v1alpha1.AcceleratorPolicy) error {
	obj = obj.DeepCopy()
	obj.Default()
	if err := st.checkPolicy("AcceleratorPolicy", obj, &obj.Spec, field.NewPath("spec")); err != nil {
		return err
	}
	st.dropPolicy(obj.Name)
	p := &policy{obj: obj, sum: sumOf("AcceleratorPolicy", policyContent(obj)), hash: obj.Spec.ContentHash()}
	st.policies[obj.Name] = p
	st.digest.add(&p.sum)
	return nil
}

func (st *State) dropPolicy(name string) {
	if p := st.policies[name]; p != nil {
		delete(st.policies, name)
		st.digest.sub(&p.sum)
	}
}

func (st *State) putRevision(obj *v1alpha1.PolicyRevision) error {
	obj = obj.DeepCopy()
	obj.Default()
	if err := st.checkPolicy("PolicyRevision", obj, &obj.Spec.PolicySpec, field.NewPath("spec", "policySpec")); err != nil {
		return err
	}
	if obj.Spec.Policy == "" || obj.Spec.Revision < 1 {
		return invalid("PolicyRevision", obj, "spec", "policy and revision must be set")
	}
	for _, other := range st.revisions[obj.Spec.Policy] {
		if other.number == obj.Spec.Revision && other.name != obj.Name {
			return invalid("PolicyRevision", obj, "spec.revision", fmt.Sprintf("PolicyRevision %s has the same number", other.name))
		}
	}
	st.dropRevision(obj.Name)
	r := &revision{
		policy:    obj.Spec.Policy,
		number:    obj.Spec.Revision,
		hash:      obj.Spec.PolicySpec.ContentHash(),
		spec:      &obj.Spec.PolicySpec,
		withdrawn: obj.Spec.State == v1alpha1.RevisionWithdrawn,
		name:      obj.Name,
	}
	r.sum = sumOf("PolicyRevision", revisionContent(r))
	st.revisionNames[obj.Name] = r
	if st.revisions[r.policy] == nil {
		st.revisions[r.policy] = map[int64]*revision{}
	}
	st.revisions[r.policy][r.number] = r
	st.digest.add(&r.sum)
	return nil
}

func (st *State) dropRevision(name string) {
	r := st.revisionNames[name]
	if r == nil {
		return
	}
	delete(st.revisionNames, name)
	delete(st.revisions[r.policy], r.number)
	if len(st.revisions[r.policy]) == 0 {
		delete(st.revisions, r.policy)
	}
	st.digest.sub(&r.sum)
}

// checkPolicy validates a policy's spec and compiles its selectors.
func (st *State) checkPolicy(kind string, obj named, spec *v1alpha1.AcceleratorPolicySpec, path *field.Path) error {
	if errs := spec.Validate(path); len(errs) > 0 {
		return invalid(kind, obj, errs[0].Field, errs[0].ErrorBody())
	}
	check := func(selectors []string, path *field.Path) error {
		for i, s := range selectors {
			if err := compileExpression(st.cel, s); err != nil {
				return invalid(kind, obj, path.Index(i).String(), oneLine(err))
			}
		}
		return nil
	}
	if err := check(spec.Constraints.Selectors, path.Child("constraints", "selectors")); err != nil {
		return err
	}
	for i := range spec.Tiers {
		if err := check(spec.Tiers[i].Selectors, path.Child("tiers").Index(i).Child("selectors")); err != nil {
			return err
		}
	}
	return nil
}

// revisionOf resolves the revision of the Pod's policy: the one its label
// pins; else the one whose template its claim was made from; else the policy's
// activeRevision; else the newest that says what the policy says now, the one
// the controller last called active, the newest usable one. A policy without
// PolicyRevisions is revision 1 itself.
func (st *State) revisionOf(obj *corev1.Pod) (*revision, error) {
	name := obj.Labels[v1alpha1.LabelPolicy]
	pol, revs := st.policies[name], st.revisions[name]
	pin, source, err := pinnedRevision(obj, name)
	if err != nil {
		return nil, err
	}
	if pol == nil && (pin == 0 || revs[pin] == nil) {
		return nil, fmt.Errorf("Pod %s/%s, metadata.labels[%s]: AcceleratorPolicy %q, %w", obj.Namespace, obj.Name, v1alpha1.LabelPolicy, name, ErrNotFound)
	}
	if pin == 0 {
		if pin = ptr.Deref(pol.obj.Spec.ActiveRevision, 0); pin != 0 {
			source = fmt.Sprintf("AcceleratorPolicy %s, spec.activeRevision", name)
		} else {
			pin = st.newestRevision(pol, revs)
		}
	}
	if r := revs[pin]; r != nil {
		return r, nil
	}
	if pin == 1 && len(revs) == 0 {
		return &revision{policy: name, number: 1, hash: pol.hash, spec: &pol.obj.Spec}, nil
	}
	return nil, fmt.Errorf("%s: revision %d of policy %q, %w", source, pin, name, ErrNotFound)
}

// pinnedRevision is the revision that the Pod's label or its claim's template
// fixes, or 0, and which of them said so.
func pinnedRevision(obj *corev1.Pod, policy string) (int64, string, error) {
	var label int64
	where := fmt.Sprintf("Pod %s/%s", obj.Namespace, obj.Name)
	source := where + ", metadata.labels[" + v1alpha1.LabelPolicyRevision + "]"
	if v, ok := obj.Labels[v1alpha1.LabelPolicyRevision]; ok {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 1 {
			return 0, "", fmt.Errorf("%s: %q is not a revision, %w", source, v, ErrInvalid)
		}
		label = n
	}
	i, template := policyClaim(obj, policy)
	switch {
	case template == 0:
	case label == 0:
		return template, fmt.Sprintf("%s, spec.resourceClaims[%d].resourceClaimTemplateName", where, i), nil
	case label != template:
		return 0, "", fmt.Errorf("%s, spec.resourceClaims[%d].resourceClaimTemplateName: made from revision %d, the label says %d, %w",
			where, i, template, label, ErrInvalid)
	}
	return label, source, nil
}

// policyClaim is the place of the policy's claim in the Pod, or -1, and the
// revision of the template it is made from, or 0.
func policyClaim(obj *corev1.Pod, policy string) (place int, revision int64) {
	place = -1
	for i := range obj.Spec.ResourceClaims {
		ref := &obj.Spec.ResourceClaims[i]
		if n := v1alpha1.RevisionOfTemplate(ptr.Deref(ref.ResourceClaimTemplateName, ""), policy); n != 0 {
			return i, n
		}
		if ref.Name == v1alpha1.ClaimRefName {
			place = i
		}
	}
	return place, 0
}

// newestRevision is the revision of a policy that pins none.
func (st *State) newestRevision(pol *policy, revs map[int64]*revision) int64 {
	if len(revs) == 0 {
		return 1
	}
	newest := func(ok func(*revision) bool) int64 {
		var best int64
		for n, r := range revs {
			if n > best && ok(r) {
				best = n
			}
		}
		return best
	}
	active := pol.obj.Status.ActiveRevision
	if revs[active] == nil {
		active = 0
	}
	return cmp.Or(
		newest(func(r *revision) bool { return r.hash == pol.hash }),
		active,
		newest(func(r *revision) bool { return !r.withdrawn }),
		slices.Max(slices.Collect(maps.Keys(revs))),
	)
}
