package ladder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/component-base/featuregate"
)

// gates is a FeatureGate with these features on.
type gates struct {
	featuregate.FeatureGate
	on map[featuregate.Feature]bool
}

func (g gates) Enabled(f featuregate.Feature) bool { return g.on[f] }

func TestCheckGates(t *testing.T) {
	generallyAvailable := map[featuregate.Feature]bool{
		"DynamicResourceAllocation": true, "DRAAdminAccess": true, "DRAPrioritizedList": true,
		"DRADeviceTaints": true, "DRAPartitionableDevices": true,
	}
	assert.ErrorContains(t, CheckGates(gates{on: generallyAvailable}), "DRAConsumableCapacity")
	for _, feature := range []featuregate.Feature{"DRAConsumableCapacity", "DRAFractionalCapacityRange", "DRAListTypeAttributes"} {
		on := map[featuregate.Feature]bool{feature: true}
		assert.NoError(t, CheckGates(gates{on: on}), feature)
	}
	assert.Error(t, CheckGates(gates{on: map[featuregate.Feature]bool{"DRADeviceBindingConditions": true}}),
		"it counts only together with the claims' device status")
}
