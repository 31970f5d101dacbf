package deviceplugin

// This file answers kubelet's calls.

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// listing is what is offered to kubelet, and tells of changes.
type listing struct {
	mu      sync.Mutex
	offer   Offer
	changed chan struct{} // closed when offer is replaced
}

func newListing() *listing { return &listing{changed: make(chan struct{})} }

// set replaces the offer. The same one again is no change: a node is updated
// far more often than its labels.
func (l *listing) set(offer Offer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offer.Refused == l.offer.Refused && slices.Equal(offer.Devices, l.offer.Devices) {
		return
	}
	l.offer = offer
	close(l.changed)
	l.changed = make(chan struct{})
}

// get returns the offer and a channel that is closed when it is no longer so.
func (l *listing) get() (Offer, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offer, l.changed
}

// server is the gRPC service of one registration.
type server struct {
	pluginapi.UnimplementedDevicePluginServer

	log     klog.Logger
	listing *listing
	// stopped is closed when the service ends: streams would not end by themselves.
	stopped <-chan struct{}
}

var options = &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}

// GetDevicePluginOptions implements the API.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options, nil
}

// ListAndWatch implements the API: the list now, and again after each change.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		offer, changed := s.listing.get()
		response := &pluginapi.ListAndWatchResponse{}
		healthy := 0
		for i := range offer.Devices {
			device := offer.Devices[i].listed()
			if device.Health == pluginapi.Healthy {
				healthy++
			}
			response.Devices = append(response.Devices, device)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		s.log.Info("Told kubelet of the devices", "devices", len(response.Devices), "healthy", healthy, "refused", offer.Refused)
		select {
		case <-changed:
		case <-s.stopped:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation implements the API: see [Prefer].
func (s *server) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	offer, _ := s.listing.get()
	response := &pluginapi.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		available, err := offer.find(container.AvailableDeviceIDs)
		if err != nil {
			return nil, err
		}
		must, err := offer.find(container.MustIncludeDeviceIDs)
		if err != nil {
			return nil, err
		}
		chosen, err := Prefer(available, must, int(container.AllocationSize))
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		preferred := &pluginapi.ContainerPreferredAllocationResponse{}
		for _, d := range chosen {
			preferred.DeviceIDs = append(preferred.DeviceIDs, d.ID)
		}
		response.ContainerResponses = append(response.ContainerResponses, preferred)
	}
	return response, nil
}

// Allocate implements the API. Kubelet may ask for devices of a list that has
// been replaced since, so what is asked for is looked at again: nothing is
// handed out that another stack may have by now.
func (s *server) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	offer, _ := s.listing.get()
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		devices, err := offer.find(container.DevicesIds)
		if err != nil {
			return nil, err
		}
		for _, d := range devices {
			if d.Unhealthy != "" {
				return nil, status.Errorf(codes.FailedPrecondition, "device %s (%s) is unhealthy: %s", d.Name, d.ID, d.Unhealthy)
			}
			s.log.Info("Allocated device", "device", d.Name, "uuid", d.ID)
		}
		response.ContainerResponses = append(response.ContainerResponses, Response(devices))
	}
	return response, nil
}

// find returns devices by their IDs.
func (o *Offer) find(ids []string) ([]Device, error) {
	if o.Refused != "" && len(ids) > 0 {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("no device is offered: %s", o.Refused))
	}
	byID := map[string]Device{}
	for _, d := range o.Devices {
		byID[d.ID] = d
	}
	var found []Device
	for _, id := range ids {
		d, known := byID[id]
		if !known {
			return nil, status.Errorf(codes.NotFound, "there is no device %s", id)
		}
		found = append(found, d)
	}
	return found, nil
}
