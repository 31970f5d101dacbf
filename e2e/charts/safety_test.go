package charts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// bound are the roles of the cluster's own that the chart binds, and why.
var bound = map[string]string{
	"system:kube-scheduler":                     "what a scheduler needs",
	"system:volume-scheduler":                   "what a scheduler needs for volumes",
	"extension-apiserver-authentication-reader": "whom to trust about readers of metrics",
}

// opened is the one role that may write Pods: it takes their gate off, and sets
// the deadline of onUnhealthy. The policy ladder-controller-pods narrows that,
// since RBAC knows no fields.
const opened = "ladder-controller"

// No part may do more than its work: no wildcard, no secret, nothing with which
// rights could be given or taken on, nothing that runs code elsewhere.
func TestRolesAreNarrow(t *testing.T) {
	forbidden := map[string][]string{
		"resources": {
			"*", "secrets", "configmaps", "roles", "clusterroles", "rolebindings", "clusterrolebindings", "serviceaccounts",
			"serviceaccounts/token", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy", "certificatesigningrequests",
			"validatingadmissionpolicies", "mutatingadmissionpolicies", "customresourcedefinitions", "users", "groups",
		},
		"verbs": {"*", "escalate", "bind", "impersonate", "approve", "deletecollection"},
		"groups": {
			"*", "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io", "certificates.k8s.io",
		},
	}
	roles := 0
	for _, variation := range sorted(variations(t)) {
		for _, object := range render(t, variation) {
			switch object.GetKind() {
			case "ClusterRole", "Role":
				roles++
				role := decode[rbacv1.ClusterRole](t, object)
				for _, rule := range role.Rules {
					for what, values := range map[string][]string{"resources": rule.Resources, "verbs": rule.Verbs, "groups": rule.APIGroups} {
						for _, v := range values {
							if slices.Contains(forbidden[what], v) {
								t.Errorf("%s: %s grants the %s %s", variation, key(object), what, v)
							}
						}
					}
					writes := slices.ContainsFunc(rule.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
					for _, resource := range []string{"nodes", "pods", "namespaces", "resourceclaims"} {
						if object.GetName() == opened && resource == "pods" && !slices.ContainsFunc(rule.Verbs, func(v string) bool {
							return !slices.Contains([]string{"get", "list", "watch", "patch"}, v)
						}) {
							continue
						}
						if writes && slices.Contains(rule.Resources, resource) {
							t.Errorf("%s: %s may write %s", variation, key(object), resource)
						}
					}
				}
			case "ClusterRoleBinding", "RoleBinding":
				binding := decode[rbacv1.ClusterRoleBinding](t, object)
				if bound[binding.RoleRef.Name] == "" && find(t, render(t, variation), binding.RoleRef.Kind, binding.RoleRef.Name) == nil {
					t.Errorf("%s binds a role of others", key(object))
				}
				for _, subject := range binding.Subjects {
					if variation == "nvidia" && binding.Name == "ladder-extra-allocators" && subject.Name == "system:kube-scheduler" {
						continue // which the values name
					}
					if subject.Kind != "ServiceAccount" || subject.Namespace != "ladder-system" {
						t.Errorf("%s: %s binds %v", variation, key(object), subject)
					}
					find(t, render(t, variation), "ServiceAccount", subject.Name)
				}
			}
		}
	}
	if roles < 10 {
		t.Errorf("only %d roles were looked at", roles)
	}
}

// Only the driver and the device plugin touch the host, and only their folders.
func TestContainersAreConfined(t *testing.T) {
	hostPaths := map[string][]string{}
	seen := 0
	for _, variation := range sorted(variations(t)) {
		for _, object := range render(t, variation) {
			spec := podSpec(object)
			if spec == nil {
				continue
			}
			onHost := object.GetKind() == "DaemonSet"
			for _, field := range []string{"hostNetwork", "hostPID", "hostIPC"} {
				if spec[field] != nil {
					t.Errorf("%s sets %s", key(object), field)
				}
			}
			volumes, _, _ := unstructured.NestedSlice(spec, "volumes")
			for _, v := range volumes {
				if path, found, _ := unstructured.NestedString(v.(map[string]any), "hostPath", "path"); found {
					if !onHost {
						t.Errorf("%s mounts %s of the host", key(object), path)
					}
					if variation == "default" {
						hostPaths[object.GetName()] = append(hostPaths[object.GetName()], path)
					}
				}
			}
			for _, c := range containers(object) {
				seen++
				security, _, _ := unstructured.NestedMap(c, "securityContext")
				name, where := fmt.Sprint(c["name"]), fmt.Sprintf("%s: container %s of %s", variation, c["name"], key(object))
				if variation == "nvml" && name == "ladder-driver" {
					// NVIDIA's library opens the nodes of all GPUs, which takes a
					// privileged container; no other container may be one.
					if security["privileged"] != true || security["readOnlyRootFilesystem"] != true {
						t.Errorf("%s: the security context is %v", where, security)
					}
					continue
				}
				want := map[string]any{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true}
				if onHost {
					want["runAsNonRoot"] = nil
				}
				for field, value := range want {
					if security[field] != value {
						t.Errorf("%s: %s is %v, want %v", where, field, security[field], value)
					}
				}
				if drop, _, _ := unstructured.NestedStringSlice(security, "capabilities", "drop"); !slices.Equal(drop, []string{"ALL"}) {
					t.Errorf("%s drops the capabilities %v", where, drop)
				}
				var wantAdded []string
				if name == "fakenvml-install" {
					wantAdded = []string{"MKNOD"} // it makes the nodes of simulated GPUs
				}
				if added, _, _ := unstructured.NestedStringSlice(security, "capabilities", "add"); !slices.Equal(added, wantAdded) {
					t.Errorf("%s adds the capabilities %v, want %v", where, added, wantAdded)
				}
				if seccomp, _, _ := unstructured.NestedString(security, "seccompProfile", "type"); seccomp != "RuntimeDefault" {
					t.Errorf("%s has the seccomp profile %q", where, seccomp)
				}
				// The simulation is there to be made to fail, and an init container ends.
				if !strings.HasPrefix(name, "fakenvml") && object.GetKind() != "Pod" && (c["livenessProbe"] == nil || c["readinessProbe"] == nil) {
					t.Errorf("%s has no probes", where)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d containers were looked at", seen)
	}
	want := []string{"/var/lib/kubelet/plugins/gpu.gpuladder.dev", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"}
	if got := hostPaths["ladder-driver"]; !slices.Equal(got, want) || len(hostPaths) != 1 {
		t.Errorf("folders of the host are mounted by %v, want the driver alone to have %v", hostPaths, want)
	}
}

// The driver and the device plugin never meet on one node.
func TestDriverAndDevicePluginExclude(t *testing.T) {
	driver := podSpec(find(t, render(t, "full"), "DaemonSet", "ladder-driver"))
	plugin := podSpec(find(t, render(t, "full"), "DaemonSet", "ladder-device-plugin"))
	if stack, _, _ := unstructured.NestedString(plugin, "nodeSelector", "gpuladder.dev/stack"); stack != "device-plugin" {
		t.Errorf("the device plugin runs on nodes of stack %q", stack)
	}
	terms, _, _ := unstructured.NestedSlice(driver, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(terms) != 1 {
		t.Fatalf("the driver has the terms %v, of which one is enough", terms)
	}
	excludes := false
	expressions, _, _ := unstructured.NestedSlice(terms[0].(map[string]any), "matchExpressions")
	for _, e := range expressions {
		e := e.(map[string]any)
		values, _, _ := unstructured.NestedStringSlice(e, "values")
		excludes = excludes || e["key"] == "gpuladder.dev/stack" && e["operator"] == "NotIn" && slices.Equal(values, []string{"device-plugin"})
	}
	if !excludes {
		t.Errorf("the driver does not keep off nodes of the device plugin: %v", expressions)
	}
}

// Uninstalling finds everything by its labels, and nothing runs as a hook
// beside the test.
func TestEverythingIsLabelled(t *testing.T) {
	for _, variation := range sorted(variations(t)) {
		for _, object := range render(t, variation) {
			if hook := object.GetAnnotations()["helm.sh/hook"]; hook != "" && hook != "test" {
				t.Errorf("%s is a hook, %s", key(object), hook)
			} else if hook != "" && object.GetKind() != "Pod" {
				t.Errorf("%s is a hook: with `helm test --logs` Helm 3 takes every hook of a test for a Pod", key(object))
			}
			if object.GetKind() == "CustomResourceDefinition" {
				continue
			}
			labels := object.GetLabels()
			if labels["app.kubernetes.io/part-of"] != "ladder" || labels["app.kubernetes.io/instance"] != "ladder" ||
				!strings.HasPrefix(labels["app.kubernetes.io/name"], "ladder-") {
				t.Errorf("%s: %s has the labels %v", variation, key(object), labels)
			}
		}
	}
}

func decode[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		t.Fatalf("reading %s: %v", key(object), err)
	}
	return typed
}
