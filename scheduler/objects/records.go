package objects

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Records writes AllocationDecisions.
type Records struct {
	client rest.Interface
}

// NewRecords returns a writer that uses the client of NewClient.
func NewRecords(client rest.Interface) *Records { return &Records{client: client} }

// Create writes a record. One that exists already is the same record, since
// its name is derived from what it says.
func (r *Records) Create(ctx context.Context, record *v1alpha1.AllocationDecision) error {
	err := r.client.Post().Namespace(record.Namespace).Resource("allocationdecisions").Body(record).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating allocation decision %s, %w", klog.KObj(record), err)
	}
	return nil
}
