package compile

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Annotations of a template, and of the claims made from it.
const (
	// AnnotationPolicyHash is the content hash of the revision.
	AnnotationPolicyHash = "gpuladder.dev/policy-hash"
	// AnnotationCarried lists, on the template only, what of the policy
	// Kubernetes can't express and ladder-scheduler adds.
	AnnotationCarried = "gpuladder.dev/carried-by-scheduler"
)

// ErrHashMismatch occurs when a revision's hash is not that of its content,
// that is, when it was not made by [Revision].
var ErrHashMismatch = errors.New("content does not match its hash")

// Template compiles a revision to the ResourceClaimTemplate that Pods of the
// namespace get their claim from, named <policy>-<revision>. Every field that
// the API server would fill in is set, so that what is read back can be
// compared with what was compiled.
func Template(revision *v1alpha1.PolicyRevision, namespace string) (*resourcev1.ResourceClaimTemplate, error) {
	name := v1alpha1.RevisionName(revision.Spec.Policy, revision.Spec.Revision)
	spec := revision.Spec.PolicySpec.DeepCopy()
	spec.Default()
	if revision.Spec.Hash != spec.ContentHash() {
		return nil, fmt.Errorf("compiling revision %s, %w", name, ErrHashMismatch)
	}
	if errs := Check(spec); len(errs) > 0 {
		return nil, fmt.Errorf("compiling revision %s, %w", name, errs.ToAggregate())
	}
	labels := map[string]string{
		v1alpha1.LabelPolicy:         revision.Spec.Policy,
		v1alpha1.LabelPolicyRevision: strconv.FormatInt(revision.Spec.Revision, 10),
	}
	return &resourcev1.ResourceClaimTemplate{
		TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: namespace,
			Labels:    mergeLabels(labels, map[string]string{LabelManagedBy: ManagedBy}),
			Annotations: map[string]string{
				AnnotationPolicyHash: revision.Spec.Hash,
				AnnotationCarried:    strings.Join(CarriedByScheduler(spec), "; "),
			},
		},
		Spec: resourcev1.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels:      labels,
				Annotations: map[string]string{AnnotationPolicyHash: revision.Spec.Hash},
			},
			Spec: claimSpec(spec),
		},
	}, nil
}

func claimSpec(spec *v1alpha1.AcceleratorPolicySpec) resourcev1.ResourceClaimSpec {
	alternatives := make([]resourcev1.DeviceSubRequest, 0, len(spec.Tiers))
	for i := range spec.Tiers {
		tier := &spec.Tiers[i]
		alternatives = append(alternatives, resourcev1.DeviceSubRequest{
			Name:            tier.Name,
			DeviceClassName: DeviceClassName(spec.Driver),
			Selectors:       selectorsOf(spec, tier),
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           int64(spec.CountOf(tier)),
			Tolerations:     tolerations(&spec.OnUnhealthy),
		})
	}
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{
			Name:           v1alpha1.RequestName,
			FirstAvailable: alternatives,
		}},
		Constraints: constraints(spec),
		Config:      parameters(spec),
	}}
}

// parameters tell the driver how the devices are shared, whichever tier they
// are of. Where nothing is to be set there are none, so that claims of policies
// that say nothing of it work with every version of the driver.
func parameters(spec *v1alpha1.AcceleratorPolicySpec) []resourcev1.DeviceClaimConfiguration {
	sharing := spec.Sharing.Canonical()
	if sharing == nil {
		return nil
	}
	sharing.Default()
	raw, err := json.Marshal(v1alpha1.GPUConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.GPUConfigKind},
		Sharing:  sharing,
	})
	if err != nil {
		// The type holds nothing that JSON can't write.
		panic(fmt.Sprintf("writing parameters, %v", err))
	}
	return []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: spec.Driver, Parameters: runtime.RawExtension{Raw: raw}},
	}}}
}

// tolerations is what onUnhealthy makes of the taint that marks a confirmed
// failure, the only taint that a claim may tolerate. It decides what taint
// eviction does to a Pod that is bound. It does not make a failed device
// allocatable again: such a device also carries the NoSchedule taint, which is
// never tolerated.
//
//   - Evict: tolerated for the grace period; without one, not at all, which is
//     eviction at once.
//   - Keep: tolerated without limit.
//   - Recreate and End: tolerated without limit as well. Taint eviction
//     deletes the Pod, past every PodDisruptionBudget and without leaving a
//     failed Pod behind, so it has to stay out of the way of the health
//     controller, which carries these two out.
func tolerations(u *v1alpha1.OnUnhealthy) []resourcev1.DeviceToleration {
	toleration := resourcev1.DeviceToleration{
		Key:      v1alpha1.TaintFailed,
		Operator: resourcev1.DeviceTolerationOpExists,
		Effect:   resourcev1.DeviceTaintEffectNoExecute,
	}
	if u.Action == v1alpha1.UnhealthyEvict {
		if u.GracePeriod == nil || u.GracePeriod.Duration == 0 {
			return nil
		}
		seconds := int64(u.GracePeriod.Seconds())
		toleration.TolerationSeconds = &seconds
	}
	return []resourcev1.DeviceToleration{toleration}
}

// constraints bind the devices of a claim together: topology that is a must,
// and one model unless the policy lets them mix. The model is demanded only of
// tiers that take several devices, so that a single device needs no model.
func constraints(spec *v1alpha1.AcceleratorPolicySpec) []resourcev1.DeviceConstraint {
	var result []resourcev1.DeviceConstraint
	for _, name := range spec.Constraints.MatchAttributes {
		result = append(result, matchAttribute(name, v1alpha1.RequestName))
	}
	model := spec.Driver + "/" + modelAttribute(spec.Driver)
	if spec.MixModels != v1alpha1.MixModelsNever || slices.Contains(spec.Constraints.MatchAttributes, model) {
		return result
	}
	var several []string
	for i := range spec.Tiers {
		if spec.CountOf(&spec.Tiers[i]) > 1 {
			several = append(several, v1alpha1.RequestName+"/"+spec.Tiers[i].Name)
		}
	}
	if len(several) > 0 {
		result = append(result, matchAttribute(model, several...))
	}
	return result
}

func matchAttribute(name string, requests ...string) resourcev1.DeviceConstraint {
	attribute := resourcev1.FullyQualifiedName(name)
	return resourcev1.DeviceConstraint{Requests: requests, MatchAttribute: &attribute}
}

// CarriedByScheduler lists what of a policy Kubernetes can't express and
// ladder-scheduler adds, each as `field: value`, in the order of the fields.
// The order of tiers is among it: to Kubernetes it is a preference.
func CarriedByScheduler(spec *v1alpha1.AcceleratorPolicySpec) []string {
	carried := []string{"tiers: strict order"}
	for i := range spec.Tiers {
		if after := spec.Tiers[i].After; after != nil && after.Duration > 0 {
			carried = append(carried, fmt.Sprintf("tiers[%d].after: %s", i, after.Duration))
		}
	}
	carried = append(carried, "ranking: "+string(spec.Ranking))
	if spec.MixTiers == v1alpha1.MixTiersWithinGroup {
		carried = append(carried, "mixTiers: "+string(spec.MixTiers))
	}
	if len(spec.PreferAttributes) > 0 {
		carried = append(carried, "preferAttributes: "+strings.Join(spec.PreferAttributes, ","))
	}
	if spec.Preempts != v1alpha1.PreemptsNever {
		carried = append(carried, "preempts: "+string(spec.Preempts))
	}
	carried = append(carried, "retry", "onUnhealthy: "+string(spec.OnUnhealthy.Action), "quota")
	return carried
}

func mergeLabels(maps ...map[string]string) map[string]string {
	merged := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			merged[k] = v
		}
	}
	return merged
}
