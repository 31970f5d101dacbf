package plugin

// This file tells whoever uses a claim how its devices are: by a condition of
// each device in the status of the claim.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresourcev1 "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// ConditionHealthy is the type of the condition that a device has in the status
// of a claim that holds it (KEP-4817). It is False from the device's first
// trouble on, with the worst one's reason, and True once all are over. A device
// that never had a trouble while the claim held it has none: nobody needs to be
// told, and so a claim costs no write.
const ConditionHealthy = "Healthy"

// reasonHealthy is the reason while there is no trouble.
const reasonHealthy = "Healthy"

// conditions writes them. What is on the API server is compared before each
// write, so the two drivers of a rolling update do not fight, and a driver that
// was killed goes on.
type conditions struct {
	client  kubernetes.Interface
	engine  *engine.Engine
	devices devices
	pool    string
	clock   clock.WithTicker
	// soon receives when there may be something to tell.
	soon chan struct{}
	// written has the text of what is known to be on the API server, by claim;
	// only tell uses it.
	written map[types.UID]string

	mu   sync.Mutex
	seen *string // the troubles of the last report
}

func newConditions(config *Config, engine *engine.Engine, devices devices) *conditions {
	return &conditions{
		client: config.Client, engine: engine, devices: devices, pool: config.NodeName, clock: config.Clock,
		soon: make(chan struct{}, 1), written: map[types.UID]string{},
	}
}

// nudge has the claims looked at.
func (c *conditions) nudge() {
	select {
	case c.soon <- struct{}{}:
	default: // one signal is waiting already and will see this change too
	}
}

// saw takes in what kubelet is told, and nudges if it is something else than
// the last time.
func (c *conditions) saw(report kubeletplugin.DeviceHealthReport) {
	var text strings.Builder
	for i := range report.Devices {
		if report.Devices[i].Health != kubeletplugin.HealthStatusHealthy {
			fmt.Fprintln(&text, report.Devices[i].Message)
		}
	}
	c.mu.Lock()
	changed := c.seen == nil || *c.seen != text.String()
	c.seen = ptr.To(text.String())
	c.mu.Unlock()
	if changed {
		c.nudge()
	}
}

// run tells until ctx is done. What fails is tried again, less and less often.
func (c *conditions) run(ctx context.Context, first, most time.Duration, failed func()) {
	wait := first
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.soon:
		}
		err := c.tell(ctx)
		if err == nil || ctx.Err() != nil {
			wait = first
			continue
		}
		failed()
		klog.FromContext(ctx).Error(err, "Telling in the status of claims how their devices are; trying again", "after", wait)
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(wait):
			wait = min(2*wait, most)
			c.nudge()
		}
	}
}

// tell brings the status of each claim that holds devices up to date. A claim
// that fails keeps no other from being told.
func (c *conditions) tell(ctx context.Context) error {
	report, err := c.devices.report(ctx, c.pool, c.clock)
	if err != nil {
		return err
	}
	states := make(map[string]*kubeletplugin.DeviceHealth, len(report.Devices))
	for i := range report.Devices {
		states[report.Devices[i].DeviceName] = &report.Devices[i]
	}
	held, err := c.engine.Held(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(c.written, func(uid types.UID, _ string) bool { return held[uid] == nil })
	var failed []error
	for _, uid := range slices.Sorted(maps.Keys(held)) {
		wanted := c.wanted(held[uid], states)
		text := fmt.Sprint(wanted)
		if is, known := c.written[uid]; known && is == text {
			continue
		}
		name := types.NamespacedName{Namespace: held[uid].Namespace, Name: held[uid].Name}
		if err := c.write(ctx, uid, name, wanted); err != nil {
			failed = append(failed, fmt.Errorf("telling claim %s of its devices, %w", name, err))
			continue
		}
		c.written[uid] = text
	}
	return errors.Join(failed...)
}

// deviceState is what a claim is to be told of one of its devices.
type deviceState struct {
	device, share   string
	status          metav1.ConditionStatus
	reason, message string
}

// wanted are the states of the devices of a claim that the node has, each once.
func (c *conditions) wanted(claim *checkpoint.Claim, states map[string]*kubeletplugin.DeviceHealth) []deviceState {
	var all []deviceState
	for i := range claim.Devices {
		state := states[claim.Devices[i].Name]
		if state == nil {
			continue
		}
		made := deviceState{
			device: state.DeviceName, share: string(claim.Devices[i].ShareID), status: metav1.ConditionTrue, reason: reasonHealthy, message: state.Message,
		}
		if state.Health != kubeletplugin.HealthStatusHealthy {
			made.status, made.reason = metav1.ConditionFalse, c.devices.monitor.Reason(state.DeviceName)
		}
		if made.reason == "" {
			made.reason = reasonHealthy // it has recovered this moment: there will be another report
		}
		if !slices.ContainsFunc(all, func(d deviceState) bool { return d.device == made.device && d.share == made.share }) {
			all = append(all, made)
		}
	}
	return all
}

// write applies the states to a claim, if they are not there already. A claim
// that is another one by now, or has none of the devices, is left alone.
func (c *conditions) write(ctx context.Context, uid types.UID, name types.NamespacedName, wanted []deviceState) error {
	claim, err := c.client.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if claim.UID != uid || claim.Status.Allocation == nil {
		return nil
	}
	status := applyresourcev1.ResourceClaimStatus()
	changed := false
	now := metav1.NewTime(c.clock.Now())
	for _, state := range wanted {
		if !c.allocated(claim, state) {
			continue // the API server would refuse the rest with it
		}
		present := c.present(claim, state)
		if present == nil && state.status == metav1.ConditionTrue {
			continue
		}
		since := now
		if present != nil && present.Status == state.status {
			since = present.LastTransitionTime
		}
		changed = changed || present == nil || present.Status != state.status || present.Reason != state.reason || present.Message != state.message
		device := applyresourcev1.AllocatedDeviceStatus().WithDriver(v1alpha1.DriverName).WithPool(c.pool).WithDevice(state.device).
			WithConditions(applymetav1.Condition().WithType(ConditionHealthy).WithStatus(state.status).
				WithReason(state.reason).WithMessage(state.message).WithLastTransitionTime(since))
		if state.share != "" {
			device = device.WithShareID(state.share)
		}
		status = status.WithDevices(device)
	}
	if !changed {
		return nil
	}
	// With its UID: a claim of the same name that has come meanwhile is a conflict.
	apply := applyresourcev1.ResourceClaim(name.Name, name.Namespace).WithUID(uid).WithStatus(status)
	_, err = c.client.ResourceV1().ResourceClaims(name.Namespace).ApplyStatus(ctx, apply, metav1.ApplyOptions{FieldManager: v1alpha1.DriverName, Force: true})
	return err
}

// allocated says whether a device is in the claim's allocation.
func (c *conditions) allocated(claim *resourcev1.ResourceClaim, state deviceState) bool {
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.Driver == v1alpha1.DriverName && r.Pool == c.pool && r.Device == state.device && string(ptr.Deref(r.ShareID, "")) == state.share
	})
}

// present is the condition that a device has in the claim's status, or nil.
func (c *conditions) present(claim *resourcev1.ResourceClaim, state deviceState) *metav1.Condition {
	for i := range claim.Status.Devices {
		d := &claim.Status.Devices[i]
		if d.Driver == v1alpha1.DriverName && d.Pool == c.pool && d.Device == state.device && ptr.Deref(d.ShareID, "") == state.share {
			return meta.FindStatusCondition(d.Conditions, ConditionHealthy)
		}
	}
	return nil
}
