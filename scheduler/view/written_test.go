package view

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// An allocation of which no answer came counts as written if it is there, and as
// failed where it is not, or where another one is.
func TestWriteWithoutAnAnswer(t *testing.T) {
	lost := &url.Error{Op: "Put", URL: "https://x", Err: syscall.ECONNRESET}
	claims := resourceapi.Resource("resourceclaims")
	ours := func(device string) *resourceapi.ResourceClaim {
		c := newClaim("a")
		c.ResourceVersion = "1"
		now := metav1.NewTime(time.Unix(1, 5))
		c.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: &now, Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: "p", Device: device}},
		}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
		return c
	}
	for name, test := range map[string]struct {
		err     error
		becomes string // the device that the claim has at the API server then
		late    bool   // the write ends after it has failed
		down    bool   // nothing can be read either
		want    bool
		asks    int // at least; none where nothing has to be asked
	}{
		"written":             {err: lost, becomes: "gpu-0", want: true, asks: 1},
		"written in the end":  {err: lost, becomes: "gpu-0", late: true, want: true, asks: 2},
		"timed out":           {err: apierrors.NewTimeoutError("slow", 1), becomes: "gpu-0", want: true, asks: 1},
		"given up":            {err: context.DeadlineExceeded, becomes: "gpu-0", want: true, asks: 1},
		"not written":         {err: lost, asks: 2},
		"another is":          {err: lost, becomes: "gpu-1", asks: 1},
		"not to be found out": {err: lost, becomes: "gpu-0", down: true, asks: 2},
		"refused":             {err: apierrors.NewConflict(claims, "a", errors.New("changed")), becomes: "gpu-0"},
		"refused as too many": {err: apierrors.NewTooManyRequests("busy", 1), becomes: "gpu-0"},
	} {
		t.Run(name, func(t *testing.T) {
			before := newClaim("a")
			before.ResourceVersion = "1"
			api := fake.NewClientset(before)
			asks := 0
			write := func() {
				if test.becomes == "" {
					return
				}
				c := ours(test.becomes)
				c.ResourceVersion = "2"
				c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q", UID: "q"})
				second := metav1.NewTime(c.Status.Allocation.AllocationTimestamp.Truncate(time.Second))
				c.Status.Allocation.AllocationTimestamp = &second
				require.NoError(t, api.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, "ns"))
			}
			api.PrependReactor("update", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !test.late {
					write()
				}
				return true, nil, test.err
			})
			api.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				if asks++; test.late && asks == 2 {
					write()
				}
				return test.down, nil, lost
			})
			c := &Client{Interface: api, claims: &tracker{}, askFor: 3 * askAgain}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // as where the attempt was given up
			got, err := c.ResourceV1().ResourceClaims("ns").UpdateStatus(ctx, ours("gpu-0"), metav1.UpdateOptions{})
			if test.want {
				require.NoError(t, err)
				assert.Equal(t, "2", got.ResourceVersion)
			} else {
				require.ErrorIs(t, err, test.err)
			}
			assert.GreaterOrEqual(t, asks, test.asks)
			assert.Equal(t, test.asks == 0, asks == 0)
		})
	}
}
