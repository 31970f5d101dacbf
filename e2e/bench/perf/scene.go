package perf

// The workloads of ours: a fleet of which few nodes carry the best boards, some
// devices taken already, and Pods with a policy of three tiers.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kubernetes/test/utils/client-go/ktesting"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/e2e/bench"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/fleet"
)

const (
	// measured is the namespace of the Pods that are measured, in upstream's
	// workloads and ours.
	measured = "test"
	// taken is the namespace of the claims that hold devices beforehand.
	taken  = "init"
	policy = "h100-first"

	gpusPerNode = 8
	podsPerNode = 2
	// settle is how long the scheduler has to read what was made for it.
	settle = "3s"
)

// sceneFleet is the fleet of a scene: one node in 25 carries H100, half of the
// others A100, the rest L4.
func sceneFleet(nodes int) *fleet.Fleet {
	best := max(nodes/25, 1)
	rest := nodes - best
	return fleet.New(
		fleet.Group{Name: "a100", Nodes: rest / 2, Board: "A100-SXM4-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "h100", Nodes: best, Board: "H100-SXM5-80GB", GPUs: gpusPerNode},
		fleet.Group{Name: "l4", Nodes: rest - rest/2, Board: "L4", GPUs: gpusPerNode},
	)
}

// scenePolicy is the policy, its revision and what Pods get their claims from.
func scenePolicy() (*v1alpha1.AcceleratorPolicy, *v1alpha1.PolicyRevision, *resourcev1.ResourceClaimTemplate, error) {
	p := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{Name: policy}}
	p.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AcceleratorPolicy"))
	for _, tier := range []struct{ name, model string }{{"h100", "H100"}, {"a100", "A100"}, {"l4", "L4"}} {
		p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: tier.name, Models: []string{tier.model}})
	}
	revision, err := compile.Revision(p, 1)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("making the policy's revision, %w", err)
	}
	revision.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PolicyRevision"))
	template, err := compile.Template(revision, measured)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("compiling the policy, %w", err)
	}
	return p, revision, template, nil
}

// sceneCase is the test case of a scene and writes its templates. The fleet is
// there before it begins: see makeScene.
func sceneCase(spec bench.Spec) (object, error) {
	_, _, template, err := scenePolicy()
	if err != nil {
		return nil, err
	}
	templatePath, podPath := filepath.Join(spec.Out, "claimtemplate.yaml"), filepath.Join(spec.Out, "pod.yaml")
	if err := errors.Join(writeYAML(templatePath, template), writeYAML(podPath, scenePod(template.Name))); err != nil {
		return nil, err
	}
	return object{
		"name":         bench.TiersCase,
		"featureGates": object{"DynamicResourceAllocation": true, "DRAPrioritizedList": true},
		"workloadTemplate": []any{
			object{"opcode": "createNodes", "count": 0}, // for the hook that comes after it
			object{"opcode": "createAny", "templatePath": templatePath, "namespace": measured},
			object{"opcode": "sleep", "duration": settle},
			object{"opcode": "createPods", "namespace": measured, "countParam": "$pods", "podTemplatePath": podPath, "collectMetrics": true},
		},
		"workloads": []any{object{
			"name": string(spec.Workload.Scene), "labels": []any{"performance"}, "params": object{"pods": podsPerNode * spec.Nodes},
		}},
	}, nil
}

func scenePod(template string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Labels: map[string]string{v1alpha1.LabelPolicy: policy}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: v1alpha1.ClaimRefName, ResourceClaimTemplateName: ptr.To(template)}},
			Containers: []corev1.Container{{
				Name: "main", Image: "none",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: v1alpha1.ClaimRefName}}},
			}},
		},
	}
}

// makeScene makes policy, nodes, slices and the claims that hold devices.
func makeScene(tCtx ktesting.TContext, spec bench.Spec) error {
	p, revision, _, err := scenePolicy()
	if err != nil {
		return err
	}
	for resource, obj := range map[string]runtime.Object{"acceleratorpolicies": p, "policyrevisions": revision} {
		if err := createOurs(tCtx, resource, obj); err != nil {
			return err
		}
	}
	if _, err := tCtx.Client().ResourceV1().DeviceClasses().Create(tCtx, compile.DeviceClass(v1alpha1.DriverName), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the device class, %w", err)
	}
	f := sceneFleet(spec.Nodes)
	if errs := f.Validate(); len(errs) > 0 {
		return fmt.Errorf("making the fleet, %w", errs.ToAggregate())
	}
	nodes, slices := f.Nodes(), f.Slices()
	if err := each(tCtx, len(nodes), func(i int) error {
		_, err := tCtx.Client().CoreV1().Nodes().Create(tCtx, nodes[i], metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("creating nodes, %w", err)
	}
	if err := each(tCtx, len(slices), func(i int) error {
		_, err := tCtx.Client().ResourceV1().ResourceSlices().Create(tCtx, slices[i], metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("creating slices, %w", err)
	}
	return takeDevices(tCtx, sceneClaims(spec.Workload.Scene, slices))
}

// createOurs creates an object of Ladder's own group.
func createOurs(tCtx ktesting.TContext, resource string, obj runtime.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return fmt.Errorf("encoding %T, %w", obj, err)
	}
	u := &unstructured.Unstructured{Object: content}
	if _, err := tCtx.Dynamic().Resource(ours(resource)).Create(tCtx, u, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating %s %s, %w", resource, u.GetName(), err)
	}
	return nil
}

func ours(resource string) schema.GroupVersionResource {
	return v1alpha1.GroupVersion.WithResource(resource)
}

// sceneClaims are the claims that hold devices before the Pods come, one for
// each device, allocated.
func sceneClaims(scene bench.Scene, slices []*resourcev1.ResourceSlice) []*resourcev1.ResourceClaim {
	var claims []*resourcev1.ResourceClaim
	for _, slice := range slices {
		devices := slice.Spec.Devices
		switch scene {
		case bench.SceneHalf:
			devices = devices[:len(devices)/2]
		case bench.SceneFirstTierFull:
			if boardOf(slice.Spec.Pool.Name) != "h100" {
				continue
			}
		default:
			continue
		}
		for _, device := range devices {
			claims = append(claims, claimOf(slice, device.Name, len(claims)))
		}
	}
	return claims
}

// boardOf is the board of a pool, which is called as its node: <group>-<index>.
func boardOf(pool string) string {
	group, _, _ := strings.Cut(pool, "-")
	return group
}

func claimOf(slice *resourcev1.ResourceSlice, device string, number int) *resourcev1.ResourceClaim {
	const request = "gpu"
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: taken, Name: fmt.Sprintf("taken-%05d", number)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: request,
			Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: compile.DeviceClassName(v1alpha1.DriverName), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: request, Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name, Device: device,
			}}},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{
					Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{ptr.Deref(slice.Spec.NodeName, "")},
				}},
			}}},
		}},
	}
}

// takeDevices creates claims with their allocation.
func takeDevices(tCtx ktesting.TContext, claims []*resourcev1.ResourceClaim) error {
	if len(claims) == 0 {
		return nil
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: taken}}
	if _, err := tCtx.Client().CoreV1().Namespaces().Create(tCtx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %s, %w", taken, err)
	}
	if err := each(tCtx, len(claims), func(i int) error {
		api := tCtx.Client().ResourceV1().ResourceClaims(taken)
		claim, err := api.Create(tCtx, claims[i], metav1.CreateOptions{})
		if err != nil {
			return err
		}
		claim.Status = claims[i].Status
		_, err = api.UpdateStatus(tCtx, claim, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("taking devices, %w", err)
	}
	return nil
}

// writers is how many requests are under way at once, as in upstream's harness.
const writers = 30

// each calls f for 0 to n-1, several at once, and returns the first error.
func each(ctx context.Context, n int, f func(i int) error) error {
	var once sync.Once
	var failed error
	workqueue.ParallelizeUntil(ctx, min(writers, n), n, func(i int) {
		if err := f(i); err != nil {
			once.Do(func() { failed = err })
		}
	})
	return failed
}
