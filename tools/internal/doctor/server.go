package doctor

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// wantedMinor is the Kubernetes version that Ladder is made for, 1.37: DRA's v1
// has been on by default longer, but device taints and their rules are v1 there
// for the first time. wantedPatch has the fix for rules without a selector.
const (
	wantedMinor = 37
	wantedPatch = 2
)

func checkVersion(f *facts) []Finding {
	minor, err := strconv.Atoi(strings.TrimRight(f.version.Minor, "+"))
	if err != nil || f.version.Major != "1" {
		return []Finding{{
			Severity: Unknown, Summary: fmt.Sprintf("the server calls itself %q, which is no version of Kubernetes 1", f.version.GitVersion),
		}}
	}
	switch {
	case minor < wantedMinor:
		return []Finding{{
			Severity: Error, Summary: fmt.Sprintf("the server is %s, Ladder wants 1.%d or newer", f.version.GitVersion, wantedMinor),
			Meaning: "Device taints, their rules and mutating admission policies are not there in the versions that Ladder uses.",
			Action:  "Upgrade the cluster.",
		}}
	case minor > wantedMinor:
		return []Finding{{
			Severity: Warning, Summary: fmt.Sprintf("the server is %s, Ladder is tested with 1.%d", f.version.GitVersion, wantedMinor),
			Meaning: "ladder-scheduler is kube-scheduler 1.37 with one more plugin. Kubernetes supports a scheduler that is one version older than the server.",
			Action:  "See whether there is a newer Ladder.",
		}}
	}
	if patch, ok := patchOf(f.version.GitVersion); ok && patch < wantedPatch {
		return []Finding{{
			Severity: Warning, Summary: fmt.Sprintf("the server is %s; in versions before 1.%d.%d a DeviceTaintRule without a selector taints every device", f.version.GitVersion, wantedMinor, wantedPatch),
			Meaning: "Such a rule means no device, and means all of them there.",
			Action:  fmt.Sprintf("Upgrade to 1.%d.%d or newer, or have no rule without a selector.", wantedMinor, wantedPatch),
		}}
	}
	return nil
}

// patchOf is the third number of a version like v1.37.2-eks.1.
func patchOf(version string) (int, bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return 0, false
	}
	digits := parts[2]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	patch, err := strconv.Atoi(digits)
	return patch, err == nil
}

func checkAPIs(f *facts) []Finding {
	var found []Finding
	for _, api := range []struct {
		gvr      schema.GroupVersionResource
		severity Severity
		meaning  string
		action   string
	}{
		{claimsGVR, Error, "Nothing can ask for a device.", "Turn the API group resource.k8s.io/v1 on, and the gate DynamicResourceAllocation."},
		{slicesGVR, Error, "No driver can tell its devices.", "Turn the API group resource.k8s.io/v1 on."},
		{templatesGVR, Error, "Policies can't be compiled to templates.", "Turn the API group resource.k8s.io/v1 on."},
		{classesGVR, Error, "Claims can't name a class.", "Turn the API group resource.k8s.io/v1 on."},
		{rulesGVR, Warning, "Devices can't be tainted by hand; taints of drivers may not be seen either.", "Turn the gate DRADeviceTaintRules on."},
		{mutatingGVR, Error, "The label gpuladder.dev/policy does nothing: no Pod gets its claim.", "Turn the API admissionregistration.k8s.io/v1 mutatingadmissionpolicies on."},
		{guardsGVR, Error, "Nothing keeps Ladder's objects from being forged, nor two schedulers apart.", "Turn the API admissionregistration.k8s.io/v1 validatingadmissionpolicies on."},
	} {
		if !f.served[api.gvr] && f.could("the resources of "+api.gvr.GroupVersion().String()) {
			found = append(found, Finding{
				Severity: api.severity, Summary: fmt.Sprintf("%s of %s is not served", api.gvr.Resource, api.gvr.GroupVersion()), Meaning: api.meaning, Action: api.action,
			})
		}
	}
	return found
}

// probe is what an API server made of a claim that uses what policies use.
type probe struct {
	err error
	// sent and kept are the claim as it was written and as it came back.
	sent, kept *resourcev1.ResourceClaim
}

// probe creates a claim as a dry run: a field whose gate is off comes back empty.
func (r *reader) probe() probe {
	p := probe{sent: &resourcev1.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "ladder-doctor-", Namespace: metav1.NamespaceDefault},
	}}
	alternative := func(name string) resourcev1.DeviceSubRequest {
		return resourcev1.DeviceSubRequest{
			Name: name, DeviceClassName: "doctor.gpuladder.dev", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			Tolerations: []resourcev1.DeviceToleration{{Key: "doctor.gpuladder.dev/probe", Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}},
		}
	}
	p.sent.Spec.Devices.Requests = []resourcev1.DeviceRequest{{
		Name: v1alpha1.RequestName, FirstAvailable: []resourcev1.DeviceSubRequest{alternative("first"), alternative("second")},
	}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.sent)
	if err != nil {
		p.err = fmt.Errorf("writing a claim, %w", err)
		return p
	}
	kept, err := r.dynamic.Resource(claimsGVR).Namespace(p.sent.Namespace).Create(r.ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		p.err = err
		return p
	}
	p.kept = &resourcev1.ResourceClaim{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(kept.Object, p.kept); err != nil {
		p.err = fmt.Errorf("reading a claim, %w", err)
	}
	return p
}

func checkGates(f *facts) []Finding {
	switch {
	case !f.served[claimsGVR]:
		return nil // said already
	case apierrors.IsInvalid(f.probe.err):
		return []Finding{{
			Severity: Error, Summary: fmt.Sprintf("the server refuses a claim with alternatives: %v", f.probe.err),
			Meaning: "Tiers are the alternatives of a request (firstAvailable).", Action: "Turn the gate DRAPrioritizedList on.",
		}}
	case f.probe.err != nil:
		return []Finding{{
			Severity: Unknown, Summary: fmt.Sprintf("a claim could not be created as a dry run: %v", f.probe.err),
			Meaning: "Which fields of claims the server keeps can't be told.", Action: "Run doctor as somebody who may create ResourceClaims in the namespace default.",
		}}
	}
	var found []Finding
	requests := f.probe.kept.Spec.Devices.Requests
	if len(requests) != 1 || len(requests[0].FirstAvailable) != 2 {
		return append(found, Finding{
			Severity: Error, Summary: "the server drops the alternatives of a request",
			Meaning: "Tiers are the alternatives of a request (firstAvailable).", Action: "Turn the gate DRAPrioritizedList on.",
		})
	}
	if len(requests[0].FirstAvailable[0].Tolerations) != 1 {
		found = append(found, Finding{
			Severity: Error, Summary: "the server drops the tolerations of a request",
			Meaning: "A policy's onUnhealthy and its grace have no effect, and devices that have failed may be given out.", Action: "Turn the gate DRADeviceTaints on.",
		})
	}
	return found
}

func checkKinds(f *facts) []Finding {
	if !f.could(kindsGVR.Resource) {
		return nil
	}
	installed := map[string]*unstructured.Unstructured{}
	for i := range f.kinds {
		installed[f.kinds[i].GetName()] = &f.kinds[i]
	}
	var found []Finding
	for _, doc := range crds.All() {
		want := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &want.Object); err != nil {
			return append(found, Finding{Severity: Unknown, Summary: fmt.Sprintf("a kind that comes with this program can't be read: %v", err)})
		}
		name := want.GetName()
		have := installed[name]
		id := object("CustomResourceDefinition", "", name)
		switch {
		case have == nil:
			found = append(found, Finding{
				Severity: Error, Object: id, Summary: "is not installed", Meaning: "Ladder keeps its objects in it.",
				Action: "Install the chart with crds.enabled, or `kubectl apply --server-side -f policies/api/crds`.",
			})
		case !isEstablished(have):
			found = append(found, Finding{
				Severity: Error, Object: id, Summary: "is not established", Meaning: "The server does not serve it.", Action: "`kubectl describe` it; its conditions say why.",
			})
		case !sameSchema(have, want):
			found = append(found, Finding{
				Severity: Warning, Object: id, Summary: "is not the one that belongs to this version of the ladder command",
				Meaning: "Fields may be missing, or be checked in another way.",
				Action:  "Upgrade the release, or use the ladder command of the same version.",
			})
		}
	}
	return found
}

func isEstablished(kind *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(kind.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" {
			return m["status"] == "True"
		}
	}
	return false
}

// sameSchema compares the versions with their schemas; the server adds defaults
// around them.
func sameSchema(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(schemas(a), schemas(b))
}

func schemas(kind *unstructured.Unstructured) map[string]any {
	result := map[string]any{}
	versions, _, _ := unstructured.NestedSlice(plain(kind.Object), "spec", "versions")
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok {
			result[fmt.Sprint(m["name"])] = []any{m["served"], m["schema"]}
		}
	}
	return result
}

// plain gives numbers the same types wherever an object came from.
func plain(content map[string]any) map[string]any {
	raw, err := json.Marshal(content)
	if err != nil {
		return nil
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return nil
	}
	return u.Object
}
