// Package replace puts ladder-scheduler in the place of kube-scheduler, so that
// it serves every Pod of a cluster: with a configuration that names the default
// profile, and by editing the static Pod of a control plane.
package replace

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// weight is above what all other plugins' weights add up to.
const weight = 100000

// Config is a configuration of ladder-scheduler that serves the default profile
// and its own name. electLeader says whether several may run at once, with
// kube-scheduler's own lease, so that neither runs beside the other.
func Config(kubeconfig string, electLeader bool) ([]byte, error) {
	enabled := func(names ...string) map[string]any {
		var plugins []any
		for _, name := range names {
			plugins = append(plugins, map[string]any{"name": name})
		}
		return map[string]any{"enabled": plugins}
	}
	var profiles []any
	for _, name := range []string{"default-scheduler", v1alpha1.SchedulerName} {
		profiles = append(profiles, map[string]any{
			"schedulerName": name,
			"plugins": map[string]any{
				"multiPoint": map[string]any{
					"enabled":  []any{map[string]any{"name": "Ladder", "weight": weight}},
					"disabled": []any{map[string]any{"name": "DynamicResources"}},
				},
				"postFilter":         enabled("Ladder", "DefaultPreemption"),
				"podGroupPostFilter": enabled("Ladder", "DefaultPreemption"),
				"bind":               enabled("Ladder", "DefaultBinder"),
			},
		})
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"clientConnection": map[string]any{"kubeconfig": kubeconfig, "qps": 300, "burst": 600},
		"leaderElection":   map[string]any{"leaderElect": electLeader},
		"profiles":         profiles,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration of ladder-scheduler, %w", err)
	}
	return content, nil
}
