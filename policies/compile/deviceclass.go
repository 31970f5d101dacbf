package compile

import (
	"fmt"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Labels of the objects that Ladder makes.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "ladder"
)

// nvidiaClassName differs from the driver's name on purpose. NVIDIA installs a
// class of its own called gpu.nvidia.com that selects type == "gpu" and so
// leaves MIG devices out; Ladder's selects every device of the driver, since a
// policy's shorthand says nothing about the type. Under one name the two
// installations would overwrite each other.
const nvidiaClassName = v1alpha1.NVIDIADriverName + "." + v1alpha1.GroupName

// DeviceClassName is the class that templates use for a driver's devices.
func DeviceClassName(driver string) string {
	if driver == v1alpha1.NVIDIADriverName {
		return nvidiaClassName
	}
	return driver
}

// Drivers are the drivers that a policy may mean.
func Drivers() []string {
	return []string{v1alpha1.DriverName, v1alpha1.NVIDIADriverName}
}

// DeviceClass selects every device of a driver. All policies of the driver
// share it: what a policy demands stands in its templates, so that a change of
// policy never changes a class under claims that wait.
func DeviceClass(driver string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   DeviceClassName(driver),
			Labels: map[string]string{LabelManagedBy: ManagedBy},
		},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %s", strconv.Quote(driver))},
		}}},
	}
}
