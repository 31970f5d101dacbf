package compile

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Revision freezes a policy under a number: defaults filled in, activeRevision
// left out, content hashed. A policy that can't be compiled is an error with
// every field that is wrong.
func Revision(policy *v1alpha1.AcceleratorPolicy, number int64) (*v1alpha1.PolicyRevision, error) {
	spec := policy.Spec.DeepCopy()
	spec.Default()
	spec.ActiveRevision = nil
	if errs := Check(spec); len(errs) > 0 {
		return nil, fmt.Errorf("compiling policy %s, %w", policy.Name, errs.ToAggregate())
	}
	revision := &v1alpha1.PolicyRevision{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PolicyRevision"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   v1alpha1.RevisionName(policy.Name, number),
			Labels: map[string]string{v1alpha1.LabelPolicy: policy.Name},
		},
		Spec: v1alpha1.PolicyRevisionSpec{
			Policy:     policy.Name,
			Revision:   number,
			Hash:       spec.ContentHash(),
			PolicySpec: *spec,
			State:      v1alpha1.RevisionUsable,
		},
	}
	if errs := revision.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("compiling policy %s, %w", policy.Name, errs.ToAggregate())
	}
	return revision, nil
}
