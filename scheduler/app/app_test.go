package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/scheduler/ladder"
)

func TestDefaultConfig(t *testing.T) {
	c, err := defaultConfig()
	require.NoError(t, err)
	require.NoError(t, errOrNil(validation.ValidateKubeSchedulerConfiguration(c)))
	require.Len(t, c.Profiles, 1)
	profile := c.Profiles[0]
	assert.Equal(t, v1alpha1.SchedulerName, profile.SchedulerName)
	assert.Nil(t, profile.PercentageOfNodesToScore, "Pods without devices are placed as by kube-scheduler")
	assert.False(t, enabled(profile.Plugins.MultiPoint, names.DynamicResources))
	assert.True(t, enabled(profile.Plugins.MultiPoint, ladder.Name))
	assert.False(t, before(profile.Plugins.PostFilter, names.DefaultPreemption, ladder.Name))
	assert.True(t, before(profile.Plugins.PodGroupPostFilter, ladder.Name, names.DefaultPreemption))
	assert.False(t, before(profile.Plugins.Bind, names.DefaultBinder, ladder.Name))
	assert.Equal(t, v1alpha1.SchedulerName, c.LeaderElection.ResourceName, "beside kube-scheduler, not in its place")
}

func errOrNil(err interface{ Errors() []error }) error {
	if err == nil || len(err.Errors()) == 0 {
		return nil
	}
	return err.Errors()[0]
}

func set(plugins ...string) config.PluginSet {
	s := config.PluginSet{}
	for _, p := range plugins {
		s.Enabled = append(s.Enabled, config.Plugin{Name: p})
	}
	return s
}

// good are the plugins of a profile with Ladder.
func good() *config.Plugins {
	return &config.Plugins{
		QueueSort: set(ladder.OrderName),
		PreFilter: set(ladder.Name), Filter: set(ladder.Name), Reserve: set(ladder.Name), PreBind: set(ladder.Name), PostBind: set(ladder.Name),
		PostFilter:         set(ladder.Name, names.DefaultPreemption),
		PodGroupPostFilter: set(ladder.Name, names.DefaultPreemption),
		Bind:               set(ladder.Name, names.DefaultBinder),
		Score:              config.PluginSet{Enabled: []config.Plugin{{Name: names.NodeAffinity, Weight: 12}, {Name: ladder.Name, Weight: 13}}},
	}
}

// Profiles beside those with Ladder may have no decider of devices of their own.
func TestCheckProfiles(t *testing.T) {
	stock, without, spoiled := &config.Plugins{Filter: set(names.DynamicResources)}, &config.Plugins{Filter: set(names.NodeAffinity)}, good()
	spoiled.Bind = set(names.DefaultBinder)
	for name, test := range map[string]struct {
		profiles map[string]*config.Plugins
		want     string
	}{
		"alone":           {map[string]*config.Plugins{"a": good()}, ""},
		"two":             {map[string]*config.Plugins{"a": good(), "b": good()}, ""},
		"one without":     {map[string]*config.Plugins{"a": good(), "b": without}, ""},
		"beside stock's":  {map[string]*config.Plugins{"a": good(), "b": stock}, "profile b uses DynamicResources: two deciders"},
		"nobody has it":   {map[string]*config.Plugins{"a": without}, "no profile uses the plugin Ladder"},
		"one is not good": {map[string]*config.Plugins{"a": good(), "b": spoiled}, "profile b: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkPlugins(test.profiles)
			if test.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestCheckProfile(t *testing.T) {
	require.NoError(t, checkProfile(good()))
	for name, spoil := range map[string]func(*config.Plugins){
		"queueSort":      func(p *config.Plugins) { p.QueueSort = set(names.PrioritySort) },
		"weight":         func(p *config.Plugins) { p.Score.Enabled[1].Weight = 12 },
		"postFilter":     func(p *config.Plugins) { p.PostFilter = set(names.DefaultPreemption, ladder.Name) },
		"of groups":      func(p *config.Plugins) { p.PodGroupPostFilter = set(names.DefaultPreemption, ladder.Name) },
		"bind":           func(p *config.Plugins) { p.Bind = set(names.DefaultBinder) },
		"missing points": func(p *config.Plugins) { p.Reserve = set() },
	} {
		t.Run(name, func(t *testing.T) {
			plugins := good()
			spoil(plugins)
			assert.Error(t, checkProfile(plugins))
		})
	}
}

// A profile that says nothing about the order of Pods gets Ladder's; one that
// does keeps what it says, and is refused if that is another.
func TestServeInOrder(t *testing.T) {
	c, err := defaultConfig()
	require.NoError(t, err)
	require.True(t, enabled(c.Profiles[0].Plugins.MultiPoint, names.PrioritySort))
	own, explicit := c.Profiles[0].DeepCopy(), c.Profiles[0].DeepCopy()
	own.SchedulerName = "other"
	explicit.Plugins.QueueSort = set(ladder.OrderName)
	profiles := []config.KubeSchedulerProfile{c.Profiles[0], *own, *explicit, {SchedulerName: "none"}}
	before := len(profiles[0].Plugins.MultiPoint.Enabled)
	for range 2 {
		serveInOrder(profiles)
		for _, p := range profiles[:2] {
			assert.True(t, enabled(p.Plugins.MultiPoint, ladder.OrderName), p.SchedulerName)
			assert.False(t, enabled(p.Plugins.MultiPoint, names.PrioritySort), p.SchedulerName)
			assert.Len(t, p.Plugins.MultiPoint.Enabled, before)
		}
	}
	assert.False(t, enabled(profiles[2].Plugins.MultiPoint, ladder.OrderName), "it would be there twice")
}

// Every profile with Ladder gets the plugin that parks Pods, once.
func TestParkIsAdded(t *testing.T) {
	c, err := defaultConfig()
	require.NoError(t, err)
	with, without := c.Profiles[0], c.Profiles[0].DeepCopy()
	without.Plugins.MultiPoint = set(names.PrioritySort)
	profiles := []config.KubeSchedulerProfile{with, *without, {SchedulerName: "none"}}
	before := len(with.Plugins.MultiPoint.Enabled)
	for range 2 {
		park(profiles)
		assert.True(t, enabled(profiles[0].Plugins.MultiPoint, ladder.ParkName))
		assert.Len(t, profiles[0].Plugins.MultiPoint.Enabled, before+1)
		assert.False(t, enabled(profiles[1].Plugins.MultiPoint, ladder.ParkName))
	}
}

func TestCommandNamesItsFlags(t *testing.T) {
	command := NewCommand()
	for _, flag := range []string{"journal", "journal-keep", "kubeconfig", "config", "secure-port", "bind-address", "leader-elect", "v", "feature-gates"} {
		assert.NotNil(t, command.Flags().Lookup(flag), flag)
	}
}

// --version tells of this program, and starts nothing.
func TestVersion(t *testing.T) {
	command := NewCommand()
	var out strings.Builder
	command.SetArgs([]string{"--version"})
	command.SetOut(&out)
	require.NoError(t, command.ExecuteContext(t.Context()))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 5, out.String()) // the last is empty
	assert.True(t, strings.HasPrefix(lines[0], "ladder-scheduler "), lines[0])
	assert.Equal(t, "decision engine "+decide.EngineVersion, lines[1])
	assert.Regexp(t, `^kube-scheduler (v1\.|\(unknown\))`, lines[2]) // a test knows no modules
}

func TestJournalRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e, err := newEngine(path, DefaultJournalKeep, now, klog.Background())
	require.NoError(t, err)
	j := e.(*journaled)
	j.limit = 1000
	for i := range 20 {
		require.NoError(t, e.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))}}))
	}
	digest := e.Digest()
	j.Maintain(now.Add(time.Second))
	assert.Equal(t, digest, e.Digest())
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		assert.Contains(t, string(text), `"kind":"Node"`, "each file can be replayed by itself: %s", f)
	}

	// The next process keeps what the last one wrote.
	_, err = newEngine(path, DefaultJournalKeep, now.Add(time.Hour), klog.Background())
	require.NoError(t, err)
	files, err = filepath.Glob(path + "*")
	require.NoError(t, err)
	assert.Len(t, files, 3)
}

// Only the newest files are kept, and nothing is removed but earlier journals.
func TestJournalKeepsTheNewest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	others := []string{path + ".notes", path + ".20260101T000000", path + ".next"}
	for _, other := range others {
		require.NoError(t, os.WriteFile(other, nil, 0o600))
	}
	for keep, want := range map[int]int{-1: 8, 3: 3, 0: 0} {
		for i := range 8 { // each process keeps what the one before wrote
			_, err := newEngine(path, -1, now.Add(time.Duration(i)*time.Minute), klog.Background())
			require.NoError(t, err)
		}
		_, err := newEngine(path, keep, now.Add(time.Hour), klog.Background())
		require.NoError(t, err)
		kept, err := filepath.Glob(path + ".2026*.000")
		require.NoError(t, err)
		require.Len(t, kept, want, "keep %d", keep)
		if keep > 0 {
			assert.Equal(t, path+".20260102T040405.000", kept[len(kept)-1], "the newest stay")
		}
		for _, other := range others {
			assert.FileExists(t, other)
		}
		for _, file := range append(kept, path) {
			require.NoError(t, os.Remove(file))
		}
	}
}

// A rotation that fails leaves the present file in its place, and is tried
// again only after a while.
func TestJournalStaysWhereRotationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e, err := newEngine(path, DefaultJournalKeep, now, klog.Background())
	require.NoError(t, err)
	j := e.(*journaled)
	j.limit = 1
	require.NoError(t, e.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "before"}}))
	require.NoError(t, os.Mkdir(path+".next", 0o755))
	j.Maintain(now)
	require.NoError(t, os.Remove(path+".next"))

	require.NoError(t, e.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "after"}}))
	j.Maintain(now.Add(time.Second))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(text), "before")
	assert.Contains(t, string(text), "after")
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	assert.Equal(t, []string{path}, files)

	j.Maintain(now.Add(2 * retryRotation))
	files, err = filepath.Glob(path + "*")
	require.NoError(t, err)
	assert.Len(t, files, 2)
}

func TestJournalInAFolderThatIsNotThere(t *testing.T) {
	_, err := newEngine(filepath.Join(t.TempDir(), "no", "journal"), DefaultJournalKeep, time.Unix(0, 0), klog.Background())
	assert.ErrorContains(t, err, "beginning the journal")
}

func TestNarrowIsTheDefault(t *testing.T) {
	for name, test := range map[string]struct {
		gates              string
		extenders, unknown bool
		want               bool
	}{
		"nothing said":    {want: true},
		"turned off":      {gates: "SchedulerPreQueueingHints=false"},
		"turned on":       {gates: "SchedulerPreQueueingHints=true", extenders: true, want: true},
		"no alpha at all": {gates: "AllAlpha=false"},
		"every alpha":     {gates: "AllAlpha=true", want: true},
		"extenders":       {extenders: true},
		"earlier version": {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			gates := featuregate.NewFeatureGate()
			if !test.unknown {
				require.NoError(t, gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{Narrowing: {PreRelease: featuregate.Alpha}}))
			}
			require.NoError(t, gates.Set(test.gates))
			require.NoError(t, narrow(gates, test.extenders))
			require.NoError(t, narrow(gates, test.extenders), "a second time")
			assert.Equal(t, test.want, !test.unknown && gates.Enabled(Narrowing))
		})
	}
}
