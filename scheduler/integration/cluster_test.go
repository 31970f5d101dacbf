// Package integration_test runs ladder-scheduler, whole, against a real
// kube-apiserver. There is no kubelet and no controller manager: nodes are
// objects, and the harness makes the claims that the claim controller would.
package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	// scheduler is the one that was started last.
	scheduler *app.Scheduler
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
	env := &envtest.Environment{Scheme: scheme, ControlPlaneStartTimeout: 2 * time.Minute}
	for _, doc := range crds.All() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		require.NoError(t, yaml.UnmarshalStrict(doc, crd))
		env.CRDs = append(env.CRDs, crd)
	}
	// Nobody would take the taint of new nodes off again.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "TaintNodesByCondition", "ServiceAccount").
		Append("feature-gates", "GenericWorkload=true").
		Append("runtime-config", "scheduling.k8s.io/v1beta1=true")
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
		&schedulingv1beta1.PodGroupList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &storagev1.StorageClassList{},
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
	c.create(&v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	c.addRevision(name, 1, spec)
}

// addRevision makes a revision of a policy.
func (c *cluster) addRevision(name string, number int64, spec v1alpha1.AcceleratorPolicySpec) {
	c.t.Helper()
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	revision, err := compile.Revision(policy, number)
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
	return c.addPodOf(name, policy, 1, opts...)
}

// addPodOf is addPod for a revision of the policy.
func (c *cluster) addPodOf(name, policy string, revision int64, opts ...podOption) *corev1.Pod {
	c.t.Helper()
	pod := plainPod(name, opts...)
	template := v1alpha1.RevisionName(policy, revision)
	pod.Labels = map[string]string{v1alpha1.LabelPolicy: policy}
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(template)})
	pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: v1alpha1.ClaimRefName})
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
	return c.startSchedulerAt(server.kubeconfig, journal)
}

// startSchedulerAt is startSchedulerWith for another way to the API server.
func (c *cluster) startSchedulerAt(kubeconfig, journal string) (stop func()) {
	c.t.Helper()
	return c.startSchedulerBy(journal, "--kubeconfig="+kubeconfig, "--leader-elect=false")
}

// startSchedulerBy is startSchedulerWith for arguments of its own.
func (c *cluster) startSchedulerBy(journal string, args ...string) (stop func()) {
	c.t.Helper()
	configz.Delete("componentconfig")
	opts := options.NewOptions()
	flags := pflag.NewFlagSet("scheduler", pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	require.NoError(c.t, flags.Parse(append(args, "--secure-port=0")))
	ctx, cancel := context.WithCancel(context.Background())
	s, err := app.Setup(ctx, opts, app.Options{Journal: journal, JournalKeep: -1})
	if err != nil {
		cancel()
		c.t.Fatalf("setting up the scheduler, %v", err)
	}
	c.scheduler = s
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
