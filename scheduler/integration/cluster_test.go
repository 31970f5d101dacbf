// Package integration_test runs ladder-scheduler, whole, against a real
// kube-apiserver. There is no kubelet and no controller manager: nodes are
// objects, and the harness makes the claims that the claim controller would.
package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/configz"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/scheduler/app"
)

const (
	namespace = "default"
	patience  = 60 * time.Second
)

// server is the API server of the package.
var server struct {
	sync.Mutex
	env        *envtest.Environment
	config     *rest.Config
	kubeconfig string
	client     client.Client
}

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		runProcess()
	}
	ctrllog.SetLogger(logr.Discard())
	code := m.Run()
	if server.env != nil {
		if err := server.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		_ = os.Remove(server.kubeconfig)
	}
	os.Exit(code)
}

// cluster is an empty cluster for one test.
type cluster struct {
	client.Client
	t *testing.T
	// templates by name, for the harness' claim controller.
	templates map[string]*resourceapi.ResourceClaimTemplate
}

// newCluster returns a cluster, empty, and empties it after the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() || os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("needs a kube-apiserver and etcd: set KUBEBUILDER_ASSETS to the folder that holds them")
	}
	server.Lock()
	defer server.Unlock()
	if server.env == nil {
		startServer(t)
	}
	c := &cluster{Client: server.client, t: t, templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	t.Cleanup(c.clear)
	c.create(compile.DeviceClass(v1alpha1.DriverName))
	return c
}

func startServer(t *testing.T) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	env := &envtest.Environment{Scheme: scheme}
	for _, doc := range crds.All() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(doc, crd))
		env.CRDs = append(env.CRDs, crd)
	}
	// Nobody would take the taint of new nodes off again.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "TaintNodesByCondition", "ServiceAccount")
	config, err := env.Start()
	require.NoError(t, err)
	server.env = env
	config.QPS, config.Burst = 1000, 1000
	server.config = config
	user, err := env.AddUser(envtest.User{Name: "system:ladder-scheduler", Groups: []string{"system:masters"}}, nil)
	require.NoError(t, err)
	text, err := user.KubeConfig()
	require.NoError(t, err)
	file, err := os.CreateTemp("", "ladder-scheduler-*.kubeconfig")
	require.NoError(t, err)
	_, err = file.Write(text)
	require.NoError(t, errors.Join(err, file.Close()))
	server.kubeconfig = file.Name()
	server.client, err = client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
}

// clear removes what tests make.
func (c *cluster) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now := client.GracePeriodSeconds(0)
	lists := []client.ObjectList{
		&corev1.PodList{}, &resourceapi.ResourceClaimList{}, &resourceapi.ResourceSliceList{}, &resourceapi.DeviceClassList{},
		&resourceapi.DeviceTaintRuleList{}, &corev1.NodeList{}, &v1alpha1.AcceleratorPolicyList{}, &v1alpha1.PolicyRevisionList{},
		&v1alpha1.TenantQuotaList{}, &v1alpha1.AllocationDecisionList{},
	}
	for _, list := range lists {
		require.NoError(c.t, c.List(ctx, list))
		items, err := metaItems(list)
		require.NoError(c.t, err)
		for _, item := range items {
			if len(item.GetFinalizers()) > 0 {
				require.NoError(c.t, client.IgnoreNotFound(c.Patch(ctx, item, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
			}
			require.NoError(c.t, client.IgnoreNotFound(c.Delete(ctx, item, now)))
		}
	}
}

func metaItems(list client.ObjectList) ([]client.Object, error) {
	var items []client.Object
	err := meta.EachListItem(list, func(obj runtime.Object) error {
		o, ok := obj.(client.Object)
		if !ok {
			return fmt.Errorf("listing, got %T", obj)
		}
		items = append(items, o)
		return nil
	})
	return items, err
}

func (c *cluster) create(objs ...client.Object) {
	c.t.Helper()
	for _, obj := range objs {
		require.NoError(c.t, c.Create(c.t.Context(), obj), "creating %T %s", obj, obj.GetName())
	}
}

// addFleet makes the nodes and slices of a fleet.
func (c *cluster) addFleet(groups ...fleet.Group) {
	c.t.Helper()
	f := fleet.New(groups...)
	require.Empty(c.t, f.Validate())
	for _, node := range f.Nodes() {
		status := node.Status.DeepCopy()
		c.create(node)
		node.Status = *status
		require.NoError(c.t, c.Status().Update(c.t.Context(), node))
	}
	for _, slice := range f.Slices() {
		c.create(slice)
	}
}

// addPolicy makes a policy with its first revision.
func (c *cluster) addPolicy(name string, spec v1alpha1.AcceleratorPolicySpec) {
	c.t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	c.create(policy)
	revision, err := compile.Revision(policy, 1)
	require.NoError(c.t, err)
	c.create(revision)
	template, err := compile.Template(revision, namespace)
	require.NoError(c.t, err)
	c.templates[template.Name] = template
}

type podOption func(*corev1.Pod)

// addPod makes a Pod that names a policy, and its claim.
func (c *cluster) addPod(name, policy string, opts ...podOption) *corev1.Pod {
	c.t.Helper()
	pod := plainPod(name, opts...)
	template := v1alpha1.RevisionName(policy, 1)
	pod.Labels = map[string]string{v1alpha1.LabelPolicy: policy}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(template)}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: v1alpha1.ClaimRefName}}
	c.create(pod)
	from := c.templates[template]
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        name + "-accelerator",
			Labels:      from.Spec.Labels,
			Annotations: map[string]string{resourceapi.PodResourceClaimAnnotation: v1alpha1.ClaimRefName},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: from.Spec.Spec,
	}
	c.create(claim)
	patch := fmt.Sprintf(`{"status":{"resourceClaimStatuses":[{"name":%q,"resourceClaimName":%q}]}}`, v1alpha1.ClaimRefName, claim.Name)
	require.NoError(c.t, c.Status().Patch(c.t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
	return pod
}

func plainPod(name string, opts ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: v1alpha1.SchedulerName,
			Containers:    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	for _, opt := range opts {
		opt(pod)
	}
	return pod
}

func withCPU(cpu string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// startScheduler runs ladder-scheduler until the returned function is called or
// the test ends.
func (c *cluster) startScheduler() (stop func()) {
	c.t.Helper()
	return c.startSchedulerWith("")
}

// startSchedulerWith is startScheduler with a journal.
func (c *cluster) startSchedulerWith(journal string) (stop func()) {
	c.t.Helper()
	configz.Delete("componentconfig")
	opts := options.NewOptions()
	flags := pflag.NewFlagSet("scheduler", pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	require.NoError(c.t, flags.Parse([]string{"--kubeconfig=" + server.kubeconfig, "--secure-port=0", "--leader-elect=false"}))
	ctx, cancel := context.WithCancel(context.Background())
	s, err := app.Setup(ctx, opts, app.Options{Journal: journal})
	if err != nil {
		cancel()
		c.t.Fatalf("setting up the scheduler, %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		flush, flushed := context.WithTimeout(context.Background(), patience)
		defer flushed()
		if err := s.Core.Flush(flush); err != nil {
			c.t.Errorf("%v", err)
		}
		cancel()
		<-done
	})
	c.t.Cleanup(stop)
	return stop
}

// eventually waits until check returns no error.
func (c *cluster) eventually(check func() error) {
	c.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(c.t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		c.t.Fatalf("waiting: %v", last)
	}
}

// place is where a Pod and its devices are: "node/device+device".
func (c *cluster) place(name string) (string, error) {
	pod := &corev1.Pod{}
	if err := c.Get(c.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
		return "", err
	}
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s is not bound: %s", name, conditionText(pod))
	}
	var devices []string
	for _, ref := range pod.Spec.ResourceClaims {
		claimName := ptr.Deref(ref.ResourceClaimName, "")
		for _, s := range pod.Status.ResourceClaimStatuses {
			if s.Name == ref.Name {
				claimName = ptr.Deref(s.ResourceClaimName, "")
			}
		}
		claim := &resourceapi.ResourceClaim{}
		if err := c.Get(c.t.Context(), types.NamespacedName{Namespace: namespace, Name: claimName}, claim); err != nil {
			return "", err
		}
		if claim.Status.Allocation == nil {
			return "", fmt.Errorf("claim %s is not allocated", claimName)
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, r.Device)
		}
	}
	return strings.TrimSuffix(pod.Spec.NodeName+"/"+strings.Join(devices, "+"), "/"), nil
}

// placed waits until the Pod is bound and returns its place.
func (c *cluster) placed(name string) string {
	c.t.Helper()
	var at string
	c.eventually(func() (err error) {
		at, err = c.place(name)
		return err
	})
	return at
}

// conditionOf returns the Pod's accelerator condition, or nil.
func conditionOf(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(p corev1.PodCondition) bool { return p.Type == v1alpha1.ConditionAccelerator })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

func conditionText(pod *corev1.Pod) string {
	var text []string
	for _, p := range pod.Status.Conditions {
		text = append(text, fmt.Sprintf("%s=%s (%s) %s", p.Type, p.Status, p.Reason, p.Message))
	}
	return strings.Join(text, "; ")
}

// condition waits for a condition with this reason and returns its message.
func (c *cluster) condition(name, reason string) string {
	c.t.Helper()
	message := ""
	c.eventually(func() error {
		pod := &corev1.Pod{}
		if err := c.Get(c.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
			return err
		}
		condition := conditionOf(pod)
		if condition == nil || condition.Reason != reason {
			return fmt.Errorf("pod %s has no condition %s: %s", name, reason, conditionText(pod))
		}
		message = condition.Message
		return nil
	})
	return message
}

// record waits for the Pod's record with this outcome.
func (c *cluster) record(pod string, outcome v1alpha1.Outcome) *v1alpha1.AllocationDecision {
	c.t.Helper()
	var found *v1alpha1.AllocationDecision
	c.eventually(func() error {
		list := &v1alpha1.AllocationDecisionList{}
		if err := c.List(c.t.Context(), list); err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Spec.Pod == pod && list.Items[i].Spec.Outcome == outcome {
				found = &list.Items[i]
				return nil
			}
		}
		return fmt.Errorf("pod %s has no record with outcome %s", pod, outcome)
	})
	return found
}

// remove deletes a Pod and deallocates and deletes its claim, as the claim
// controller would.
func (c *cluster) remove(pod string) {
	c.t.Helper()
	ctx := c.t.Context()
	require.NoError(c.t, c.Delete(ctx, plainPod(pod), client.GracePeriodSeconds(0)))
	claim := &resourceapi.ResourceClaim{}
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: pod + "-accelerator"}, claim)
	if apierrors.IsNotFound(err) {
		return
	}
	require.NoError(c.t, err)
	claim.Status = resourceapi.ResourceClaimStatus{}
	require.NoError(c.t, c.Status().Update(ctx, claim))
	require.NoError(c.t, c.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	require.NoError(c.t, client.IgnoreNotFound(c.Delete(ctx, claim)))
}

func (c *cluster) pod(name string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{}
	require.NoError(c.t, c.Get(c.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, pod))
	return pod
}

func clusterKey(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

// definition returns one of Ladder's CRDs.
func (c *cluster) definition(name string) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	for _, doc := range crds.All() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(c.t, yaml.UnmarshalStrict(doc, crd))
		if crd.Name == name {
			return crd
		}
	}
	c.t.Fatalf("no CRD %s", name)
	return nil
}

// uninstall removes a CRD until the test ends.
func (c *cluster) uninstall(name string) {
	c.t.Helper()
	definitions := []*apiextensionsv1.CustomResourceDefinition{c.definition(name)}
	require.NoError(c.t, envtest.UninstallCRDs(server.config, envtest.CRDInstallOptions{CRDs: definitions}))
	c.eventually(func() error {
		err := c.List(c.t.Context(), &v1alpha1.TenantQuotaList{})
		if err == nil {
			return errors.New("the kind is still served")
		}
		return nil
	})
	c.t.Cleanup(func() { c.install(name) })
}

// install installs a CRD and waits until it is served.
func (c *cluster) install(name string) {
	c.t.Helper()
	definitions := []*apiextensionsv1.CustomResourceDefinition{c.definition(name)}
	_, err := envtest.InstallCRDs(server.config, envtest.CRDInstallOptions{CRDs: definitions})
	require.NoError(c.t, err)
}

// settled waits until the Pod is bound or was told why not.
func (c *cluster) settled(name string) {
	c.t.Helper()
	c.eventually(func() error {
		if pod := c.pod(name); conditionOf(pod) == nil {
			return fmt.Errorf("pod %s was told nothing: %s", name, conditionText(pod))
		}
		return nil
	})
}

// explain logs every record.
func (c *cluster) explain() {
	c.t.Helper()
	list := &v1alpha1.AllocationDecisionList{}
	require.NoError(c.t, c.List(c.t.Context(), list))
	for i := range list.Items {
		text, err := yaml.Marshal(list.Items[i].Spec)
		require.NoError(c.t, err)
		c.t.Logf("%s", text)
	}
}

// count returns how many devices of a tier fell under a reason.
func count(record *v1alpha1.AllocationDecision, tier string, code v1alpha1.Reason) int32 {
	for _, r := range rejections(record, tier) {
		if r.Code == code {
			return r.Count
		}
	}
	return 0
}

// details returns the details of a reason's examples by node.
func details(record *v1alpha1.AllocationDecision, tier string, code v1alpha1.Reason) map[string]string {
	result := map[string]string{}
	for _, r := range rejections(record, tier) {
		if r.Code == code {
			for _, e := range r.Examples {
				result[e.Node] = e.Detail
			}
		}
	}
	return result
}

func rejections(record *v1alpha1.AllocationDecision, tier string) []v1alpha1.Rejection {
	for _, evidence := range record.Spec.Tiers {
		if evidence.Name == tier {
			return evidence.Rejections
		}
	}
	return nil
}

// systemPriority is a priority class that every cluster has.
const systemPriority = "system-cluster-critical"

func podKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func quantity(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

// finishTermination deletes a Pod that is being evicted, as its kubelet would.
func (c *cluster) finishTermination(name string) {
	pod := &corev1.Pod{}
	if c.Get(c.t.Context(), podKey(name), pod) == nil && pod.DeletionTimestamp != nil {
		_ = c.Delete(c.t.Context(), pod, client.GracePeriodSeconds(0))
	}
}
