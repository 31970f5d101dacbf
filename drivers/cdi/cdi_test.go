package cdi

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/checkpoint"
)

const (
	driver = "gpu.gpuladder.dev"
	boot   = "boot-1"
	uid    = types.UID("0b7c5e5e-8c4e-4a55-9d3b-3e8e7f0a3c11")
	second = types.UID("1b7c5e5e-8c4e-4a55-9d3b-3e8e7f0a3c12")
)

func claimOf(devices ...checkpoint.Device) *checkpoint.Claim {
	return &checkpoint.Claim{Namespace: "team-a", Name: "claim", Phase: checkpoint.PrepareStarted, Devices: devices}
}

func device(request, name, model string) checkpoint.Device {
	return checkpoint.Device{Request: request, Name: name, Model: model}
}

// editsOf gives each device a node that stands for it.
func editsOf(claim *checkpoint.Claim) Edits {
	edits := Edits{}
	for _, d := range claim.Devices {
		edits[d.Name] = specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{
			{Path: "/dev/ladder/" + d.Name, HostPath: "/dev/null", Type: "c", Major: 1, Minor: 3, Permissions: "rw"},
		}}
	}
	return edits
}

// use is what a container says in resources.claims.
type use struct {
	uid     types.UID
	request string
}

// container does what kubelet and a runtime do: kubelet picks the CDI devices
// (pkg/kubelet/cm/dra, cdiDevicesAsList), the runtime applies them.
func container(t *testing.T, folder *Folder, claims map[types.UID]*checkpoint.Claim, uses ...use) (env map[string]string, nodes []string) {
	t.Helper()
	var ids []string
	for _, u := range uses {
		for _, d := range Devices(driver, "node-1", u.uid, claims[u.uid]) {
			if u.request == "" || slices.Contains(stripped(d.Requests), u.request) {
				for _, id := range d.CDIDeviceIDs {
					if !slices.Contains(ids, id) { // as containerd does
						ids = append(ids, id)
					}
				}
			}
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(folder.path), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{}}
	if missing, err := cache.InjectDevices(spec, ids...); err != nil {
		t.Fatalf("injecting %v, missing are %v: %v; %v", ids, missing, err, cache.GetErrors())
	}
	env = map[string]string{}
	for _, variable := range spec.Process.Env {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	allowed := 0
	for _, node := range spec.Linux.Devices {
		nodes = append(nodes, node.Path)
		if node.Type != "c" || node.Major != 1 || node.Minor != 3 {
			t.Errorf("unexpected device node %+v", node)
		}
	}
	for _, rule := range spec.Linux.Resources.Devices {
		if rule.Allow && rule.Type == "c" && *rule.Major == 1 && *rule.Minor == 3 && rule.Access == "rw" {
			allowed++
		}
	}
	if allowed == 0 {
		t.Error("the devices' cgroup does not allow the nodes")
	}
	slices.Sort(nodes)
	return env, nodes
}

func stripped(requests []string) []string {
	var all []string
	for _, request := range requests {
		all = append(all, resourceclaim.BaseRequestRef(request))
	}
	return all
}

// TestWhatAContainerSees is the promise of this package.
func TestWhatAContainerSees(t *testing.T) {
	one := claimOf(device("accelerator/h100", "gpu-1", "H100"), device("accelerator/h100", "gpu-0", "H100"))
	several := claimOf(
		device("train", "gpu-3", "H100"), device("train", "gpu-2", "H100"),
		device("infer/small", "gpu-5-mig-1g10gb-19-0", "A100"), device("more", "gpu-4", "L4"),
	)
	claims := map[types.UID]*checkpoint.Claim{uid: one, second: several}
	folder := NewFolder(filepath.Join(t.TempDir(), "cdi"), driver)
	for id, claim := range claims {
		if err := folder.Write(boot, id, claim, editsOf(claim)); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		uses           []use
		visible, model string
		all            []string // devices by LADDER_DEVICE_* and by node
	}{
		"a claim of one request":      {[]use{{uid, ""}}, "gpu-0,gpu-1", "H100", []string{"gpu-0", "gpu-1"}},
		"its one request":             {[]use{{uid, "accelerator"}}, "gpu-0,gpu-1", "H100", []string{"gpu-0", "gpu-1"}},
		"first request of several":    {[]use{{second, "train"}}, "gpu-2,gpu-3", "H100", []string{"gpu-2", "gpu-3"}},
		"request with a subrequest":   {[]use{{second, "infer"}}, "gpu-5-mig-1g10gb-19-0", "A100", []string{"gpu-5-mig-1g10gb-19-0"}},
		"last request of several":     {[]use{{second, "more"}}, "gpu-4", "L4", []string{"gpu-4"}},
		"a whole claim of several":    {[]use{{second, ""}}, "gpu-2,gpu-3,gpu-4,gpu-5-mig-1g10gb-19-0", "A100,H100,L4", []string{"gpu-2", "gpu-3", "gpu-4", "gpu-5-mig-1g10gb-19-0"}},
		"two requests, the last wins": {[]use{{second, "train"}, {second, "more"}}, "gpu-4", "L4", []string{"gpu-2", "gpu-3", "gpu-4"}},
		"two claims, the last wins":   {[]use{{second, "train"}, {uid, ""}}, "gpu-0,gpu-1", "H100", []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			env, nodes := container(t, folder, claims, test.uses...)
			if got := env[VariableDevices]; got != test.visible {
				t.Errorf("%s is %q, want %q", VariableDevices, got, test.visible)
			}
			if got := env[VariableModel]; got != test.model {
				t.Errorf("%s is %q, want %q", VariableModel, got, test.model)
			}
			var want, variables []string
			for _, name := range test.all {
				want = append(want, "/dev/ladder/"+name)
				variables = append(variables, variableOf(name))
			}
			if !slices.Equal(nodes, want) {
				t.Errorf("nodes are %v, want %v", nodes, want)
			}
			var found []string
			for name, value := range env {
				if strings.HasPrefix(name, VariableDevicePrefix) {
					found = append(found, name)
					if value == "" {
						t.Errorf("%s is empty", name)
					}
				}
			}
			slices.Sort(found)
			slices.Sort(variables)
			if !slices.Equal(found, variables) {
				t.Errorf("variables are %v, want %v", found, variables)
			}
		})
	}
}

// TestKubeletShowsDeviceAndModel: kubelet calls a device by its first CDI
// device, and shows each such name once.
func TestKubeletShowsDeviceAndModel(t *testing.T) {
	claim := claimOf(device("a", "gpu-0", "H100"), device("b", "gpu-1", ""), device("c", "gpu-2", "Tesla T4/x"))
	var shown []string
	for _, d := range Devices(driver, "node-1", uid, claim) {
		if d.PoolName != "node-1" {
			t.Errorf("the pool is %s", d.PoolName)
		}
		if !slices.Contains(shown, d.CDIDeviceIDs[0]) {
			shown = append(shown, d.CDIDeviceIDs[0])
		}
	}
	prefix := driver + "/claim=" + string(uid)
	want := []string{prefix + "_H100_gpu-0", prefix + "_unknown_gpu-1", prefix + "_Tesla-T4-x_gpu-2"}
	if !slices.Equal(shown, want) {
		t.Errorf("shown are %v, want %v", shown, want)
	}
}

func TestSameDeviceTwiceAndShares(t *testing.T) {
	claim := claimOf(device("a", "gpu-0", "H100"), device("watch", "gpu-0", "H100"))
	claim.Devices[1].AdminAccess = true
	claim.Devices[0].ShareID = "share-1"
	folder := NewFolder(t.TempDir(), driver)
	if err := folder.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	env, nodes := container(t, folder, map[types.UID]*checkpoint.Claim{uid: claim}, use{uid, ""})
	if env[VariableDevices] != "gpu-0" || len(nodes) != 1 {
		t.Errorf("got %v and %v", env, nodes)
	}
	if got := Devices(driver, "n", uid, claim); got[0].ShareID == nil || *got[0].ShareID != "share-1" || got[1].ShareID != nil {
		t.Errorf("got %+v", got)
	}
}

func TestFilesSurviveOnlyWhole(t *testing.T) {
	folder := NewFolder(t.TempDir(), driver)
	claim := claimOf(device("a", "gpu-0", "H100"))
	if err := folder.Write(boot, uid, claim, Edits{}); err == nil {
		t.Error("a device without edits was accepted")
	}
	if err := folder.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	if got, want := filepath.Base(folder.Path(uid)), "gpu.gpuladder.dev-claim_"+string(uid)+".json"; got != want {
		t.Errorf("the file is %s, want %s", got, want)
	}
	before, err := os.Stat(folder.Path(uid))
	if err != nil {
		t.Fatal(err)
	}
	claim.Phase = checkpoint.PrepareCompleted
	if err := folder.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(folder.Path(uid)); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that was right was written again, %v", err)
	}
	other := claim.DeepCopy()
	other.Devices[0].Name = "gpu-1"
	if !folder.Has(boot, uid, claim) || folder.Has("boot-2", uid, claim) || folder.Has(boot, uid, other) || folder.Has(boot, second, claim) {
		t.Error("it is not told right for what there is a file")
	}
	if err := os.WriteFile(folder.Path(uid), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if folder.Has(boot, uid, claim) {
		t.Error("a torn file passes for one")
	}
	if err := folder.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	if _, err := cdi.ReadSpec(folder.Path(uid), 0); err != nil {
		t.Errorf("a torn file was left: %v", err)
	}
	for range 2 {
		if err := folder.Remove(uid); err != nil {
			t.Errorf("removing: %v", err)
		}
	}
}

func TestClaimsAreFoundByTheirFiles(t *testing.T) {
	path := t.TempDir()
	folder := NewFolder(path, driver)
	if found, err := NewFolder(filepath.Join(path, "gone"), driver).Claims(boot); err != nil || len(found) != 0 {
		t.Errorf("a folder that is not there has %v, %v", found, err)
	}
	claim := claimOf(device("a/b", "gpu-0", "H100"))
	if err := folder.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	others := []string{"other.json", driver + "_metadata_" + string(uid) + "_a.json", driver + "-claim_.json", ".gpu.example.com-claim_x.json.1.tmp"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(path, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leftover := filepath.Join(path, "."+filepath.Base(folder.Path(second))+".123.tmp")
	for _, file := range []string{leftover, folder.Path(second)} {
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := folder.Claims(boot)
	if err != nil {
		t.Fatal(err)
	}
	want := claim.DeepCopy()
	want.Phase = checkpoint.PrepareCompleted
	if other, err := folder.Claims("boot-2"); err != nil || len(other) != 2 || other[uid] != nil {
		t.Errorf("after a boot found %+v, %v", other, err)
	}
	if len(found) != 2 || !reflect.DeepEqual(found[uid], want) || found[second] != nil {
		t.Errorf("found %+v", found)
	}
	if _, err := os.Stat(leftover); !os.IsNotExist(err) {
		t.Error("what a crash left is still there")
	}
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(path, name)); err != nil {
			t.Errorf("%s of someone else is gone", name)
		}
	}
}

func TestNamesThatCDICanNotHaveAreRefused(t *testing.T) {
	claim := claimOf(device("a", "gpu-0", "H100"))
	if _, err := Spec(driver, boot, "", claim, editsOf(claim)); err == nil {
		t.Error("a claim without a UID was accepted")
	}
}

// TestHooksRunOnceForAClaim: what each device asks for in the same way is done
// once in a container, in the order in which it was asked for; what one of them
// alone asks for stays its own.
func TestHooksRunOnceForAClaim(t *testing.T) {
	hook := func(args ...string) *specs.Hook {
		return &specs.Hook{HookName: "createContainer", Path: "/usr/bin/nvidia-cdi-hook", Args: append([]string{"nvidia-cdi-hook"}, args...)}
	}
	two := claimOf(device("big", "gpu-0", "H100"), device("small", "gpu-1", "H100"))
	one := claimOf(device("accelerator", "gpu-0", "H100"))
	edits := editsOf(two)
	for name, own := range map[string]string{"gpu-0": "../card0", "gpu-1": "../card1"} {
		of := edits[name]
		of.Hooks = []*specs.Hook{hook("create-symlinks"), hook("chmod", own), hook("update-ldcache")}
		edits[name] = of
	}
	folder := NewFolder(filepath.Join(t.TempDir(), "cdi"), driver)
	claims := map[types.UID]*checkpoint.Claim{uid: two, second: one}
	for id, claim := range claims {
		if err := folder.Write(boot, id, claim, edits); err != nil {
			t.Fatal(err)
		}
	}
	if len(edits["gpu-0"].Hooks) != 3 || len(edits["gpu-1"].Hooks) != 3 {
		t.Error("the edits that were given have changed")
	}
	for name, test := range map[string]struct {
		use  use
		want string
	}{
		"the claim":           {use{uid: uid}, "create-symlinks update-ldcache chmod:../card0 chmod:../card1"},
		"one of its requests": {use{uid: uid, request: "small"}, "create-symlinks update-ldcache chmod:../card1"},
		"a claim of a device": {use{uid: second}, "create-symlinks chmod:../card0 update-ldcache"},
	} {
		var ids []string
		for _, d := range Devices(driver, "node-1", test.use.uid, claims[test.use.uid]) {
			if test.use.request == "" || slices.Contains(stripped(d.Requests), test.use.request) {
				ids = append(ids, d.CDIDeviceIDs...)
			}
		}
		slices.Sort(ids)
		cache, err := cdi.NewCache(cdi.WithSpecDirs(folder.path), cdi.WithAutoRefresh(false))
		if err != nil {
			t.Fatal(err)
		}
		spec := &oci.Spec{Process: &oci.Process{}}
		if _, err := cache.InjectDevices(spec, slices.Compact(ids)...); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range spec.Hooks.CreateContainer {
			got = append(got, strings.Join(h.Args[1:], ":"))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: a container runs %v, want %s", name, got, test.want)
		}
	}
}
