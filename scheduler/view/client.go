package view

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Handle is a framework Handle with a DRA manager and a client of ours.
type Handle struct {
	fwk.Handle
	DRA    *Manager
	Client kubernetes.Interface
}

// NewHandle decorates a Handle for the in-tree plugin.
func NewHandle(inner fwk.Handle, inFlight *InFlight) *Handle {
	return &Handle{
		Handle: inner,
		DRA:    NewManager(inner.SharedDRAManager(), inFlight),
		Client: &Client{Interface: inner.ClientSet(), claims: inner.SharedDRAManager().ResourceClaims(), askFor: askFor},
	}
}

// SharedDRAManager implements fwk.Handle.
func (h *Handle) SharedDRAManager() fwk.SharedDRAManager { return h.DRA }

// ClientSet implements fwk.Handle.
func (h *Handle) ClientSet() kubernetes.Interface { return h.Client }

// Client writes a claim with the specification that the API server has. The
// in-tree plugin adds its finalizer by a full update, and a specification
// that was narrowed for it would be refused as a change of an immutable field.
// Where no answer comes to a write of a claim's status it asks whether it was
// done.
type Client struct {
	kubernetes.Interface
	claims fwk.ResourceClaimTracker
	askFor time.Duration
}

// ResourceV1 implements kubernetes.Interface.
func (c *Client) ResourceV1() resourceclient.ResourceV1Interface {
	return resourceV1{ResourceV1Interface: c.Interface.ResourceV1(), c: c}
}

type resourceV1 struct {
	resourceclient.ResourceV1Interface
	c *Client
}

// ResourceClaims implements resourceclient.ResourceClaimsGetter.
func (r resourceV1) ResourceClaims(namespace string) resourceclient.ResourceClaimInterface {
	return claimWriter{ResourceClaimInterface: r.ResourceV1Interface.ResourceClaims(namespace), c: r.c}
}

type claimWriter struct {
	resourceclient.ResourceClaimInterface
	c *Client
}

// Update implements resourceclient.ResourceClaimInterface.
func (w claimWriter) Update(ctx context.Context, claim *resourceapi.ResourceClaim, opts metav1.UpdateOptions) (*resourceapi.ResourceClaim, error) {
	if full, err := w.c.claims.Get(claim.Namespace, claim.Name); err == nil && full.UID == claim.UID {
		whole := *claim
		whole.Spec = full.Spec
		claim = &whole
	}
	return w.ResourceClaimInterface.Update(ctx, claim, opts)
}
