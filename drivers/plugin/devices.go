package plugin

// This file joins what the hardware has with what is wrong with it.

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/health"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// devices is the inventory as the rest of the driver sees it.
type devices struct {
	inventory.Inventory
	monitor *health.Monitor
}

var _ engine.Hardware = devices{}

// Trouble implements [engine.Hardware].
func (d devices) Trouble(device string) (inventory.Severity, string) {
	return d.monitor.Severity(device)
}

// tainted is the pool as it is published.
func (d devices) tainted(ctx context.Context) (inventory.Pool, error) {
	pool, err := d.Pool(ctx)
	if err != nil {
		return pool, fmt.Errorf("reading inventory, %w", err)
	}
	for i := range pool.Devices {
		pool.Devices[i].Taints = append(pool.Devices[i].Taints, d.monitor.Taints(pool.Devices[i].Name)...)
	}
	return pool, nil
}

// report is what kubelet is told of the devices' health.
func (d devices) report(ctx context.Context, pool string, clock clock.PassiveClock) (kubeletplugin.DeviceHealthReport, error) {
	var report kubeletplugin.DeviceHealthReport
	present, err := d.Pool(ctx)
	if err != nil {
		return report, fmt.Errorf("reading inventory, %w", err)
	}
	for i := range present.Devices {
		device := &present.Devices[i]
		severity, why := d.monitor.Severity(device.Name)
		state := kubeletplugin.HealthStatusHealthy
		message := title(device) + ": " + severity.String()
		if severity > inventory.Healthy {
			state = kubeletplugin.HealthStatusUnhealthy
			message += ", " + why
		}
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: pool, DeviceName: device.Name, Health: state, Message: message, LastUpdated: clock.Now(),
		})
	}
	return report, nil
}

// title names a device and says what it is: gpu-0, H100 (NVIDIA H100 80GB HBM3).
func title(device *resourcev1.Device) string {
	made := device.Name
	if model := device.Attributes[fleet.AttributeModel].StringValue; model != nil {
		made += ", " + *model
	}
	if product := device.Attributes[fleet.AttributeProductName].StringValue; product != nil {
		made += " (" + *product + ")"
	}
	return made
}
