package replace

import (
	"testing"

	"sigs.k8s.io/yaml"
)

type configuration struct {
	Kind             string
	ClientConnection struct{ Kubeconfig string }
	LeaderElection   struct{ LeaderElect bool }
	Profiles         []struct {
		SchedulerName string
		Plugins       map[string]struct {
			Enabled, Disabled []struct {
				Name   string
				Weight int
			}
		}
	}
}

func TestConfigServesTheDefaultProfile(t *testing.T) {
	content, err := Config("/some/kubeconfig", true)
	if err != nil {
		t.Fatal(err)
	}
	var c configuration
	if err := yaml.Unmarshal(content, &c); err != nil {
		t.Fatal(err)
	}
	if c.Kind != "KubeSchedulerConfiguration" || c.ClientConnection.Kubeconfig != "/some/kubeconfig" || !c.LeaderElection.LeaderElect {
		t.Errorf("config = %+v", c)
	}
	if len(c.Profiles) != 2 || c.Profiles[0].SchedulerName != "default-scheduler" || c.Profiles[1].SchedulerName != "ladder-scheduler" {
		t.Fatalf("profiles = %+v", c.Profiles)
	}
	for _, p := range c.Profiles {
		if all := p.Plugins["multiPoint"]; len(all.Enabled) != 1 || all.Enabled[0].Name != "Ladder" || all.Enabled[0].Weight != weight ||
			len(all.Disabled) != 1 || all.Disabled[0].Name != "DynamicResources" {
			t.Errorf("%s: multiPoint = %+v", p.SchedulerName, all)
		}
		for point, second := range map[string]string{"postFilter": "DefaultPreemption", "podGroupPostFilter": "DefaultPreemption", "bind": "DefaultBinder"} {
			if list := p.Plugins[point].Enabled; len(list) != 2 || list[0].Name != "Ladder" || list[1].Name != second {
				t.Errorf("%s: %s = %+v", p.SchedulerName, point, list)
			}
		}
	}
}
