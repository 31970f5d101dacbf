package plugin

// This file tells operators what happens: metrics and Events.

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Reasons of Events on the Node.
const (
	EventDeviceUnhealthy     = "DeviceUnhealthy"
	EventDeviceFailed        = "DeviceFailed"
	EventDeviceRecovered     = "DeviceRecovered"
	EventCheckpointRecovered = "CheckpointRecovered"
	EventCheckpointRefused   = "CheckpointRefused"
	EventHealthForgotten     = "HealthForgotten"
	EventHealthRecovered     = "HealthRecovered"
	EventHardwareSilent      = "HardwareSilent"
	EventHardwareAnswers     = "HardwareAnswers"
	EventClaimCollected      = "StaleClaimCollected"
)

// observer implements [engine.Observer].
type observer struct {
	metrics    *metrics
	recorder   events.EventRecorder
	node       *corev1.ObjectReference
	cdi, data  string
	held       func(namespace, name string) bool
	background klog.Logger
}

var _ engine.Observer = &observer{}

// event is about the Node: a driver's troubles are those of a machine.
func (o *observer) event(kind, reason, action, format string, args ...any) {
	o.eventOf(nil, kind, reason, action, format, args...)
}

// eventOf is about the Node, and something on it. Without that, Events of one
// reason would count as repetitions of the first one and what they say be lost.
func (o *observer) eventOf(related *corev1.ObjectReference, kind, reason, action, format string, args ...any) {
	switch {
	case o.recorder == nil:
	case related == nil: // a nil pointer in an interface is an object to the recorder
		o.recorder.Eventf(o.node, nil, kind, reason, action, format, args...)
	default:
		o.recorder.Eventf(o.node, related, kind, reason, action, format, args...)
	}
}

// trouble is a device of the Node and what it has, as Events refer to it.
func (o *observer) trouble(t health.Transition) *corev1.ObjectReference {
	part := *o.node
	part.FieldPath = "devices{" + t.Device + "}." + t.Reason
	return &part
}

// Prepared implements [engine.Observer].
func (o *observer) Prepared(_ types.NamespacedName, took time.Duration, err error) {
	o.metrics.prepare.Observe(took.Seconds())
	if err != nil {
		o.metrics.prepareFailures.WithLabelValues(string(engine.ClassOf(err))).Inc()
	}
}

// Unprepared implements [engine.Observer].
func (o *observer) Unprepared(_ types.NamespacedName, took time.Duration, err error) {
	o.metrics.unprepare.Observe(took.Seconds())
	if err != nil {
		o.metrics.unprepareFailed.WithLabelValues(string(engine.ClassOf(err))).Inc()
	}
}

// Holding implements [engine.Observer].
func (o *observer) Holding(claims int) { o.metrics.held.Set(float64(claims)) }

// Recovered implements [engine.Observer].
func (o *observer) Recovered(from checkpoint.Origin, problem error, claims int) {
	o.metrics.recoveries.WithLabelValues(string(from)).Inc()
	what := "there was none"
	if problem != nil {
		what = problem.Error()
	}
	o.event(corev1.EventTypeWarning, EventCheckpointRecovered, "Recovering",
		"The driver's checkpoint was made again with %d claims, from the file before it, CDI files and the API server: %s", claims, what)
}

// Rebooted implements [engine.Observer].
func (o *observer) Rebooted(int) { o.metrics.boots.Inc() }

// Collected implements [engine.Observer].
func (o *observer) Collected(claim types.NamespacedName, uid types.UID, why string) {
	o.metrics.collected.Inc()
	related := &corev1.ObjectReference{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: uid}
	o.eventOf(related, corev1.EventTypeWarning, EventClaimCollected, "Collecting",
		"Took back what was prepared for claim %s (%s), which kubelet did not unprepare: %s", claim, uid, why)
	o.removeMetadata(claim, uid)
}

// removeMetadata removes what the library keeps for a claim until kubelet
// unprepares it: [kubeletplugin.EnableDeviceMetadata] names the files.
func (o *observer) removeMetadata(claim types.NamespacedName, uid types.UID) {
	specs, err := filepath.Glob(filepath.Join(o.cdi, fmt.Sprintf("%s_metadata_%s_*.json", v1alpha1.DriverName, uid)))
	if err != nil {
		o.background.Error(err, "Looking for metadata files", "claim", claim.String())
	}
	if o.held != nil && !o.held(claim.Namespace, claim.Name) {
		specs = append(specs, filepath.Join(o.data, metadataFolder, claim.Namespace+"_"+claim.Name))
	}
	for _, path := range specs {
		if err := os.RemoveAll(path); err != nil {
			o.background.Error(err, "Removing metadata", "claim", claim.String(), "path", path)
		}
	}
}

// healthChanged tells of one device.
func (o *observer) healthChanged(t health.Transition) {
	o.metrics.transitions.WithLabelValues(t.To.String()).Inc()
	o.background.Info("Device health changed", "device", t.Device, "from", t.From.String(), "to", t.To.String(), "reason", t.Reason, "message", t.Message)
	switch {
	case t.To == inventory.Failed:
		o.eventOf(o.trouble(t), corev1.EventTypeWarning, EventDeviceFailed, "Tainting", "Device %s has failed: %s, %s", t.Device, t.Reason, t.Message)
	case t.To == inventory.Suspect && t.From == inventory.Healthy:
		o.eventOf(o.trouble(t), corev1.EventTypeWarning, EventDeviceUnhealthy, "Tainting", "Device %s is suspect: %s, %s", t.Device, t.Reason, t.Message)
	default:
		o.eventOf(o.trouble(t), corev1.EventTypeNormal, EventDeviceRecovered, "Untainting", "Device %s is %s again: %s is over", t.Device, t.To, t.Reason)
	}
}
