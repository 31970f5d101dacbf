package cluster

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Held describes the claims that were made for a Pod and still hold devices,
// each as "claim NAME (DEVICE of POOL, …)", in the order of their names. A claim
// that several Pods share is none of them.
func (c *Client) Held(ctx context.Context, namespace, pod string) ([]string, error) {
	var held []string
	err := c.eachOf(ctx, resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), namespace, func(u *unstructured.Unstructured) error {
		claim := &resourcev1.ResourceClaim{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, claim); err != nil {
			return fmt.Errorf("reading ResourceClaim %s/%s, %w", namespace, u.GetName(), err)
		}
		if !madeFor(claim, pod) || claim.Status.Allocation == nil {
			return nil
		}
		var devices []string
		for _, r := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, r.Device+" of "+r.Pool)
		}
		held = append(held, fmt.Sprintf("claim %s (%s)", claim.Name, strings.Join(devices, ", ")))
		return nil
	})
	return held, err
}

func madeFor(claim *resourcev1.ResourceClaim, pod string) bool {
	for _, owner := range claim.OwnerReferences {
		if owner.Kind == "Pod" && owner.Name == pod {
			return true
		}
	}
	return false
}
