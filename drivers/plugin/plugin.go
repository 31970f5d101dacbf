package plugin

// This file is what the kubelet plugin library calls.

import (
	"context"
	"errors"
	"fmt"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// plugin implements [kubeletplugin.DRAPlugin].
type plugin struct{ *Driver }

var _ kubeletplugin.DRAPlugin = plugin{}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (p plugin) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := p.engine.Prepare(ctx, claims)
	p.claims.nudge() // a device may have got its trouble between allocation and now
	return prepared, nil
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (p plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return p.engine.Unprepare(ctx, claims), nil
}

// HandleError logs what the library goes on to retry and ends the driver on the
// rest.
func (p plugin) HandleError(ctx context.Context, err error, message string) {
	p.metrics.publishErrors.Inc()
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		runtime.HandleErrorWithContext(ctx, err, message)
		return
	}
	p.fatal(fmt.Errorf("%s, %w", message, err))
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin]: a report each time
// the hardware was asked. If that hangs there is none, and kubelet shows the
// health as unknown, which it is.
func (p plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, next := p.beat.now()
		if len(report.Devices) > 0 {
			select {
			case <-ctx.Done():
				return nil
			case reports <- report:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// beat hands each report to everyone who waits for one. Who is slow gets the
// newest.
type beat struct {
	mu     sync.Mutex
	report kubeletplugin.DeviceHealthReport
	next   chan struct{}
}

func newBeat() *beat { return &beat{next: make(chan struct{})} }

func (b *beat) send(report kubeletplugin.DeviceHealthReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report = report
	close(b.next)
	b.next = make(chan struct{})
}

// now returns the newest report, and what is closed when there is another.
func (b *beat) now() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report, b.next
}
