// Package cdi tells the container runtime what a container gets for a claim:
// one CDI spec file for each claim, named by the claim's UID, so that neither a
// file nor a name in it is ever used again for something else.
//
// # What a container sees
//
// A container may use a whole claim, some of its requests, or several claims;
// the runtime applies the edits of each CDI device that kubelet names, one
// after another, and of two that set one variable the later wins. So the spec
// of a claim has three kinds of CDI devices:
//
//   - one for each device: what the hardware needs (device nodes, mounts) and
//     the variable LADDER_DEVICE_<NAME>=<model>. These add up, whatever is
//     combined: they are the full truth.
//   - one for each request: LADDER_VISIBLE_DEVICES and LADDER_MODEL for the
//     devices of that request.
//   - where there are several requests, one for the whole claim, with the same
//     variables for all its devices. Kubelet applies it last, and only in
//     containers that use the claim without naming a request.
//
// Hooks that all devices of a claim ask for, such as an update of the library
// cache, are of the spec as a whole: a container runs them once for the claim.
//
// So LADDER_VISIBLE_DEVICES is exact in a container that uses one claim or one
// request. In one that names several requests or several claims it is that of
// the last; there LADDER_DEVICE_* says it all.
package cdi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/checkpoint"
)

// Class of the driver's CDI devices. The kind is <driver>/claim.
const Class = "claim"

// Variables that a container gets.
const (
	// VariableDevices lists device names, sorted, joined by commas.
	VariableDevices = "LADDER_VISIBLE_DEVICES"
	// VariableModel lists their models in the same way, each once.
	VariableModel = "LADDER_MODEL"
	// VariableDevicePrefix begins the variable of each device: its name in
	// upper case follows, with underscores for dashes; the value is its model.
	VariableDevicePrefix = "LADDER_DEVICE_"
)

// annotation holds the claim as the checkpoint has it, so that a lost
// checkpoint can be made again from the files.
const annotation = "gpuladder.dev/claim"

// description is what the annotation says, as JSON.
type description struct {
	// BootID is the boot of the node in which the file was written.
	BootID string `json:"bootID"`
	checkpoint.Claim
}

// wholeClaim stands where a request's name would: no container can name it,
// since a request's name has no dot, so kubelet gives what is under it only to
// containers that use the whole claim. Device metadata is found under it too.
const wholeClaim = "whole.claim"

// unknownModel is in the place of the model of a device that has none.
const unknownModel = "unknown"

// Edits are what the hardware needs in a container for each device, by name.
type Edits map[string]specs.ContainerEdits

// describe leaves out what changes while a claim is prepared, so that its file
// stays the same.
func describe(bootID string, claim *checkpoint.Claim) description {
	return description{BootID: bootID, Claim: checkpoint.Claim{
		Namespace: claim.Namespace, Name: claim.Name, Phase: checkpoint.PrepareCompleted, Devices: claim.Devices,
		Sharing: claim.Sharing,
	}}
}

// Spec makes the CDI spec of a claim. It fails if edits of a device are missing.
func Spec(driver, bootID string, uid types.UID, claim *checkpoint.Claim, edits Edits) (*specs.Spec, error) {
	described, err := json.Marshal(describe(bootID, claim))
	if err != nil {
		return nil, fmt.Errorf("describing claim, %w", err)
	}
	spec := &specs.Spec{
		Kind:        driver + "/" + Class,
		Annotations: map[string]string{annotation: string(described)},
	}
	seen := map[string]bool{}
	for _, device := range claim.Devices {
		if seen[device.Name] {
			continue
		}
		seen[device.Name] = true
		own, given := edits[device.Name]
		if !given {
			return nil, fmt.Errorf("there are no edits for device %s", device.Name)
		}
		own.Env = append(slices.Clone(own.Env), variableOf(device.Name)+"="+device.Model)
		spec.Devices = append(spec.Devices, specs.Device{Name: deviceName(uid, device), ContainerEdits: own})
	}
	spec.ContainerEdits.Hooks = takeCommonHooks(spec.Devices)
	all := requests(claim)
	for _, request := range all {
		spec.Devices = append(spec.Devices, specs.Device{
			Name:           requestName(uid, request),
			ContainerEdits: visible(slices.DeleteFunc(slices.Clone(claim.Devices), not(request))),
		})
	}
	if len(all) > 1 {
		spec.Devices = append(spec.Devices, specs.Device{Name: string(uid), ContainerEdits: visible(claim.Devices)})
	}
	for _, device := range spec.Devices {
		if err := parser.ValidateDeviceName(device.Name); err != nil {
			return nil, fmt.Errorf("naming CDI device, %w", err)
		}
	}
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return nil, fmt.Errorf("choosing CDI version, %w", err)
	}
	return spec, nil
}

// takeCommonHooks takes the hooks that each of several devices has away from
// them, and returns them in the order of the first. A runtime applies what the
// spec as a whole asks for once, and before what its devices do; of hooks, other
// than of mounts and nodes, it would run each copy.
func takeCommonHooks(devices []specs.Device) []*specs.Hook {
	if len(devices) < 2 {
		return nil
	}
	in := func(hooks []*specs.Hook, hook *specs.Hook) bool {
		return slices.ContainsFunc(hooks, func(h *specs.Hook) bool { return reflect.DeepEqual(h, hook) })
	}
	var common []*specs.Hook
	for _, hook := range devices[0].ContainerEdits.Hooks {
		everywhere := !slices.ContainsFunc(devices, func(d specs.Device) bool { return !in(d.ContainerEdits.Hooks, hook) })
		if everywhere && !in(common, hook) {
			common = append(common, hook)
		}
	}
	for i := range devices {
		edits := &devices[i].ContainerEdits
		edits.Hooks = slices.DeleteFunc(slices.Clone(edits.Hooks), func(h *specs.Hook) bool { return in(common, h) })
	}
	return common
}

// Devices are a claim's devices as kubelet is told of them: in the order of
// the allocation, each with its CDI devices. The first of these is the one by
// which kubelet calls the device in the status of the Pod.
func Devices(driver, pool string, uid types.UID, claim *checkpoint.Claim) []kubeletplugin.Device {
	var devices []kubeletplugin.Device
	last := map[string]int{}
	for _, device := range claim.Devices {
		made := kubeletplugin.Device{
			Requests:     []string{device.Request},
			PoolName:     pool,
			DeviceName:   device.Name,
			CDIDeviceIDs: []string{qualified(driver, deviceName(uid, device))},
		}
		if device.ShareID != "" {
			made.ShareID = &device.ShareID
		}
		last[resourceclaim.BaseRequestRef(device.Request)] = len(devices)
		devices = append(devices, made)
	}
	all := requests(claim)
	for _, request := range all {
		end := &devices[last[request]]
		end.CDIDeviceIDs = append(end.CDIDeviceIDs, qualified(driver, requestName(uid, request)))
	}
	if len(all) > 1 {
		// The same devices once more, under the same first names: kubelet shows
		// each once.
		for _, device := range claim.Devices {
			devices = append(devices, kubeletplugin.Device{
				Requests:     []string{wholeClaim},
				PoolName:     pool,
				DeviceName:   device.Name,
				CDIDeviceIDs: []string{qualified(driver, deviceName(uid, device))},
			})
		}
		end := &devices[len(devices)-1]
		end.CDIDeviceIDs = append(end.CDIDeviceIDs, qualified(driver, string(uid)))
	}
	return devices
}

// requests of a claim, without subrequests, in the order of the allocation.
func requests(claim *checkpoint.Claim) []string {
	var all []string
	for _, device := range claim.Devices {
		if base := resourceclaim.BaseRequestRef(device.Request); !slices.Contains(all, base) {
			all = append(all, base)
		}
	}
	return all
}

func not(request string) func(checkpoint.Device) bool {
	return func(d checkpoint.Device) bool { return resourceclaim.BaseRequestRef(d.Request) != request }
}

func visible(devices []checkpoint.Device) specs.ContainerEdits {
	var names, models []string
	for _, device := range devices {
		names = append(names, device.Name)
		models = append(models, device.Model)
	}
	return specs.ContainerEdits{Env: []string{
		VariableDevices + "=" + set(names),
		VariableModel + "=" + set(models),
	}}
}

// set is a list without doubles and empty ones, sorted, in one string.
func set(names []string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

func variableOf(device string) string {
	return VariableDevicePrefix + strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(device))
}

func qualified(driver, name string) string { return driver + "/" + Class + "=" + name }

// deviceName has two underscores, requestName one, the whole claim's name none.
// Names of devices and requests have none of their own.
func deviceName(uid types.UID, device checkpoint.Device) string {
	model := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		}
		return '-'
	}, device.Model)
	if model == "" {
		model = unknownModel
	}
	return string(uid) + "_" + model + "_" + device.Name
}

func requestName(uid types.UID, request string) string { return string(uid) + "_" + request }
