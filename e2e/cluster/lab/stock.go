package lab

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// stockConfig is the configuration of kube-scheduler where it is used in place
// of ladder-scheduler.
func stockConfig(s Scheduler, kubeconfig string) ([]byte, error) {
	var profiles []any
	for _, name := range []string{"default-scheduler", v1alpha1.SchedulerName} {
		profile := map[string]any{"schedulerName": name}
		if s == SchedulerStockConfigured {
			profile["plugins"] = map[string]any{"multiPoint": map[string]any{
				"enabled": []any{map[string]any{"name": "DynamicResources", "weight": 100}},
			}}
		}
		profiles = append(profiles, profile)
	}
	config := map[string]any{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"clientConnection": map[string]any{"kubeconfig": kubeconfig, "qps": 300, "burst": 600},
		"leaderElection":   map[string]any{"leaderElect": false},
		"profiles":         profiles,
	}
	if s == SchedulerStockConfigured {
		config["percentageOfNodesToScore"] = 100
	}
	content, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration of kube-scheduler, %w", err)
	}
	return content, nil
}
