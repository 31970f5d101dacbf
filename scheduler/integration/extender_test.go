package integration_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/app"
)

// refusing is an extender that refuses a node.
func refusing(t *testing.T, node string) *httptest.Server {
	t.Helper()
	return extender(t, func(_, on string) bool { return on == node })
}

// extender is one that refuses a Pod nodes.
func extender(t *testing.T, refuses func(pod, node string) bool) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		args := &extenderv1.ExtenderArgs{}
		if err := json.NewDecoder(r.Body).Decode(args); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result := &extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}}
		for _, name := range *args.NodeNames {
			if refuses(args.Pod.Name, name) {
				result.FailedNodes[name] = "not today"
			} else {
				*result.NodeNames = append(*result.NodeNames, name)
			}
		}
		_ = json.NewEncoder(w).Encode(result)
	}))
	t.Cleanup(server.Close)
	return server
}

// startWithExtender runs the scheduler with an extender that filters nodes.
func (c *cluster) startWithExtender(url string) {
	c.t.Helper()
	c.startSchedulerBy("", "--config="+c.configWithExtender(url))
}

// configWithExtender is a configuration file with an extender that filters nodes.
func (c *cluster) configWithExtender(url string) string {
	c.t.Helper()
	return c.configFile(func(config *configv1.KubeSchedulerConfiguration) {
		config.Extenders = []configv1.Extender{{URLPrefix: url, FilterVerb: "filter", NodeCacheCapable: true}}
	})
}

// configFile is a configuration file with one profile, and a change.
func (c *cluster) configFile(change func(*configv1.KubeSchedulerConfiguration)) string {
	c.t.Helper()
	config := &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{app.Profile(v1alpha1.SchedulerName)}}
	config.APIVersion, config.Kind = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	config.ClientConnection.Kubeconfig = server.kubeconfig
	config.LeaderElection.LeaderElect = ptr.To(false)
	change(config)
	content, err := yaml.Marshal(config)
	require.NoError(c.t, err)
	path := filepath.Join(c.t.TempDir(), "config.yaml")
	require.NoError(c.t, os.WriteFile(path, content, 0o600))
	return path
}

// An extender may refuse the best node, or all of a part: the Pod gets the next
// one of the order, and its record says why.
func TestExtenderRefusesTheBestNode(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(2))
	c.addPolicy("h100", ladderOf("H100"))
	c.startWithExtender(refusing(t, "h100-0000").URL)
	c.addPod("pod", "h100")
	assert.Equal(t, "h100-0001/gpu-0", c.placed("pod"))
	record := c.record("pod", v1alpha1.OutcomeAllocated)
	assert.Contains(t, details(record, "t0", v1alpha1.ReasonNodeUnsuitable)["h100-0000"], "an extender refused the node")
}

// Two profiles share the devices, the order and what is told.
func TestTwoProfiles(t *testing.T) {
	c := newCluster(t)
	c.addFleet(small(1))
	c.addPolicy("h100", ladderOf("H100"))
	c.startSchedulerBy("", "--config="+c.configFile(func(config *configv1.KubeSchedulerConfiguration) {
		config.Profiles = append(config.Profiles, app.Profile("other"))
	}))
	other := func(p *corev1.Pod) { p.Spec.SchedulerName = "other" }
	c.addPod("a", "h100")
	assert.Equal(t, "h100-0000/gpu-0", c.placed("a"))
	c.addPod("b", "h100", other)
	assert.Equal(t, "h100-0000/gpu-1", c.placed("b"))
	for name, opts := range map[string][]podOption{"c": {other}, "d": nil} {
		c.addPod(name, "h100", opts...)
		assert.Contains(t, c.condition(name, "Pending"), "InUse")
	}
	c.remove("a")
	c.remove("b")
	assert.ElementsMatch(t, []string{"h100-0000/gpu-0", "h100-0000/gpu-1"}, c.placesOf([]string{"c", "d"}))
}
