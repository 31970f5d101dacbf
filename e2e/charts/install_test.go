package charts_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// patience is for machines that do much else.
const patience = 10 * time.Minute

type site struct {
	client    client.Client
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
}

func realCluster(t *testing.T) (*site, []string) {
	t.Helper()
	kubeconfig, tag := os.Getenv(charts.EnvKubeconfig), os.Getenv(charts.EnvTag)
	if kubeconfig == "" || tag == "" {
		t.Skipf("needs a cluster with kubelets, in %s, and the images' tag, in %s", charts.EnvKubeconfig, charts.EnvTag)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	s := &site{}
	if s.client, err = client.New(config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		t.Fatal(err)
	}
	return s, []string{"--set=global.image.pullPolicy=Never", "--set=global.image.tag=" + tag}
}

// test runs `helm test`. Helm 3 asks for the logs of Pods that it has removed,
// since they have succeeded, and fails.
func (*site) test(t *testing.T, h *charts.Helm, version string) string {
	t.Helper()
	args := []string{"test", charts.Release, "--namespace", charts.Namespace, "--timeout", patience.String()}
	if version == binaries.Helm3 {
		return must(t, h, args...)
	}
	out := must(t, h, append(args, "--logs")...)
	if !strings.Contains(out, "holds no devices") {
		t.Errorf("helm test said:\n%s", out)
	}
	return out
}

// A release is installed, tested, upgraded while a Pod uses a device, and
// uninstalled: by Helm 3, by Helm 4, and begun by Helm 3 and gone on with by
// Helm 4. No allocation is lost, and nothing is left that should not be. It wants
// a cluster: `go tool mage e2e:release` makes one for it.
func TestLifeOfARelease(t *testing.T) {
	s, values := realCluster(t)
	for _, pair := range [][2]string{
		{binaries.Helm3, binaries.Helm3},
		{binaries.Helm4, binaries.Helm4},
		{binaries.Helm3, binaries.Helm4},
	} {
		t.Run(pair[0]+" then "+pair[1], func(t *testing.T) {
			first, then := helm(t, pair[0]), helm(t, pair[1])
			first.Kubeconfig, then.Kubeconfig = os.Getenv(charts.EnvKubeconfig), os.Getenv(charts.EnvKubeconfig)
			chart := chartDir(t)
			common := append([]string{"--namespace", charts.Namespace, "--wait", "--timeout", patience.String()}, values...)
			before := map[string]bool{}
			s.eventually(t, "a list of what there is", func(ctx context.Context) (err error) {
				before, err = s.objects(ctx)
				return err
			})

			must(t, first, append([]string{"install", charts.Release, chart, "--create-namespace"}, common...)...)
			t.Cleanup(func() {
				_, err := then.Run(context.WithoutCancel(t.Context()), "uninstall", charts.Release, "--namespace", charts.Namespace, "--ignore-not-found", "--wait")
				if err != nil {
					t.Log(err)
				}
			})
			out := s.test(t, first, pair[0])
			if strings.Count(out, "Phase:          Succeeded") < 2 {
				t.Errorf("helm test said:\n%s", out)
			}

			holder := s.hold(t)
			claim := s.claimOf(t, holder)
			must(t, then, append([]string{
				"upgrade", charts.Release, chart, "--reset-then-reuse-values", "--set=policies.catalog={h100-first}",
				"--set=scheduler.podAnnotations.example\\.com/upgraded=yes", "--set=controller.podAnnotations.example\\.com/upgraded=yes",
				"--set=driver.podAnnotations.example\\.com/upgraded=yes",
			}, common...)...)
			s.unchanged(t, holder, claim)
			s.test(t, then, pair[1])
			policy := custom("AcceleratorPolicy", "", "h100-first")
			s.eventually(t, "the policy to be ready", func(ctx context.Context) error {
				if err := s.client.Get(ctx, client.ObjectKeyFromObject(policy), policy); err != nil {
					return err
				}
				if name, _, _ := unstructured.NestedString(policy.Object, "status", "templateName"); name == "" {
					return fmt.Errorf("its status is %v", policy.Object["status"])
				}
				return nil
			})

			must(t, then, "uninstall", charts.Release, "--namespace", charts.Namespace, "--wait", "--timeout", patience.String())
			s.unchanged(t, holder, claim)
			s.eventually(t, "what was installed to be gone", func(ctx context.Context) error {
				now, err := s.objects(ctx)
				if err != nil {
					return err
				}
				var left []string
				for key := range now {
					if !before[key] && !mayStay(key) {
						left = append(left, key)
					}
				}
				if len(left) > 0 {
					slices.Sort(left)
					return fmt.Errorf("left are %s", strings.Join(left, ", "))
				}
				return nil
			})

			// The kinds have stayed, and a new installation takes them over: the
			// device that was held all the time is given back through it.
			must(t, then, append([]string{"install", charts.Release, chart}, common...)...)
			s.unchanged(t, holder, claim)
			if err := s.client.Delete(t.Context(), holder); err != nil {
				t.Fatal(err)
			}
			s.eventually(t, "the device to be given back", func(ctx context.Context) error {
				err := s.client.Get(ctx, client.ObjectKeyFromObject(claim), claim.DeepCopy())
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("the claim is still there, %v", err) //nolint:errorlint // err can be nil
			})
			must(t, then, "uninstall", charts.Release, "--namespace", charts.Namespace, "--wait", "--timeout", patience.String())
		})
	}
}

func must(t *testing.T, h *charts.Helm, args ...string) string {
	t.Helper()
	out, err := h.Run(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s %s: done", h.Name, args[0])
	return out
}

// mayStay says whether an object outlives the release on purpose: the kinds,
// the tenant's Pod and claim, and Helm's namespace.
func mayStay(key string) bool {
	for _, prefix := range []string{
		"customresourcedefinitions.apiextensions.k8s.io ", "apiservices.apiregistration.k8s.io v1alpha1.gpuladder.dev", "acceleratorpolicies.gpuladder.dev ", "policyrevisions.gpuladder.dev ",
		"allocationdecisions.gpuladder.dev ", "namespaces ", "pods default/", "resourceclaims.resource.k8s.io default/",
		"resourceclaimtemplates.resource.k8s.io default/",
		// Made in every new namespace, and by the life of Pods.
		"configmaps " + charts.Namespace + "/kube-root-ca.crt", "serviceaccounts " + charts.Namespace + "/default",
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	resource, name, _ := strings.Cut(key, " ")
	// Templates of policies, which stay, belong to their revisions.
	return resource == "resourceclaimtemplates.resource.k8s.io" && strings.Contains(name, "/h100-first-")
}

// objects lists every object of the cluster but events and what counts or
// follows others, as "resource namespace/name".
func (s *site) objects(ctx context.Context) (map[string]bool, error) {
	found := map[string]bool{}
	lists, err := s.discovery.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(unstable, r.Name) {
				continue
			}
			objects, err := s.dynamic.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, object := range objects.Items {
				name := schema.GroupResource{Group: gv.Group, Resource: r.Name}.String() + " "
				if object.GetNamespace() != "" {
					name += object.GetNamespace() + "/"
				}
				found[name+object.GetName()] = true
			}
		}
	}
	return found, nil
}

// unstable are resources that come and go with others or by themselves.
var unstable = []string{"events", "componentstatuses", "controllerrevisions", "leases", "endpoints", "endpointslices"}

// hold starts a Pod that keeps a device.
func (s *site) hold(t *testing.T) *corev1.Pod {
	t.Helper()
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "holder"},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "accelerator", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu.gpuladder.dev", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			}}},
		}}},
	}
	if err := s.client.Create(t.Context(), template); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "holder-"},
		Spec: corev1.PodSpec{
			SchedulerName:  "ladder-scheduler",
			ResourceClaims: []corev1.PodResourceClaim{{Name: "accelerator", ResourceClaimTemplateName: &template.Name}},
			Containers: []corev1.Container{{
				Name: "probe", Image: "ladder/ladder-driver:" + os.Getenv(charts.EnvTag), ImagePullPolicy: corev1.PullNever,
				Command:   []string{"/ladder-probe", "--expect", "1", "--hold"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "accelerator"}}},
			}},
		},
	}
	if err := s.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "the Pod to run", func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s, %v", pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
	return pod
}

func (s *site) claimOf(t *testing.T, pod *corev1.Pod) *resourcev1.ResourceClaim {
	t.Helper()
	claim := &resourcev1.ResourceClaim{}
	name := client.ObjectKey{Namespace: pod.Namespace, Name: *pod.Status.ResourceClaimStatuses[0].ResourceClaimName}
	if err := s.client.Get(t.Context(), name, claim); err != nil {
		t.Fatal(err)
	}
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		t.Fatalf("the claim of a running Pod has the status %v", claim.Status)
	}
	return claim
}

// unchanged holds the Pod and its claim to what they were.
func (s *site) unchanged(t *testing.T, pod *corev1.Pod, claim *resourcev1.ResourceClaim) {
	t.Helper()
	now, held := &corev1.Pod{}, &resourcev1.ResourceClaim{}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(claim), held); err != nil {
		t.Fatal(err)
	}
	if now.UID != pod.UID || now.Status.Phase != corev1.PodRunning || now.DeletionTimestamp != nil || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the Pod is %s, its containers %v", now.Status.Phase, now.Status.ContainerStatuses)
	}
	if held.UID != claim.UID || !equality.Semantic.DeepEqual(held.Status.Allocation, claim.Status.Allocation) {
		t.Errorf("the claim had %v, now it has %v", claim.Status.Allocation, held.Status.Allocation)
	}
}

func (s *site) eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	var last error
	since := time.Now()
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, patience, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		if last != nil && time.Since(since) > time.Minute {
			since = time.Now()
			t.Logf("still waiting for %s: %v", what, last)
		}
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v, last: %v", what, err, last)
	}
}

// The archive that `helm package` makes holds what the folder holds.
func TestPackage(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{binaries.Helm3, binaries.Helm4} {
		h := helm(t, name)
		if _, err := h.Run(t.Context(), "package", chartDir(t), "--destination", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		archives, err := filepath.Glob(filepath.Join(dir, name, "ladder-*.tgz"))
		if err != nil || len(archives) != 1 {
			t.Fatalf("%v, %v", archives, err)
		}
		packed, err := h.Run(t.Context(), "template", charts.Release, archives[0], "--namespace", charts.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := h.Run(t.Context(), "template", charts.Release, chartDir(t), "--namespace", charts.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		if packed != unpacked {
			t.Errorf("%s renders the archive differently", name)
		}
		files, err := h.Run(t.Context(), "show", "all", archives[0])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(files, "failedTemplate") {
			t.Errorf("%s packs the unit tests", name)
		}
	}
}
