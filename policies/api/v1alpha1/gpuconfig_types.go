package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUConfigKind is the kind of [GPUConfig].
const GPUConfigKind = "GPUConfig"

// GPUConfig is what a claim, or a DeviceClass, may ask of Ladder's driver for
// its devices: the opaque parameters under the driver's name. It is no object
// of the cluster. [DecodeGPUConfig] reads it.
type GPUConfig struct {
	metav1.TypeMeta `json:",inline"`
	// sharing says how the containers that use one claim share its devices.
	// +optional
	Sharing *Sharing `json:"sharing,omitempty"`
}

// Sharing says how the containers that use one claim share its devices.
//
// +kubebuilder:validation:XValidation:rule="!has(self.timeSlicing) || self.strategy == 'TimeSlicing'",message="may be set only where strategy is TimeSlicing",fieldPath=".timeSlicing"
// +kubebuilder:validation:XValidation:rule="!has(self.mps) || self.strategy == 'MPS'",message="may be set only where strategy is MPS",fieldPath=".mps"
type Sharing struct {
	// strategy is how. Exclusive leaves the device as it is.
	// +optional
	// +kubebuilder:default=Exclusive
	Strategy SharingStrategy `json:"strategy,omitempty"`
	// timeSlicing says more of TimeSlicing.
	// +optional
	TimeSlicing *TimeSlicing `json:"timeSlicing,omitempty"`
	// mps says more of MPS.
	// +optional
	MPS *MPS `json:"mps,omitempty"`
}

// SharingStrategy is a way to share a device.
// +kubebuilder:validation:Enum=Exclusive;TimeSlicing;MPS
type SharingStrategy string

const (
	// SharingExclusive leaves the device as it is: nothing is set on it.
	SharingExclusive SharingStrategy = "Exclusive"
	// SharingTimeSlicing has programs take turns, for as long as the interval.
	SharingTimeSlicing SharingStrategy = "TimeSlicing"
	// SharingMPS has programs run at the same time, through a daemon of NVIDIA's
	// Multi-Process Service for the claim.
	SharingMPS SharingStrategy = "MPS"
)

// TimeSlicing says more of time slicing.
type TimeSlicing struct {
	// interval is how long a program's turn is.
	// +optional
	// +kubebuilder:default=Default
	Interval TimeSliceInterval `json:"interval,omitempty"`
}

// TimeSliceInterval is the length of a turn, by the names that NVIDIA's driver
// has for it; it does not tell milliseconds.
// +kubebuilder:validation:Enum=Default;Short;Medium;Long
type TimeSliceInterval string

// The intervals.
const (
	IntervalDefault TimeSliceInterval = "Default"
	IntervalShort   TimeSliceInterval = "Short"
	IntervalMedium  TimeSliceInterval = "Medium"
	IntervalLong    TimeSliceInterval = "Long"
)

// MPS says more of NVIDIA's Multi-Process Service. The limits are of each
// program that uses the device, not of all together.
type MPS struct {
	// activeThreadPercentage is the share of a device's threads that one program
	// may use, 1 to 100. Left out: all.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	ActiveThreadPercentage *int32 `json:"activeThreadPercentage,omitempty"`
	// pinnedDeviceMemoryLimit is the memory of a device that one program may
	// use, in bytes; parts of a MiB are left out. Left out: all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!quantity(string(self)).isLessThan(quantity('1Mi'))",message="must be at least 1Mi"
	PinnedDeviceMemoryLimit *resource.Quantity `json:"pinnedDeviceMemoryLimit,omitempty"`
}
