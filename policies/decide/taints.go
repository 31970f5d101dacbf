package decide

// What keeps new claims away from a device: its own taints, those of the
// DeviceTaintRules, and what it says of its health.

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
)

// reportsUnhealthy reads the device's own word on its health, for drivers that
// publish it as an attribute before a taint has arrived: the boolean `healthy`
// is false, or the string `health` is Unhealthy, in the driver's own domain.
func reportsUnhealthy(driver string, d *resourceapi.Device) bool {
	if a, ok := lookupAttr(d.Attributes, driver, driver, attrHealthy); ok && a.BoolValue != nil && !*a.BoolValue {
		return true
	}
	a, ok := lookupAttr(d.Attributes, driver, driver, attrHealth)
	return ok && a.StringValue != nil && *a.StringValue == "Unhealthy"
}

// setTaints computes the taints that keep new claims away from the device.
func (st *State) setTaints(d *device) {
	d.taints = nil
	for _, t := range d.spec.Taints {
		if blocks(t.Effect) {
			d.taints = append(d.taints, t)
		}
	}
	for _, rule := range st.ruleOrder {
		if blocks(rule.Spec.Taint.Effect) && ruleSelects(rule.Spec.DeviceSelector, d.id) {
			d.taints = append(d.taints, rule.Spec.Taint)
		}
	}
}

// putRule replaces a DeviceTaintRule.
func (st *State) putRule(rule *resourceapi.DeviceTaintRule) {
	old := st.rules[rule.Name].get()
	if old != nil {
		st.ruleOrder = removeSorted(st.ruleOrder, old, compareRules)
	}
	putEntry(st, st.rules, rule.Name, &entry[*resourceapi.DeviceTaintRule]{rule, sumOf("DeviceTaintRule", ruleContent(rule))})
	st.ruleOrder = insertSorted(st.ruleOrder, rule, compareRules)
	st.retaint(old, rule)
}

// dropRule removes a DeviceTaintRule.
func (st *State) dropRule(name string) {
	old := st.rules[name].get()
	if old == nil {
		return
	}
	putEntry(st, st.rules, name, nil)
	st.ruleOrder = removeSorted(st.ruleOrder, old, compareRules)
	st.retaint(old)
}

// retaint computes the taints of the devices that one of the rules selects.
func (st *State) retaint(rules ...*resourceapi.DeviceTaintRule) {
	for _, rule := range rules {
		if rule == nil || rule.Spec.DeviceSelector == nil {
			continue
		}
		sel := rule.Spec.DeviceSelector
		for _, p := range st.poolOrder {
			if !equalsOrUnset(sel.Driver, p.key.driver) || !equalsOrUnset(sel.Pool, p.key.name) {
				continue
			}
			for _, s := range p.current {
				for _, d := range s.devices {
					if equalsOrUnset(sel.Device, d.id.device) {
						st.setTaints(d)
						st.touch(d)
					}
				}
			}
		}
	}
}

func compareRules(a, b *resourceapi.DeviceTaintRule) int { return cmp.Compare(a.Name, b.Name) }

// ruleSelects: a rule without a selector selects nothing, an empty selector
// selects every device.
func ruleSelects(sel *resourceapi.DeviceTaintSelector, id deviceID) bool {
	return sel != nil && equalsOrUnset(sel.Driver, id.driver) &&
		equalsOrUnset(sel.Pool, id.pool) && equalsOrUnset(sel.Device, id.device)
}

func equalsOrUnset(want *string, have string) bool { return want == nil || *want == have }

func blocks(e resourceapi.DeviceTaintEffect) bool {
	return e == resourceapi.DeviceTaintEffectNoSchedule || e == resourceapi.DeviceTaintEffectNoExecute
}
