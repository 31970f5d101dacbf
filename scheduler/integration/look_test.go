package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

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
