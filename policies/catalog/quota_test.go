package catalog_test

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// The files name what the code means, every policy has its binding, and only
// Pods with a policy's label are matched.
func TestQuotaObjects(t *testing.T) {
	objects, err := catalog.Quota(catalog.Accounts{Controller: "system:serviceaccount:elsewhere:c", Scheduler: "s"})
	if err != nil {
		t.Fatal(err)
	}
	bound, policies := map[string]bool{}, 0
	for _, o := range objects {
		raw, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "ladder-system") {
			t.Errorf("%s %s still names the default account", o.GetKind(), o.GetName())
		}
		if strings.HasSuffix(o.GetKind(), "Binding") {
			bound[strings.TrimSuffix(o.GetKind(), "Binding")+" "+o.GetName()] = true
			continue
		}
		if len(bound) > 0 {
			t.Errorf("%s %s comes after a binding", o.GetKind(), o.GetName())
		}
		policies++
		if fail, _, _ := unstructured.NestedString(o.Object, "spec", "failurePolicy"); fail != "Fail" {
			t.Errorf("%s %s has failurePolicy %q", o.GetKind(), o.GetName(), fail)
		}
		_, selects, _ := unstructured.NestedMap(o.Object, "spec", "matchConstraints", "objectSelector")
		if strings.Contains(string(raw), `"pods"`) && !selects {
			t.Errorf("%s %s is asked about every Pod", o.GetKind(), o.GetName())
		}
	}
	if policies != 4 || len(bound) != policies {
		t.Errorf("got %d policies and %d bindings, want 4 of each", policies, len(bound))
	}
	for _, name := range []string{
		v1alpha1.GateQuota, v1alpha1.LabelPolicy, v1alpha1.LabelPreemptible, v1alpha1.AnnotationReclaimDeadline, v1alpha1.AnnotationReclaimFor,
		v1alpha1.AnnotationReclaims, v1alpha1.AnnotationReclaimed, v1alpha1.AnnotationTurn, v1alpha1.AnnotationTurnModels,
	} {
		found, whole := false, regexp.MustCompile(regexp.QuoteMeta(name)+"[^-a-z]")
		for _, file := range []string{"quota/pods.yaml", "quota/quotas.yaml"} {
			raw, err := catalog.FS.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || whole.Match(raw)
		}
		if !found {
			t.Errorf("no file names %s", name)
		}
	}
}
