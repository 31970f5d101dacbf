package deviceplugin

// This file says what a device is to kubelet, and to a container.

import (
	"cmp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// Device is one GPU.
type Device struct {
	// ID is the UUID, by which kubelet and NVIDIA's tools call it.
	ID string
	// Name is the one that the DRA driver gives it: gpu-0.
	Name string
	// Model is the short name of the board: H100.
	Model string
	// NUMANode is where it sits.
	NUMANode int64
	// Unhealthy says why kubelet must not hand it out; empty if it may.
	Unhealthy string
}

// Devices are the whole boards of a pool, byte-wise by name. The legacy plugin
// hands out no partitions: a board that is split for good is not among them.
func Devices(pool inventory.Pool) []Device {
	var devices []Device
	for i := range pool.Devices {
		d := &pool.Devices[i]
		if word(d, fleet.AttributeType) != fleet.TypeGPU {
			continue
		}
		device := Device{ID: word(d, fleet.AttributeUUID), Name: d.Name, Model: word(d, fleet.AttributeModel)}
		if numa := d.Attributes[fleet.AttributeNUMANode].IntValue; numa != nil {
			device.NUMANode = *numa
		}
		devices = append(devices, device)
	}
	slices.SortFunc(devices, byName)
	return devices
}

func word(d *resourcev1.Device, name resourcev1.QualifiedName) string {
	if value := d.Attributes[name].StringValue; value != nil {
		return *value
	}
	return ""
}

func byName(a, b Device) int { return cmp.Compare(a.Name, b.Name) }

// listed is the device as kubelet is told of it.
func (d *Device) listed() *pluginapi.Device {
	health := pluginapi.Healthy
	if d.Unhealthy != "" {
		health = pluginapi.Unhealthy
	}
	return &pluginapi.Device{
		ID: d.ID, Health: health,
		Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: d.NUMANode}}},
	}
}

// Variables that a container gets. All are lists joined by commas.
const (
	// EnvNVIDIA has the UUIDs, as NVIDIA's device plugin sets it.
	EnvNVIDIA = "NVIDIA_VISIBLE_DEVICES"
	// EnvDevices has the names, byte-wise in order, as with the DRA driver.
	EnvDevices = "LADDER_VISIBLE_DEVICES"
	// EnvModel has the models, each once, in order.
	EnvModel = "LADDER_MODEL"
)

// DeviceFolder is where a container finds a node for each of its GPUs. They
// stand for GPUs only: on the host they are /dev/null.
const DeviceFolder = "/dev/ladder/"

// Response is what a container gets for its devices.
func Response(devices []Device) *pluginapi.ContainerAllocateResponse {
	devices = slices.SortedFunc(slices.Values(devices), byName)
	var ids, names, models []string
	response := &pluginapi.ContainerAllocateResponse{}
	for _, d := range devices {
		ids, names, models = append(ids, d.ID), append(names, d.Name), append(models, d.Model)
		response.Devices = append(response.Devices, &pluginapi.DeviceSpec{
			ContainerPath: DeviceFolder + d.Name, HostPath: "/dev/null", Permissions: "rw",
		})
	}
	slices.Sort(models)
	response.Envs = map[string]string{
		EnvNVIDIA:  strings.Join(ids, ","),
		EnvDevices: strings.Join(names, ","),
		EnvModel:   strings.Join(slices.Compact(models), ","),
	}
	return response
}
