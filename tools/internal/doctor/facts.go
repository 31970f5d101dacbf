package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// facts are what the checks look at. What could not be read is empty there and
// listed in unread; what the server does not serve is not in served.
type facts struct {
	now     time.Time
	version *version.Info
	served  map[schema.GroupVersionResource]bool

	nodes       []corev1.Node
	pods        []corev1.Pod // of the control plane and of Ladder only
	leases      []coordinationv1.Lease
	deployments []appsv1.Deployment
	daemonSets  []appsv1.DaemonSet
	slices      []resourcev1.ResourceSlice
	classes     []resourcev1.DeviceClass
	rules       []resourcev1.DeviceTaintRule
	guards      []admissionregistrationv1.ValidatingAdmissionPolicy
	bindings    []admissionregistrationv1.ValidatingAdmissionPolicyBinding
	kinds       []unstructured.Unstructured // Ladder's CustomResourceDefinitions
	policies    []v1alpha1.AcceleratorPolicy
	quotas      []v1alpha1.TenantQuota
	migrations  []v1alpha1.DeviceMigration
	probe       probe

	// own are the namespaces in which Ladder runs; empty: not known, and any may
	// be one of them.
	own map[string]bool

	unread []unread
}

type unread struct {
	what string
	err  error
}

// could says whether a resource was read.
func (f *facts) could(what string) bool {
	for _, u := range f.unread {
		if u.what == what {
			return false
		}
	}
	return true
}

// Resources that are read.
var (
	nodesGVR       = corev1.SchemeGroupVersion.WithResource("nodes")
	podsGVR        = corev1.SchemeGroupVersion.WithResource("pods")
	leasesGVR      = coordinationv1.SchemeGroupVersion.WithResource("leases")
	deploymentsGVR = appsv1.SchemeGroupVersion.WithResource("deployments")
	daemonSetsGVR  = appsv1.SchemeGroupVersion.WithResource("daemonsets")
	slicesGVR      = resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	classesGVR     = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")
	claimsGVR      = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	templatesGVR   = resourcev1.SchemeGroupVersion.WithResource("resourceclaimtemplates")
	rulesGVR       = resourcev1.SchemeGroupVersion.WithResource("devicetaintrules")
	guardsGVR      = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
	bindingsGVR    = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings")
	mutatingGVR    = admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies")
	kindsGVR       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	policiesGVR    = v1alpha1.GroupVersion.WithResource("acceleratorpolicies")
	quotasGVR      = v1alpha1.GroupVersion.WithResource("tenantquotas")
	migrationsGVR  = v1alpha1.GroupVersion.WithResource("devicemigrations")
)

// Labels of what is looked for among Pods, Deployments and DaemonSets.
const (
	partOfLadder   = "app.kubernetes.io/part-of=ladder"
	isScheduler    = "component=kube-scheduler"
	labelName      = "app.kubernetes.io/name"
	schedulerName  = "ladder-scheduler"
	controllerName = "ladder-controller"
	driverName     = "ladder-driver"
)

// gather reads the facts. An error means that the server does not answer.
func gather(ctx context.Context, d dynamic.Interface, served discovery.DiscoveryInterface, now time.Time) (*facts, error) {
	f := &facts{now: now, served: map[schema.GroupVersionResource]bool{}}
	var err error
	if f.version, err = served.ServerVersion(); err != nil {
		return nil, fmt.Errorf("asking the API server for its version, %w", err)
	}
	for _, gvr := range []schema.GroupVersionResource{claimsGVR, guardsGVR, v1alpha1.GroupVersion.WithResource("")} {
		list, err := served.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
		if err != nil {
			if !apierrors.IsNotFound(err) && !discovery.IsGroupDiscoveryFailedError(err) {
				f.unread = append(f.unread, unread{"the resources of " + gvr.GroupVersion().String(), err})
			}
			continue
		}
		for _, r := range list.APIResources {
			f.served[gvr.GroupVersion().WithResource(r.Name)] = true
		}
	}
	r := &reader{ctx: ctx, dynamic: d, facts: f}
	f.nodes = list[corev1.Node](r, nodesGVR, "")
	f.pods = append(list[corev1.Pod](r, podsGVR, partOfLadder), list[corev1.Pod](r, podsGVR, isScheduler)...)
	f.leases = list[coordinationv1.Lease](r, leasesGVR, "")
	f.deployments = list[appsv1.Deployment](r, deploymentsGVR, partOfLadder)
	f.daemonSets = list[appsv1.DaemonSet](r, daemonSetsGVR, partOfLadder)
	f.slices = list[resourcev1.ResourceSlice](r, slicesGVR, "")
	f.classes = list[resourcev1.DeviceClass](r, classesGVR, "")
	f.rules = list[resourcev1.DeviceTaintRule](r, rulesGVR, "")
	f.guards = list[admissionregistrationv1.ValidatingAdmissionPolicy](r, guardsGVR, "")
	f.bindings = list[admissionregistrationv1.ValidatingAdmissionPolicyBinding](r, bindingsGVR, "")
	f.policies = list[v1alpha1.AcceleratorPolicy](r, policiesGVR, "")
	f.quotas = list[v1alpha1.TenantQuota](r, quotasGVR, "")
	f.migrations = list[v1alpha1.DeviceMigration](r, migrationsGVR, "")
	for _, kind := range r.list(kindsGVR, "") {
		if group, _, _ := unstructured.NestedString(kind.Object, "spec", "group"); group == v1alpha1.GroupName {
			f.kinds = append(f.kinds, kind)
		}
	}
	f.probe = r.probe()
	f.keepOwn()
	return f, nil
}

// account finds the service accounts of Ladder's parts in an admission policy,
// anyAccount those of whoever runs ladder-scheduler in its list of allocators.
var (
	account    = regexp.MustCompile(`system:serviceaccount:([a-z0-9-]+):(?:` + schedulerName + `|` + controllerName + `|` + driverName + `)\b`)
	anyAccount = regexp.MustCompile(`system:serviceaccount:([a-z0-9-]+):`)
)

// keepOwn finds the namespaces in which Ladder runs, and forgets what was found
// elsewhere: anybody may give an object of his namespace the names and labels of
// Ladder's. The admission policies say which they are, and only an administrator
// can write those. Where none is installed or can be read the workloads with
// Ladder's accounts are taken at their word. Leases are kept: what one means is
// for those who look at it to say.
func (f *facts) keepOwn() {
	f.own = map[string]bool{}
	for i := range f.guards {
		if !strings.HasPrefix(f.guards[i].Name, "ladder-") {
			continue
		}
		spec := &f.guards[i].Spec
		note := func(expression string, accounts *regexp.Regexp) {
			for _, m := range accounts.FindAllStringSubmatch(expression, -1) {
				f.own[m[1]] = true
			}
		}
		for _, v := range spec.Variables {
			note(v.Expression, account)
			if v.Name == "allocators" {
				note(v.Expression, anyAccount)
			}
		}
		for _, c := range spec.MatchConditions {
			note(c.Expression, account)
		}
	}
	if len(f.own) == 0 {
		accounts := []string{schedulerName, controllerName, driverName}
		for i := range f.deployments {
			if slices.Contains(accounts, f.deployments[i].Spec.Template.Spec.ServiceAccountName) {
				f.own[f.deployments[i].Namespace] = true
			}
		}
		for i := range f.daemonSets {
			if slices.Contains(accounts, f.daemonSets[i].Spec.Template.Spec.ServiceAccountName) {
				f.own[f.daemonSets[i].Namespace] = true
			}
		}
	}
	f.deployments = slices.DeleteFunc(f.deployments, func(d appsv1.Deployment) bool { return !f.isOwn(d.Namespace) })
	f.daemonSets = slices.DeleteFunc(f.daemonSets, func(d appsv1.DaemonSet) bool { return !f.isOwn(d.Namespace) })
	f.pods = slices.DeleteFunc(f.pods, func(p corev1.Pod) bool { return !f.isOwn(p.Namespace) })
}

// isOwn says whether Ladder runs in a namespace, as far as that is known. In
// kube-system it may, on the control plane, and nobody else makes objects there.
func (f *facts) isOwn(namespace string) bool {
	return len(f.own) == 0 || f.own[namespace] || namespace == metav1.NamespaceSystem
}

// reader lists objects and notes what it could not read.
type reader struct {
	ctx     context.Context // of one examination
	dynamic dynamic.Interface
	facts   *facts
}

// page is how many objects are asked for at once.
const page = 500

func (r *reader) list(gvr schema.GroupVersionResource, selector string) []unstructured.Unstructured {
	var all []unstructured.Unstructured
	options := metav1.ListOptions{Limit: page, LabelSelector: selector}
	for {
		list, err := r.dynamic.Resource(gvr).List(r.ctx, options)
		if err != nil {
			r.failed(gvr, err)
			return nil
		}
		all = append(all, list.Items...)
		if options.Continue = list.GetContinue(); options.Continue == "" {
			slices.SortFunc(all, func(a, b unstructured.Unstructured) int {
				return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
			})
			return all
		}
	}
}

// failed notes an error, once for each resource; that something is not served is
// for checkAPIs and checkKinds to say.
func (r *reader) failed(gvr schema.GroupVersionResource, err error) {
	if !apierrors.IsNotFound(err) && r.facts.could(gvr.Resource) {
		r.facts.unread = append(r.facts.unread, unread{gvr.Resource, err})
	}
}

func list[T any](r *reader, gvr schema.GroupVersionResource, selector string) []T {
	items := r.list(gvr, selector)
	all := make([]T, len(items))
	for i := range items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items[i].Object, &all[i]); err != nil {
			r.failed(gvr, fmt.Errorf("reading %s, %w", items[i].GetName(), err))
			return nil
		}
	}
	return all
}

// object names an object in a finding.
func object(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}
