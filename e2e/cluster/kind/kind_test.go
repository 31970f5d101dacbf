package kind

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/docker"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	kindexec "sigs.k8s.io/kind/pkg/exec"
	"sigs.k8s.io/kind/pkg/log"
	"sigs.k8s.io/yaml"
)

func TestParseWorkers(t *testing.T) {
	got, err := ParseWorkers([]string{"a=" + TierLabel + "=h100,gpuladder.dev/fake-gpus=2", "b"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Name: "control-plane", Role: ControlPlane},
		{Name: "a", Role: Worker, Labels: map[string]string{TierLabel: "h100", "gpuladder.dev/fake-gpus": "2"}},
		{Name: "b", Role: Worker},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := ParseWorkers(nil); err != nil || !reflect.DeepEqual(got, DefaultNodes()) {
		t.Errorf("without workers: %+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":              "name",
		"Upper":         "name",
		"a=b":           "LABEL=VALUE",
		"a=b c=d":       "b c=d",
		"a=b=c d":       "b=c d",
		"a=x=1,x=2":     "twice",
		"control-plane": "twice",
	} {
		if _, err := ParseWorkers([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseWorkers(%q) = %v, want an error with %q", text, err, want)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, nodes := range map[string][]Node{
		"no control plane":   {{Name: "a", Role: Worker}},
		"two control planes": {{Name: "a", Role: ControlPlane}, {Name: "b", Role: ControlPlane}},
		"role":               {{Name: "a", Role: "etcd"}},
		"given twice":        {{Name: "a", Role: ControlPlane}, {Name: "a", Role: Worker}},
		"node name":          {{Name: "a_b", Role: ControlPlane}},
	} {
		if err := checkNodes(nodes); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := checkNodes(DefaultNodes()); err != nil {
		t.Errorf("the default nodes: %v", err)
	}
	o := Options{Name: "Bad Name"}
	if err := o.complete(); err == nil || !strings.Contains(err.Error(), "Bad Name") {
		t.Errorf("a bad name: %v", err)
	}
	o = Options{}
	if err := o.complete(); err == nil || !strings.Contains(err.Error(), "no container engine") {
		t.Errorf("no engine: %v", err)
	}
}

func TestNamesInTheCluster(t *testing.T) {
	got := clusterNames("lab", DefaultNodes())
	want := map[string]string{
		"control-plane": "lab-control-plane", "h100": "lab-worker", "a100": "lab-worker2", "small": "lab-worker3",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("names = %v, want %v", got, want)
	}
}

// patched is what a cluster's patches change in a document of kubeadm's.
func patched(t *testing.T, c *v1alpha4.Cluster, kind string) map[string]any {
	t.Helper()
	merged := map[string]any{}
	for _, patch := range c.KubeadmConfigPatches {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(patch), &object); err != nil {
			t.Fatalf("%v in\n%s", err, patch)
		}
		if object["kind"] != kind {
			continue
		}
		for key, value := range object {
			merged[key] = value
		}
	}
	return merged
}

func TestConfigFollowsTheMachine(t *testing.T) {
	o := Options{Name: "lab", Nodes: DefaultNodes(), Image: "node:1"}
	plain := config(o, machine{})
	if _, set := patched(t, plain, "KubeletConfiguration")["failCgroupV1"]; set || len(plain.ContainerdConfigPatches) != 0 {
		t.Errorf("on an ordinary machine: %v, %v", plain.KubeadmConfigPatches, plain.ContainerdConfigPatches)
	}
	if value, set := patched(t, config(o, machine{cgroupV1: true}), "KubeletConfiguration")["failCgroupV1"]; !set || value != false {
		t.Errorf("with control groups v1: failCgroupV1 = %v, %v", value, set)
	}
	for _, document := range []string{"InitConfiguration", "JoinConfiguration"} {
		if timeouts, ok := patched(t, plain, document)["timeouts"].(map[string]any); !ok || timeouts["kubernetesAPICall"] != "8m0s" {
			t.Errorf("%s: timeouts = %v", document, timeouts)
		}
	}
	bounded := config(o, machine{noResource: true})
	if len(bounded.ContainerdConfigPatches) != 1 || !strings.Contains(bounded.ContainerdConfigPatches[0], "restrict_oom_score_adj = true") {
		t.Errorf("without CAP_SYS_RESOURCE: %q", bounded.ContainerdConfigPatches)
	}
}

func TestNameOfANodeImage(t *testing.T) {
	has := func(image string) bool { return image == "localhost/ladder/node:1" }
	for _, c := range []struct {
		image string
		on    docker.Kind
		want  string
	}{
		{"ladder/node:1", docker.Podman, "localhost/ladder/node:1"},
		{"kindest/node:v1", docker.Podman, "kindest/node:v1"},
		{"ladder/node:1", docker.Docker, "ladder/node:1"},
		{"ladder/node:1", docker.Private, "ladder/node:1"},
	} {
		if got := nameOf(c.image, c.on, has); got != c.want {
			t.Errorf("%s on %s is %s, want %s", c.image, c.on, got, c.want)
		}
	}
}

func TestConfigHasTheNodes(t *testing.T) {
	c := config(Options{
		Name: "lab", Nodes: DefaultNodes(), Image: "node:1",
		RuntimeConfig: map[string]string{"resource.k8s.io/v1beta2": "true"}, FeatureGates: map[string]bool{"DRAConsumableCapacity": true},
	}, machine{})
	if c.RuntimeConfig["resource.k8s.io/v1beta2"] != "true" || !c.FeatureGates["DRAConsumableCapacity"] {
		t.Errorf("runtime config %v, feature gates %v", c.RuntimeConfig, c.FeatureGates)
	}
	if !c.Networking.DisableDefaultCNI || c.Networking.PodSubnet != podSubnet || c.Networking.APIServerAddress != "127.0.0.1" {
		t.Errorf("networking = %+v", c.Networking)
	}
	var roles []string
	for _, n := range c.Nodes {
		if n.Image != "node:1" {
			t.Errorf("a node has the image %q", n.Image)
		}
		roles = append(roles, string(n.Role)+" "+n.Labels[TierLabel])
	}
	if want := []string{"control-plane ", "worker h100", "worker a100-80", "worker l4"}; !slices.Equal(roles, want) {
		t.Errorf("nodes = %q, want %q", roles, want)
	}
}

func TestConflist(t *testing.T) {
	content, err := conflist("10.244.3.0/24")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Name    string
		Plugins []struct {
			Type   string
			IPMasq bool
			IPAM   struct {
				Type   string
				Ranges [][]struct{ Subnet string }
				Routes []struct{ Dst string }
			}
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 2 {
		t.Fatalf("plugins = %+v", list.Plugins)
	}
	pair, ports := list.Plugins[0], list.Plugins[1]
	if pair.Type != "ptp" || !pair.IPMasq || pair.IPAM.Type != "host-local" || pair.IPAM.Ranges[0][0].Subnet != "10.244.3.0/24" ||
		len(pair.IPAM.Routes) != 1 {
		t.Errorf("ptp = %+v", pair)
	}
	if ports.Type != "portmap" || !ports.Capabilities["portMappings"] {
		t.Errorf("portmap = %+v", ports)
	}
}

func TestNodeFilesAsAnArchive(t *testing.T) {
	subnets := map[string]string{"lab-worker": "10.244.1.0/24", "lab-control-plane": "10.244.0.0/24"}
	files, err := nodeFiles("lab-worker", subnets)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := archive(files)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	var last string
	for r := tar.NewReader(packed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name], last = string(content), header.Name
		if script := header.Name == "usr/local/lib/ladder/routes"; script != (header.Mode == 0o755) {
			t.Errorf("%s has mode %o", header.Name, header.Mode)
		}
	}
	if want := "10.244.0.0/24 lab-control-plane\n10.244.1.0/24 lab-worker\n"; found["etc/ladder/routes"] != want {
		t.Errorf("routes = %q, want %q", found["etc/ladder/routes"], want)
	}
	if last != "etc/cni/net.d/10-ladder.conflist" {
		t.Errorf("the last file is %s: a node would be called ready too early", last)
	}
	if unit := found["etc/systemd/system/ladder-boot-id.service"]; !strings.Contains(unit, "Before=kubelet.service") || !strings.Contains(unit, BootIDFile) {
		t.Errorf("the unit for the boot id:\n%s", unit)
	}
}

func node(name, cidr string, status corev1.ConditionStatus) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDR: cidr},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}},
	}
}

func TestPodCIDRs(t *testing.T) {
	nodes := []corev1.Node{node("a", "10.244.0.0/24", "True"), node("b", "", "True"), node("other", "10.1.0.0/24", "True")}
	if got, all := podCIDRs(nodes, []string{"a", "b"}); all || len(got) != 1 {
		t.Errorf("while b has none: %v, %t", got, all)
	}
	nodes[1].Spec.PodCIDR = "10.244.1.0/24"
	if got, all := podCIDRs(nodes, []string{"a", "b"}); !all || got["b"] != "10.244.1.0/24" || got["other"] != "" {
		t.Errorf("got %v, %t", got, all)
	}
}

func TestNotReadyNamesTheNodes(t *testing.T) {
	nodes := []corev1.Node{node("a", "", "True"), node("b", "", "Unknown"), {ObjectMeta: metav1.ObjectMeta{Name: "c"}}}
	err := notReady(nodes, []string{"a", "b", "c", "d"})
	if err == nil || err.Error() != "not ready: b, c, d (not registered)" {
		t.Errorf("notReady = %v", err)
	}
	if err := notReady(nodes, []string{"a"}); err != nil {
		t.Errorf("notReady of a ready node = %v", err)
	}
}

func TestBoundingSet(t *testing.T) {
	set, err := boundingSet([]byte("Name:\tx\nCapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n"))
	if err != nil || set != 0x1fffeffffff {
		t.Errorf("set = %x, %v", set, err)
	}
	for _, status := range []string{"Name:\tx\n", "CapBnd:\tzz\n"} {
		if _, err := boundingSet([]byte(status)); err == nil {
			t.Errorf("%q is accepted", status)
		}
	}
	if _, err := thisMachine(); err != nil {
		t.Error(err)
	}
}

func TestAdviceOnLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		limit limit
		want  string
	}{
		"too low":         {limit{name: "x.max", have: 64, want: 100}, "sysctl -w x.max=512"},
		"used by others":  {limit{name: "x.max", have: 600, used: 550, want: 100}, "sysctl -w x.max=1300"},
		"just enough":     {limit{name: "x.max", have: 200, used: 100, want: 100}, ""},
		"unknown":         {limit{name: "x.max", have: 0, want: 100}, ""},
		"what others use": {limit{name: "x.max", have: 128, used: 124, want: 100}, "128, of which 124 are in use"},
		"what is lacking": {limit{name: "x.max", have: 10, want: 100}, "may need 100 more"},
	} {
		words := advice([]limit{tc.limit})
		if tc.want == "" && len(words) != 0 || tc.want != "" && (len(words) != 1 || !strings.Contains(words[0], tc.want)) {
			t.Errorf("%s: advice = %q, want %q", name, words, tc.want)
		}
	}
}

func TestInotifyInstancesAreCounted(t *testing.T) {
	proc := t.TempDir()
	for fd, target := range map[string]string{
		"1/fd/3": "anon_inode:inotify", "1/fd/4": "/dev/null", "22/fd/0": "anon_inode:inotify", "self/fd/5": "anon_inode:inotify",
	} {
		path := filepath.Join(proc, fd)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	if got := inotifyInstances(proc); got != 2 {
		t.Errorf("counted %d, want 2", got)
	}
	if got := inotifyInstances(filepath.Join(proc, "none")); got != 0 {
		t.Errorf("counted %d in nothing", got)
	}
}

func TestStateIsRemembered(t *testing.T) {
	dir := t.TempDir()
	o := Options{Name: "lab", Nodes: DefaultNodes(), Image: "node:1"}
	s := State{Name: "lab", Image: "node:1", Nodes: statesOf(o), Engine: "private", Host: "unix:///x"}
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readState(dir)
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("read %+v, %v, want %+v", got, err, s)
	}
	if got.controlPlane() != "lab-control-plane" {
		t.Errorf("control plane = %q", got.controlPlane())
	}
	c := &Cluster{state: got}
	if c.Node("a100") != "lab-worker2" || c.Node("no-such") != "" {
		t.Errorf("Node(a100) = %q", c.Node("a100"))
	}
	if _, err := readState(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(dir); err == nil || !strings.Contains(err.Error(), stateFile) {
		t.Errorf("half a file: %v", err)
	}
}

func TestFits(t *testing.T) {
	s := State{Name: "lab", Image: "node:1", Nodes: statesOf(Options{Name: "lab", Nodes: DefaultNodes()})}
	if err := s.Fits(Options{}); err != nil {
		t.Errorf("the default nodes: %v", err)
	}
	if err := s.Fits(Options{Image: "node:2"}); err == nil || !strings.Contains(err.Error(), "node:1") {
		t.Errorf("another image: %v", err)
	}
	other := DefaultNodes()
	other[1].Labels = map[string]string{TierLabel: "a10"}
	if err := s.Fits(Options{Nodes: other}); err == nil || !strings.Contains(err.Error(), "a100 (a100-80)") {
		t.Errorf("another label: %v", err)
	}
	if err := s.Fits(Options{Nodes: DefaultNodes()[:3]}); err == nil {
		t.Error("fewer nodes fit")
	}
}

func TestListAndForget(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	for _, name := range []string{"b", "a"} {
		dir, err := stateDir(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := (State{Name: name}).write(dir); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := List(); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("List = %v, %v", names, err)
	}
	a, _ := stateDir("a")
	b, _ := stateDir("b")
	if err := forget(a, false); err != nil {
		t.Fatal(err)
	}
	if err := forget(b, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", a, err)
	}
	if entries, err := os.ReadDir(b); err != nil || len(entries) != 1 || entries[0].Name() != "logs" {
		t.Errorf("%s holds %v, %v", b, entries, err)
	}
	if names, err := List(); err != nil || len(names) != 0 {
		t.Errorf("List = %v, %v", names, err)
	}
	if _, err := stateDir("../x"); err == nil {
		t.Error("a name that leaves the folder is accepted")
	}
}

func TestLoggerSpeaksPlainly(t *testing.T) {
	var b bytes.Buffer
	l := logger{&b}
	l.V(0).Infof(" • Preparing nodes 📦 📦  %s ...", "x")
	l.V(0).Infof(" ✓ Preparing nodes 📦 📦  %s", "x")
	l.V(0).Info("")
	l.V(1).Info("detail")
	l.Warnf("low %s", "memory")
	l.Error("broken")
	if want := "kind: Preparing nodes x ...\nkind warns: low memory\nkind: broken\n"; b.String() != want {
		t.Errorf("said %q, want %q", b.String(), want)
	}
	if l.V(log.Level(3)).Enabled() || !l.V(0).Enabled() {
		t.Error("the levels are wrong")
	}
}

func TestKindErrorsShowWhatTheEngineSaid(t *testing.T) {
	if kindError("creating", nil) != nil {
		t.Error("no error became one")
	}
	run := &kindexec.RunError{Command: []string{"docker", "run"}, Inner: errors.New("exit status 125"), Output: []byte("a\nport is taken\n")}
	if err := kindError("creating cluster x", run); !strings.Contains(err.Error(), "port is taken") || !errors.Is(err, run) {
		t.Errorf("error = %v", err)
	}
}
