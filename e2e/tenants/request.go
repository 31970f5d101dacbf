package tenants

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// again is the time between two attempts at a request.
const again = time.Second

// transient says that the API server could not serve a request in time, which
// says nothing about the request.
func transient(err error) bool {
	for _, is := range []func(error) bool{
		apierrors.IsTimeout, apierrors.IsServerTimeout, apierrors.IsTooManyRequests, apierrors.IsServiceUnavailable,
		apierrors.IsInternalError, utilnet.IsTimeout, utilnet.IsConnectionReset, utilnet.IsConnectionRefused,
	} {
		if is(err) {
			return true
		}
	}
	return false
}

// try makes a request until the API server has served it: on a machine that has
// too much to do it gives up on some. One that it gave up on may have been
// carried out all the same.
func try(ctx context.Context, request func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, again, patience, true, func(ctx context.Context) (bool, error) {
		last = request(ctx)
		return last == nil || !transient(last), nil
	})
	if last != nil {
		return last
	}
	return err
}

// create makes an object, whose name nobody else uses.
func create(ctx context.Context, c client.Client, object client.Object) error {
	attempts := 0
	return try(ctx, func(ctx context.Context) error {
		attempts++
		made, _ := object.DeepCopyObject().(client.Object)
		err := c.Create(ctx, made)
		if attempts > 1 && apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}
