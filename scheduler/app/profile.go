package app

import (
	"fmt"
	"maps"
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/ladder"
)

const (
	// scoreWeight makes Ladder's score outweigh all others together, which add
	// up to about 1,200 points with the default plugins.
	scoreWeight = 100000
	// Each Pod costs about six requests, so kube-scheduler's own limit of 50 a
	// second would be the bottleneck. The API server's priority and fairness
	// protects it.
	clientQPS   = 1000
	clientBurst = 2000
)

// Profile returns the profile of the configuration without --config, under a
// name: Ladder in place of DynamicResources.
func Profile(schedulerName string) configv1.KubeSchedulerProfile {
	return configv1.KubeSchedulerProfile{
		SchedulerName: ptr.To(schedulerName),
		Plugins: &configv1.Plugins{
			MultiPoint: configv1.PluginSet{
				Enabled:  []configv1.Plugin{{Name: ladder.Name, Weight: ptr.To[int32](scoreWeight)}},
				Disabled: []configv1.Plugin{{Name: names.DynamicResources}},
			},
			// Plugins enabled by multiPoint alone come after the default
			// ones. An idle allocation must be taken back before another
			// Pod is preempted, and the first bind plugin binds.
			PostFilter:         configv1.PluginSet{Enabled: []configv1.Plugin{{Name: ladder.Name}, {Name: names.DefaultPreemption}}},
			PodGroupPostFilter: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: ladder.Name}, {Name: names.DefaultPreemption}}},
			Bind:               configv1.PluginSet{Enabled: []configv1.Plugin{{Name: ladder.Name}, {Name: names.DefaultBinder}}},
		},
	}
}

// defaultConfig is the configuration without --config: one profile,
// ladder-scheduler.
func defaultConfig() (*config.KubeSchedulerConfiguration, error) {
	external := &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{Profile(v1alpha1.SchedulerName)}}
	external.LeaderElection.ResourceName = v1alpha1.SchedulerName
	external.ClientConnection.QPS = clientQPS
	external.ClientConnection.Burst = clientBurst
	configscheme.Scheme.Default(external)
	internal := &config.KubeSchedulerConfiguration{}
	if err := configscheme.Scheme.Convert(external, internal, nil); err != nil {
		return nil, fmt.Errorf("building the default configuration, %w", err)
	}
	internal.APIVersion = configv1.SchemeGroupVersion.String()
	return internal, nil
}

// serveInOrder makes every profile that leaves it to kube-scheduler which Pod is
// tried first use Ladder's order. Profiles of one scheduler share the queue, so
// they must agree, whether or not they use Ladder.
func serveInOrder(profiles []config.KubeSchedulerProfile) {
	for i := range profiles {
		plugins := profiles[i].Plugins
		if plugins == nil || len(plugins.QueueSort.Enabled) > 0 || enabled(plugins.MultiPoint, ladder.OrderName) {
			continue
		}
		if at := index(plugins.MultiPoint, names.PrioritySort); at >= 0 {
			plugins.MultiPoint.Enabled[at].Name = ladder.OrderName
		}
	}
}

// park adds the plugin that keeps Pods that wait for devices out of the queue
// wherever Ladder is.
func park(profiles []config.KubeSchedulerProfile) {
	for i := range profiles {
		plugins := profiles[i].Plugins
		if plugins != nil && enabled(plugins.MultiPoint, ladder.Name) && !enabled(plugins.MultiPoint, ladder.ParkName) {
			plugins.MultiPoint.Enabled = append(plugins.MultiPoint.Enabled, config.Plugin{Name: ladder.ParkName})
		}
	}
}

// checkProfiles refuses profiles in which Ladder could not keep its promises.
func checkProfiles(sched *scheduler.Scheduler) error {
	profiles := map[string]*config.Plugins{}
	for name, profile := range sched.Profiles {
		profiles[name] = profile.ListPlugins()
	}
	return checkPlugins(profiles)
}

// checkPlugins is checkProfiles for the plugins of each profile.
func checkPlugins(profiles map[string]*config.Plugins) error {
	used := false
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		plugins := profiles[name]
		if !enabled(plugins.Filter, ladder.Name) {
			if enabled(plugins.Filter, names.DynamicResources) {
				return fmt.Errorf("profile %s uses %s: two deciders over the same devices would allocate them twice; use %s in every profile",
					name, names.DynamicResources, ladder.Name)
			}
			continue
		}
		used = true
		if err := checkProfile(plugins); err != nil {
			return fmt.Errorf("profile %s: %w", name, err)
		}
	}
	if !used {
		return fmt.Errorf("no profile uses the plugin %s", ladder.Name)
	}
	return nil
}

func checkProfile(plugins *config.Plugins) error {
	others := int32(0)
	own := int32(0)
	for _, p := range plugins.Score.Enabled {
		if p.Name == ladder.Name {
			own = p.Weight
		} else {
			others += p.Weight
		}
	}
	switch {
	case !enabled(plugins.PreFilter, ladder.Name), !enabled(plugins.Reserve, ladder.Name), !enabled(plugins.PreBind, ladder.Name), !enabled(plugins.PostBind, ladder.Name):
		return fmt.Errorf("enable %s by multiPoint: it needs all of its extension points", ladder.Name)
	case !enabled(plugins.QueueSort, ladder.OrderName):
		return fmt.Errorf("queueSort must be %s: with another one the order in which waiting Pods are served is not the same each time", ladder.OrderName)
	case own <= others:
		return fmt.Errorf("the score weight of %s is %d, it must be above %d, the weights of all others together", ladder.Name, own, others)
	case before(plugins.PostFilter, names.DefaultPreemption, ladder.Name):
		return fmt.Errorf("postFilter must list %s before %s", ladder.Name, names.DefaultPreemption)
	case before(plugins.PodGroupPostFilter, names.DefaultPreemption, ladder.Name):
		return fmt.Errorf("podGroupPostFilter must list %s before %s", ladder.Name, names.DefaultPreemption)
	case before(plugins.Bind, names.DefaultBinder, ladder.Name):
		return fmt.Errorf("bind must list %s before %s", ladder.Name, names.DefaultBinder)
	}
	return nil
}

func enabled(set config.PluginSet, name string) bool { return index(set, name) >= 0 }

// before says whether first is enabled and second is not, or comes later.
func before(set config.PluginSet, first, second string) bool {
	i, j := index(set, first), index(set, second)
	return i >= 0 && (j < 0 || i < j)
}

func index(set config.PluginSet, name string) int {
	return slices.IndexFunc(set.Enabled, func(p config.Plugin) bool { return p.Name == name })
}
