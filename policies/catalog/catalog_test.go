package catalog_test

import (
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/catalog"
	"gpuladder.dev/ladder/policies/compile"
)

func admission(t *testing.T, accounts catalog.Accounts) []*unstructured.Unstructured {
	t.Helper()
	objects, err := catalog.Admission(accounts)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestPoliciesCompile(t *testing.T) {
	policies, err := catalog.Policies()
	if err != nil {
		t.Fatal(err)
	}
	files, err := fs.Glob(catalog.FS, "policies/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(policies) != len(files) || len(policies) < 4 {
		t.Fatalf("got %d policies from %d files, want one each and at least 4", len(policies), len(files))
	}
	for i, policy := range policies {
		t.Run(policy.Name, func(t *testing.T) {
			if want := strings.TrimSuffix(path.Base(files[i]), ".yaml"); policy.Name != want {
				t.Errorf("policy %s is in %s", policy.Name, files[i])
			}
			if errs := policy.Validate(); len(errs) > 0 {
				t.Errorf("invalid: %v", errs)
			}
			if warnings := compile.Lint(&policy.Spec); len(warnings) > 0 {
				t.Errorf("lint: %v", warnings)
			}
			revision, err := compile.Revision(policy, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := compile.Template(revision, "default"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDeviceClassesAreTheCompilers(t *testing.T) {
	found := map[string]resourcev1.DeviceClass{}
	for _, object := range admission(t, catalog.DefaultAccounts()) {
		if object.GetKind() != "DeviceClass" {
			continue
		}
		var class resourcev1.DeviceClass
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &class, true); err != nil {
			t.Fatal(err)
		}
		found[class.Name] = class
	}
	if len(found) != len(compile.Drivers()) {
		t.Errorf("got %d classes, want one for each of %v", len(found), compile.Drivers())
	}
	for _, driver := range compile.Drivers() {
		want := compile.DeviceClass(driver)
		if got := found[want.Name]; !reflect.DeepEqual(&got, want) {
			t.Errorf("class of %s: the file says %+v, the compiler %+v", driver, got, want)
		}
	}
}

// TestEveryPolicyIsBound also guards the order: a binding comes after what it binds.
func TestEveryPolicyIsBound(t *testing.T) {
	seen := map[string]bool{}
	bound := map[string]bool{}
	for _, object := range admission(t, catalog.DefaultAccounts()) {
		kind := object.GetKind()
		if policyKind, isBinding := strings.CutSuffix(kind, "Binding"); isBinding {
			name, _, _ := unstructured.NestedString(object.Object, "spec", "policyName")
			if !seen[policyKind+"/"+name] {
				t.Errorf("%s %s binds %s, which does not come before it", kind, object.GetName(), name)
			}
			bound[policyKind+"/"+name] = true
		} else if strings.HasSuffix(kind, "AdmissionPolicy") {
			seen[kind+"/"+object.GetName()] = true
			if fail, _, _ := unstructured.NestedString(object.Object, "spec", "failurePolicy"); fail != "Fail" {
				t.Errorf("%s %s has failurePolicy %q, want Fail, said out loud", kind, object.GetName(), fail)
			}
		}
	}
	if len(seen) != 12 {
		t.Errorf("got %d admission policies, want 12", len(seen))
	}
	for name := range seen {
		if !bound[name] {
			t.Errorf("%s is not bound and does nothing", name)
		}
	}
}

func TestAccountsAreReplacedEverywhere(t *testing.T) {
	accounts := catalog.Accounts{Controller: "user:boss", Scheduler: "user:hand"}
	old := regexp.MustCompile(`serviceaccount:ladder-system`)
	uses := map[string]int{}
	for _, object := range admission(t, accounts) {
		raw, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if old.Match(raw) {
			t.Errorf("%s %s still names a default account", object.GetKind(), object.GetName())
		}
		for _, user := range []string{accounts.Controller, accounts.Scheduler} {
			uses[user] += strings.Count(string(raw), user)
		}
	}
	if uses["user:boss"] != 7 || uses["user:hand"] != 2 {
		t.Errorf("the accounts are named %v times, want the controller in 7 and the scheduler in 2", uses)
	}
}

// Wherever the scheduler is listed the others are.
func TestOtherSchedulersAreListed(t *testing.T) {
	accounts := catalog.DefaultAccounts()
	accounts.OtherSchedulers = []string{"system:kube-scheduler", "second"}
	listed := `["` + accounts.Scheduler + `", "system:kube-scheduler", "second", "` + accounts.Controller + `"]`
	var found []string
	for _, object := range admission(t, accounts) {
		variables, _, err := unstructured.NestedSlice(object.Object, "spec", "variables")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range variables {
			switch expression := v.(map[string]any)["expression"].(string); {
			case expression == listed:
				found = append(found, object.GetName())
			case strings.Contains(expression, accounts.Scheduler):
				t.Errorf("%s says %s", object.GetName(), expression)
			}
		}
	}
	if want := []string{"ladder-decisions", "ladder-pod-decision"}; !slices.Equal(found, want) {
		t.Errorf("they are listed by %v, want %v", found, want)
	}
}

func TestKindsAreKnown(t *testing.T) {
	known := []string{
		"DeviceClass", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	}
	names := map[string]bool{}
	for _, object := range admission(t, catalog.DefaultAccounts()) {
		if !slices.Contains(known, object.GetKind()) {
			t.Errorf("%s is of an unexpected kind, %s", object.GetName(), object.GetKind())
		}
		if object.GetLabels()[compile.LabelManagedBy] != compile.ManagedBy {
			t.Errorf("%s %s does not say that it is Ladder's", object.GetKind(), object.GetName())
		}
		key := object.GetKind() + "/" + object.GetName()
		if names[key] {
			t.Errorf("%s is there twice", key)
		}
		names[key] = true
	}
}
