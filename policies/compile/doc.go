// Package compile turns a policy into the objects that Kubernetes understands:
// AcceleratorPolicy to [Revision], revision to [Template] (a
// ResourceClaimTemplate), driver to [DeviceClass]. It is pure: the same input
// gives the same bytes.
//
// # What a template says
//
// One request, accelerator, whose alternatives (firstAvailable) are the
// policy's tiers in order, under their own names; a policy of one tier has the
// same shape. Nothing in a prioritized list is inherited, so the hard
// constraints are repeated in every alternative. The shorthand fields become
// CEL in which a missing attribute, or one of another type, is "no" and never
// an error: an error in one device's evaluation would block the whole Pod.
// Free selectors come last, so that they are asked only about devices that
// pass everything else.
//
// # What a template can't say
//
// Kubernetes knows no `after`, no ranking, no topology as a wish, no retry
// budget, no preemption of devices and no quota, and treats the order of
// alternatives as a preference. These are carried by ladder-scheduler, which
// reads the revision itself. [CarriedByScheduler] lists them and the template
// shows them in an annotation, so that nothing is dropped silently. What
// nobody can carry, such as a ninth tier or a thirty-third device, is refused
// by [Check] with the field's path.
package compile
