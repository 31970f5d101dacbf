package view

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// This file finds out about writes of which no answer came. An allocation that
// was written and is taken for one that was not would no longer count as in
// flight: until the scheduler hears of it, its devices would be free to others.

const (
	// askAgain is how long to wait between two questions to the API server, and
	// askFor how long it is asked.
	askAgain = 200 * time.Millisecond
	askFor   = 5 * time.Second
)

// UpdateStatus implements resourceclient.ResourceClaimInterface.
func (w claimWriter) UpdateStatus(ctx context.Context, claim *resourceapi.ResourceClaim, opts metav1.UpdateOptions) (*resourceapi.ResourceClaim, error) {
	written, err := w.ResourceClaimInterface.UpdateStatus(ctx, claim, opts)
	if err == nil || answered(err) {
		return written, err
	}
	if found := w.find(ctx, claim); found != nil {
		return found, nil
	}
	return written, err
}

// answered says whether an error is the API server's word that nothing was
// written.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// find returns the claim as the API server has it, if its status was written; nil
// if it was not, or if that can't be found out in time.
func (w claimWriter) find(ctx context.Context, wanted *resourceapi.ResourceClaim) (found *resourceapi.ResourceClaim) {
	ctx = context.WithoutCancel(ctx) // its end may be why there was no answer
	_ = wait.PollUntilContextTimeout(ctx, askAgain, w.c.askFor, true, func(ctx context.Context) (known bool, _ error) {
		found, known = w.look(ctx, wanted)
		return known, nil
	})
	return found
}

// look asks once. A claim of the version that was to be replaced may still be: the
// write may be under way.
func (w claimWriter) look(ctx context.Context, wanted *resourceapi.ResourceClaim) (found *resourceapi.ResourceClaim, known bool) {
	claim, err := w.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, true
	case err != nil:
		return nil, false
	case claim.UID == wanted.UID && claim.ResourceVersion == wanted.ResourceVersion:
		return nil, false
	case claim.UID == wanted.UID && hasUse(claim, wanted):
		return claim, true
	}
	return nil, true
}

// hasUse says whether a claim has the devices and the consumers that were to be
// written. Others may have reserved it since, and times lose their fractions.
func hasUse(claim, wanted *resourceapi.ResourceClaim) bool {
	for _, consumer := range wanted.Status.ReservedFor {
		if !slices.Contains(claim.Status.ReservedFor, consumer) {
			return false
		}
	}
	if claim.Status.Allocation == nil || wanted.Status.Allocation == nil {
		return claim.Status.Allocation == wanted.Status.Allocation
	}
	return apiequality.Semantic.DeepEqual(claim.Status.Allocation.Devices.Results, wanted.Status.Allocation.Devices.Results)
}
