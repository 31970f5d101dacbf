package plugin

// This file reads claims for the engine.

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

// claims reads from the API server itself: what the engine decides by them
// must not be older than the moment at which it asks.
type claims struct{ client kubernetes.Interface }

// Get implements [engine.Claims].
func (c claims) Get(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim, err := c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting claim %s/%s, %w", namespace, name, err)
	}
	return claim, nil
}

// List implements [engine.Claims].
func (c claims) List(ctx context.Context) ([]*resourcev1.ResourceClaim, error) {
	var all []*resourcev1.ResourceClaim
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return c.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, options)
	}))
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if claim, ok := object.(*resourcev1.ResourceClaim); ok {
			all = append(all, claim)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing claims, %w", err)
	}
	return all, nil
}
