// Package deviceplugin is the device plugin of fake GPUs: the way in which
// kubelet was told of GPUs before DRA (k8s.io/kubelet/pkg/apis/deviceplugin,
// v1beta1). It exists so that a migration to DRA has something to migrate from.
//
// [Plugin] speaks kubelet's protocol about the devices of a [Source].
// [NodeSource] is the source on a node: its labels name the tier (package
// tiers), and the label [LabelStack] decides whether the plugin may offer
// anything at all. While it does not say [StackDevicePlugin] the plugin lists no
// device and refuses to allocate, so that the node's allocatable goes to 0 and
// the DRA driver can take over; what runs keeps running.
//
// A container gets the variables that NVIDIA's plugin sets, and Ladder's own:
// see [Response].
package deviceplugin
