package tenants

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestTryGoesOnWhileTheServerIsTooBusy(t *testing.T) {
	attempts := 0
	err := try(t.Context(), func(context.Context) error {
		if attempts++; attempts == 1 {
			return apierrors.NewTimeoutError("too busy", 0)
		}
		return nil
	})
	if err != nil || attempts != 2 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
	refused := errors.New("refused")
	attempts = 0
	err = try(t.Context(), func(context.Context) error { attempts++; return refused })
	if !errors.Is(err, refused) || attempts != 1 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
}

// An object that was made although the answer was lost is no error; one that
// was there before is.
func TestCreate(t *testing.T) {
	lose := true
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := c.Create(ctx, o, opts...)
			if lose {
				lose = false
				return apierrors.NewTimeoutError("too busy", 0)
			}
			return err
		},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if err := create(t.Context(), c, pod); err != nil {
		t.Error(err)
	}
	if err := create(t.Context(), c, pod); !apierrors.IsAlreadyExists(err) {
		t.Errorf("made again: %v", err)
	}
}
