package engine

// This file holds the errors by class, for metrics and for whoever branches.

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Class is why preparing failed, as a label of metrics.
type Class string

// Classes. Those down to DeviceFailed are about the claim, and kubelet's asking
// again changes nothing by itself.
const (
	// ClassNotAllocated: the claim has no allocation, or none of this node.
	ClassNotAllocated Class = "NotAllocated"
	// ClassUnsupported: the claim asks for what this driver does not do.
	ClassUnsupported Class = "Unsupported"
	// ClassUnknownDevice: the node has no such device.
	ClassUnknownDevice Class = "UnknownDevice"
	// ClassDeviceHeld: another claim was prepared for the device.
	ClassDeviceHeld Class = "DeviceHeld"
	// ClassDeviceFailed: the device is known to have failed.
	ClassDeviceFailed Class = "DeviceFailed"
	// ClassUnprepared: the claim was unprepared while it was being prepared.
	ClassUnprepared Class = "Unprepared"
	// ClassHardware: the hardware could not be read or made ready.
	ClassHardware Class = "Hardware"
	// ClassCheckpoint: the checkpoint could not be read or written.
	ClassCheckpoint Class = "Checkpoint"
	// ClassCDI: the CDI file could not be written or removed.
	ClassCDI Class = "CDI"
	// ClassAPI: the API server could not be asked.
	ClassAPI Class = "API"
	// ClassOther is everything else.
	ClassOther Class = "Other"
)

// Classes are all classes.
func Classes() []Class {
	return []Class{
		ClassNotAllocated, ClassUnsupported, ClassUnknownDevice, ClassDeviceHeld, ClassDeviceFailed, ClassUnprepared,
		ClassHardware, ClassCheckpoint, ClassCDI, ClassAPI, ClassOther,
	}
}

// Error is an error with its class.
type Error struct {
	Class Class
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// ClassOf finds the class of an error.
func ClassOf(err error) Class {
	var classed *Error
	if errors.As(err, &classed) {
		return classed.Class
	}
	return ClassOther
}

func fail(class Class, format string, args ...any) error {
	return &Error{Class: class, Err: fmt.Errorf(format, args...)}
}

// HeldError says which claim holds a device, or a part of the same board.
type HeldError struct {
	Device string
	// Holder is the claim that holds it, by HolderDevice.
	Holder       types.NamespacedName
	HolderUID    types.UID
	HolderDevice string
	// OtherSharing: the two could share the device, but want it set up in ways
	// that exclude each other.
	OtherSharing bool
}

func (e *HeldError) Error() string {
	if e.OtherSharing {
		return fmt.Sprintf("device %s is held by claim %s (%s), for which it is set up in another way: it can be set anew when that claim is unprepared", e.Device, e.Holder, e.HolderUID)
	}
	with := ""
	if e.HolderDevice != e.Device {
		with = fmt.Sprintf(", which shares the board as %s", e.HolderDevice)
	}
	return fmt.Sprintf("device %s is still held by claim %s (%s)%s: it is free when that claim is unprepared", e.Device, e.Holder, e.HolderUID, with)
}

// CrowdedError says that a device fits beside each of the others in use, and
// not beside all of them: they share a counter of the pool.
type CrowdedError struct {
	Device string
	// CounterSet and Counter are what there is too little of.
	CounterSet, Counter string
	// Holders are the claims that consume it, by the devices with which they do,
	// ordered by UID. None where the claim's own devices are too many.
	Holders []HeldError
}

func (e *CrowdedError) Error() string {
	if len(e.Holders) == 0 {
		return fmt.Sprintf("device %s does not fit beside the other devices of the same claim: too little is left of %s in %s", e.Device, e.Counter, e.CounterSet)
	}
	said := make([]string, len(e.Holders))
	for i := range e.Holders {
		h := &e.Holders[i]
		said[i] = fmt.Sprintf("%s by claim %s (%s)", h.HolderDevice, h.Holder, h.HolderUID)
	}
	return fmt.Sprintf("device %s does not fit beside what is still held of its board (too little is left of %s in %s): %s", e.Device, e.Counter, e.CounterSet, strings.Join(said, ", "))
}
