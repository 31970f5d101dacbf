package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/selector"
)

// mostNamed is how many objects a finding names before it counts the rest.
const mostNamed = 5

// names lists some names and counts the rest.
func names(all []string) string {
	slices.Sort(all)
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}

// mostDevices bounds on how many devices the selectors of a class are tried.
const mostDevices = 2000

// checkClasses looks for classes that reach guarded devices without being known
// to the early word of the guard, the policy ladder-guard-pods.
func checkClasses(f *facts) []Finding {
	guard := f.guard()
	if guard == nil {
		return nil // whether that matters is said by the check of schedulers
	}
	drivers, err := guarded(guard)
	if err != nil {
		return nil // said there
	}
	known := map[string]bool{}
	for _, d := range drivers {
		known[d], known[d+"."+v1alpha1.GroupName] = true, true
	}
	cache := selector.NewCache(len(f.classes) + 1)
	var found []Finding
	for i := range f.classes {
		class := &f.classes[i]
		if known[class.Name] {
			continue
		}
		for _, driver := range drivers {
			if !f.selects(cache, class, driver) {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: object("DeviceClass", "", class.Name), Summary: "selects devices of " + driver + ", which ladder-scheduler alone allocates, and the guard does not know it",
				Meaning: "A Pod that uses it with another scheduler is let in and waits for ever: the scheduler's allocation is refused each time.",
				Action:  "Use the class " + compile.DeviceClassName(driver) + ", narrow the selectors, or give such Pods schedulerName ladder-scheduler.",
			})
			break
		}
	}
	return found
}

// selects says whether a class selects some device of a driver. Where the
// driver has no devices yet, one without attributes stands for them.
func (f *facts) selects(cache *cel.Cache, class *resourcev1.DeviceClass, driver string) bool {
	tried := 0
	for i := range f.slices {
		if f.slices[i].Spec.Driver != driver {
			continue
		}
		for j := range f.slices[i].Spec.Devices {
			if tried++; tried > mostDevices {
				return false
			}
			if matches(cache, class, driver, &f.slices[i].Spec.Devices[j]) {
				return true
			}
		}
	}
	return tried == 0 && matches(cache, class, driver, &resourcev1.Device{})
}

// matches says whether every selector of a class holds for a device; one that
// fails does not.
func matches(cache *cel.Cache, class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) bool {
	for _, s := range class.Spec.Selectors {
		if s.CEL == nil {
			return false
		}
		ok, err := selector.Match(cache, s.CEL.Expression, driver, device)
		if err != nil || !ok {
			return false
		}
	}
	return true
}

// checkAdvertisement looks for nodes that offer GPUs twice: through a device
// plugin, and through DRA.
func checkAdvertisement(f *facts) []Finding {
	dra := map[string]string{} // node to driver
	for i := range f.slices {
		spec := &f.slices[i].Spec
		if spec.NodeName != nil && len(spec.Devices) > 0 && slices.Contains(compile.Drivers(), spec.Driver) {
			dra[*spec.NodeName] = spec.Driver
		}
	}
	twice := map[string][]string{} // "resource and driver" to nodes
	for i := range f.nodes {
		driver, ok := dra[f.nodes[i].Name]
		if !ok {
			continue
		}
		if resource := pluginResource(&f.nodes[i]); resource != "" {
			key := resource + " of a device plugin and devices of " + driver
			twice[key] = append(twice[key], f.nodes[i].Name)
		}
	}
	var found []Finding
	for what, nodes := range twice {
		found = append(found, Finding{
			Severity: Error, Summary: fmt.Sprintf("%d nodes offer both %s: %s", len(nodes), what, names(nodes)),
			Meaning: "The same GPUs are given away twice: neither side knows what the other has allocated.",
			Action:  "Take the device plugin off these nodes, or the DRA driver.",
		})
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Summary, b.Summary) })
	return found
}

// pluginResource is the first extended resource for GPUs that a node has.
func pluginResource(node *corev1.Node) string {
	var found []string
	for name, quantity := range node.Status.Allocatable {
		n := string(name)
		if quantity.Sign() > 0 && (n == v1alpha1.DefaultLegacyResource || strings.HasPrefix(n, "nvidia.com/gpu.") || strings.HasPrefix(n, "nvidia.com/mig-")) {
			found = append(found, n)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// checkTaintRules looks for rules that hit more than they seem to, or less.
func checkTaintRules(f *facts) []Finding {
	var found []Finding
	for i := range f.rules {
		rule := &f.rules[i]
		id := object("DeviceTaintRule", "", rule.Name)
		taint := &rule.Spec.Taint
		switch s := rule.Spec.DeviceSelector; {
		case s == nil:
			found = append(found, Finding{
				Severity: Warning, Object: id, Summary: "has no selector and taints no device", Action: "Give it a selector, or remove it.",
			})
		case s.Driver == nil && s.Pool == nil && s.Device == nil && taint.Effect != resourcev1.DeviceTaintEffectNone:
			found = append(found, Finding{
				Severity: Error, Object: id, Summary: fmt.Sprintf("has an empty selector: it taints every device of every driver with %s:%s", taint.Key, taint.Effect),
				Meaning: consequenceOf(taint.Effect), Action: "Name a driver, pool or device in spec.deviceSelector, or remove it.",
			})
		case taint.Key == v1alpha1.TaintFailed && !f.isAlsoUnhealthy(rule):
			found = append(found, Finding{
				Severity: Warning, Object: id, Summary: fmt.Sprintf("taints with %s alone", taint.Key),
				Meaning: "Claims may tolerate that taint, for Recreate, End, Keep or a grace; without " + v1alpha1.TaintUnhealthy + ":NoSchedule beside it the device is given to such claims again.",
				Action:  "Make a second rule with the same selector and the taint " + v1alpha1.TaintUnhealthy + ":NoSchedule.",
			})
		}
	}
	return found
}

func consequenceOf(effect resourcev1.DeviceTaintEffect) string {
	if effect == resourcev1.DeviceTaintEffectNoExecute {
		return "Every Pod with a device whose claim does not tolerate it is deleted, past disruption budgets, and no new one gets a device."
	}
	return "No new Pod gets a device unless its claim tolerates it."
}

// isAlsoUnhealthy says whether another rule has the taint that no claim
// tolerates, for the same devices.
func (f *facts) isAlsoUnhealthy(rule *resourcev1.DeviceTaintRule) bool {
	same := func(a, b *string) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
	want := rule.Spec.DeviceSelector
	return slices.ContainsFunc(f.rules, func(other resourcev1.DeviceTaintRule) bool {
		s := other.Spec.DeviceSelector
		return s != nil && other.Spec.Taint.Key == v1alpha1.TaintUnhealthy && other.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoSchedule &&
			same(s.Driver, want.Driver) && same(s.Pool, want.Pool) && same(s.Device, want.Device)
	})
}
