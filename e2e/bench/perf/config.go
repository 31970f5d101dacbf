package perf

// The files that scheduler_perf reads: the workload and the configuration of
// the scheduler. What upstream wrote is read where it lies and changed as
// little as possible.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/e2e/bench"
	"gpuladder.dev/ladder/scheduler/app"
	"gpuladder.dev/ladder/scheduler/ladder"
)

// topic is the name under which upstream keeps thresholds and results.
const topic = "dra"

// object is YAML as it was read.
type object = map[string]any

// configure writes the files of a run into a folder and returns the name of the
// one to give to scheduler_perf, and upstream's threshold.
func configure(spec bench.Spec) (path string, threshold float64, err error) {
	var testCase object
	var stock *configv1.KubeSchedulerConfiguration
	if spec.Workload.Ours() {
		testCase, err = sceneCase(spec)
	} else {
		testCase, stock, threshold, err = upstreamCase(spec)
	}
	if err != nil {
		return "", 0, err
	}
	scheduler := filepath.Join(spec.Out, "scheduler.yaml")
	if err := writeYAML(scheduler, schedulerConfig(spec.Scheduler, stock)); err != nil {
		return "", 0, err
	}
	if spec.Scheduler.IsLadder() {
		gates, ok := testCase["featureGates"].(object)
		if !ok {
			gates = object{}
		}
		gates[string(app.Narrowing)] = true
		testCase["featureGates"] = gates
	}
	testCase["schedulerConfigPath"] = scheduler
	testCase["metricsCollectorConfig"] = object{"metrics": object{
		attemptMetric: []any{object{"label": "result", "values": []any{"scheduled", "unschedulable", "error"}}},
	}}
	path = filepath.Join(spec.Out, "workload.yaml")
	return path, threshold, writeYAML(path, []any{testCase})
}

// schedulerConfig is the configuration of a scheduler. What the workload itself
// configures, in stock, stays: that are arguments of plugins.
func schedulerConfig(s bench.Scheduler, stock *configv1.KubeSchedulerConfiguration) *configv1.KubeSchedulerConfiguration {
	const name = "default-scheduler"
	config := &configv1.KubeSchedulerConfiguration{}
	config.APIVersion, config.Kind = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	profile := configv1.KubeSchedulerProfile{SchedulerName: ptr.To(name)}
	switch {
	case s.IsLadder():
		profile = app.Profile(name)
		profile.Plugins.QueueSort = configv1.PluginSet{
			Enabled:  []configv1.Plugin{{Name: ladder.OrderName}},
			Disabled: []configv1.Plugin{{Name: "*"}},
		}
	case s == bench.StockConfigured:
		config.PercentageOfNodesToScore = ptr.To[int32](100)
		profile.Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{
			Enabled: []configv1.Plugin{{Name: names.DynamicResources, Weight: ptr.To[int32](100)}},
		}}
	}
	if stock != nil && len(stock.Profiles) > 0 {
		profile.PluginConfig = stock.Profiles[0].PluginConfig
	}
	config.Profiles = []configv1.KubeSchedulerProfile{profile}
	return config
}

// upstreamCase reads a test case of upstream with one of its workloads.
func upstreamCase(spec bench.Spec) (testCase object, stock *configv1.KubeSchedulerConfiguration, threshold float64, err error) {
	folder := filepath.Join(spec.Upstream, filepath.FromSlash(spec.Workload.Folder))
	var cases []object
	if err := readYAML(filepath.Join(folder, "performance-config.yaml"), &cases); err != nil {
		return nil, nil, 0, err
	}
	testCase, err = named(cases, spec.Workload.TestCase)
	if err != nil {
		return nil, nil, 0, err
	}
	workload, err := named(objects(testCase["workloads"]), spec.Workload.Case)
	if err != nil {
		return nil, nil, 0, err
	}
	if spec.Nodes == bench.FullNodes {
		threshold = thresholdOf(workload["threshold"])
	}
	delete(workload, "threshold") // what is slower than on upstream's machines is a result and no failure
	workload["labels"] = []any{"performance"}
	params, ok := workload["params"].(object)
	if !ok {
		return nil, nil, 0, fmt.Errorf("reading workload %s, it has no params", spec.Workload.Name)
	}
	if err := resize(params, spec); err != nil {
		return nil, nil, 0, fmt.Errorf("resizing workload %s, %w", spec.Workload.Name, err)
	}
	testCase["workloads"] = []any{workload}
	resolvePaths(testCase, folder)
	if path, ok := testCase["schedulerConfigPath"].(string); ok {
		stock = &configv1.KubeSchedulerConfiguration{}
		if err := readYAML(filepath.Join(folder, path), stock); err != nil {
			return nil, nil, 0, err
		}
	}
	return testCase, stock, threshold, nil
}

func objects(list any) []object {
	var all []object
	items, _ := list.([]any)
	for _, item := range items {
		if o, ok := item.(object); ok {
			all = append(all, o)
		}
	}
	return all
}

func named(list []object, name string) (object, error) {
	at := slices.IndexFunc(list, func(o object) bool { return o["name"] == name })
	if at < 0 {
		return nil, fmt.Errorf("looking for %q in upstream's configuration, it has no such entry", name)
	}
	return list[at], nil
}

// thresholdOf reads a threshold: a number, or one for each topic.
func thresholdOf(value any) float64 {
	if byTopic, ok := value.(object); ok {
		value = byTopic[topic]
	}
	threshold, _ := value.(float64)
	return threshold
}

// devicesPerNode is how many devices a node has in upstream's workloads.
const devicesPerNode = 10

// resize scales what a workload counts to the run's number of nodes. A workload
// that leaves room for few Pods goes on leaving it for as many.
func resize(params object, spec bench.Spec) error {
	full, ok := params["nodesWithDRA"].(float64)
	if !ok || full == 0 {
		return errors.New("it has no nodes with devices")
	}
	nodes := float64(spec.Nodes)
	steady, _ := params["steadyState"].(bool)
	for _, name := range []string{"nodesWithDRA", "initClaims", "initPods", "measurePods"} {
		count, ok := params[name].(float64)
		if !ok || name == "measurePods" && steady {
			continue
		}
		if free := full*devicesPerNode - count; name == "initClaims" && free < full {
			params[name] = nodes*devicesPerNode - free
			continue
		}
		params[name] = float64(int(count * nodes / full))
	}
	if steady && spec.Steady > 0 {
		params["duration"] = spec.Steady.String()
	}
	return nil
}

// resolvePaths makes paths of templates independent of the working folder.
func resolvePaths(value any, folder string) {
	switch v := value.(type) {
	case object:
		for key, inner := range v {
			if path, ok := inner.(string); ok && strings.HasSuffix(strings.ToLower(key), "templatepath") {
				v[key] = filepath.Join(folder, path)
				continue
			}
			resolvePaths(inner, folder)
		}
	case []any:
		for _, inner := range v {
			resolvePaths(inner, folder)
		}
	}
}

func readYAML(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading configuration, %w", err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading %s, %w", path, err)
	}
	return nil
}

func writeYAML(path string, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding %s, %w", path, err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("writing configuration, %w", err)
	}
	return nil
}
