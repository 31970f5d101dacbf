package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// checkComponents looks at the Deployments of Ladder and at the lease of its
// controller. That of the scheduler is for checkSchedulers.
func checkComponents(f *facts) []Finding {
	var found []Finding
	for i := range f.deployments {
		d := &f.deployments[i]
		want, ready := ptr.Deref(d.Spec.Replicas, 1), d.Status.ReadyReplicas
		if ready >= want {
			continue
		}
		severity := Warning
		if ready == 0 {
			severity = Error
		}
		found = append(found, Finding{
			Severity: severity, Object: object("Deployment", d.Namespace, d.Name), Summary: fmt.Sprintf("%d of %d replicas are ready", ready, want),
			Action: fmt.Sprintf("`kubectl -n %s describe deployment %s`, and the log of its Pods.", d.Namespace, d.Name),
		})
	}
	if own, _ := f.live(controllerName); f.could(leasesGVR.Resource) && len(own) == 0 {
		found = append(found, Finding{
			Severity: Error, Summary: "no ladder-controller is at work: nobody renews its lease",
			Meaning: "Policies are not compiled, quotas open no gates, failed devices have no consequences for Recreate and End, and records are not removed.",
			Action:  "Look at the Deployment ladder-controller and its log (docs/runbooks/controller-down.md).",
		})
	}
	return found
}

// checkDriver looks for nodes with devices of Ladder's driver on which no driver
// is ready. Without a DaemonSet the driver is run in another way, and nothing
// can be said.
func checkDriver(f *facts) []Finding {
	if len(f.daemonSets) == 0 || !f.could(podsGVR.Resource) {
		return nil
	}
	var found []Finding
	for i := range f.daemonSets {
		d := &f.daemonSets[i]
		if want, ready := d.Status.DesiredNumberScheduled, d.Status.NumberReady; ready < want {
			found = append(found, Finding{
				Severity: Warning, Object: object("DaemonSet", d.Namespace, d.Name), Summary: fmt.Sprintf("%d of %d Pods are ready", ready, want),
				Action: fmt.Sprintf("`kubectl -n %s get pods -o wide -l %s=%s`.", d.Namespace, labelName, d.Labels[labelName]),
			})
		}
	}
	serves := map[string]bool{}
	for i := range f.pods {
		if p := &f.pods[i]; p.Labels[labelName] == driverName && isReady(p) {
			serves[p.Spec.NodeName] = true
		}
	}
	var without []string
	for i := range f.slices {
		spec := &f.slices[i].Spec
		if spec.Driver == v1alpha1.DriverName && spec.NodeName != nil && !serves[*spec.NodeName] && !slices.Contains(without, *spec.NodeName) {
			without = append(without, *spec.NodeName)
		}
	}
	if len(without) > 0 {
		found = append(found, Finding{
			Severity: Error, Summary: fmt.Sprintf("%d nodes have devices of %s, but no driver that is ready: %s", len(without), v1alpha1.DriverName, names(without)),
			Meaning: "Pods are placed there and their containers do not start; those that end stay Terminating.",
			Action:  "Look at the driver's Pods on these nodes (docs/runbooks/driver-down.md).",
		})
	}
	return found
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// reasonTemplateRefused is why a policy is not ready of which a claim template
// could not be written. All else is well with it.
const reasonTemplateRefused = "TemplateRefused"

func checkPolicies(f *facts) []Finding {
	var found []Finding
	for i := range f.policies {
		p := &f.policies[i]
		id := object("AcceleratorPolicy", "", p.Name)
		ready := meta.FindStatusCondition(p.Status.Conditions, "Ready")
		switch {
		case ready == nil || p.Status.ObservedGeneration != p.Generation:
			found = append(found, Finding{
				Severity: Warning, Object: id, Summary: "was not looked at by ladder-controller since it changed",
				Meaning: "New Pods get what it said before, or are refused.", Action: "Wait a moment; otherwise see to ladder-controller.",
			})
		case ready.Status != metav1.ConditionTrue:
			finding := Finding{
				Severity: Error, Object: id, Summary: "is not ready: " + ready.Message,
				Meaning: "Pods that name it are refused.", Action: "Mend its spec; `ladder policy lint` tells what is wrong with a file.",
			}
			switch {
			case p.Status.ActiveRevision == 0:
			case ready.Reason == reasonTemplateRefused:
				finding.Severity = Warning
				finding.Meaning = fmt.Sprintf("New Pods get revision %d, also where its claim template could not be written: there they wait for their claim.", p.Status.ActiveRevision)
				finding.Action = "See what refuses the template in that namespace: a quota, or another admission policy (docs/runbooks/policies-not-compiled.md)."
			default:
				finding.Severity = Warning
				finding.Meaning = fmt.Sprintf("New Pods get revision %d, not what its spec says now.", p.Status.ActiveRevision)
			}
			found = append(found, finding)
		}
	}
	return found
}

// checkQuotas looks for namespaces that two TenantQuotas claim.
func checkQuotas(f *facts) []Finding {
	owners := map[string][]string{}
	for i := range f.quotas {
		for _, namespace := range f.quotas[i].Spec.Namespaces {
			owners[namespace] = append(owners[namespace], f.quotas[i].Name)
		}
	}
	var shared []string
	for namespace, quotas := range owners {
		if len(quotas) > 1 {
			shared = append(shared, namespace)
		}
	}
	slices.Sort(shared)
	var found []Finding
	for _, namespace := range shared {
		quotas := owners[namespace]
		slices.Sort(quotas)
		found = append(found, Finding{
			Severity: Error, Object: object("Namespace", "", namespace), Summary: "belongs to the TenantQuotas " + strings.Join(quotas, " and "),
			Meaning: "A namespace has one tenant. Which quota is charged for its Pods is not what either says.",
			Action:  "Take it out of all but one.",
		})
	}
	return found
}

// checkMigrations tells of what looks as if something happened, and does not.
func checkMigrations(f *facts) []Finding {
	if len(f.migrations) == 0 {
		return nil
	}
	var there []string
	for i := range f.migrations {
		there = append(there, f.migrations[i].Name)
	}
	return []Finding{{
		Severity: Warning, Summary: fmt.Sprintf("%d DeviceMigrations are there: %s", len(there), names(there)),
		Meaning: "Nothing acts on a DeviceMigration yet: no workload and no node is moved.",
		Action:  "Move nodes by their label gpuladder.dev/stack (docs/install.md), and delete the DeviceMigrations.",
	}}
}
