package binaries

import (
	"embed"
	"fmt"
	"slices"
	"time"
)

// Names of the programs of a control plane, and of the project's own.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"
	Kwok              = "kwok"

	LadderScheduler    = "ladder-scheduler"
	LadderController   = "ladder-controller"
	LadderFakeDriver   = "ladder-fake-driver"
	LadderDevicePlugin = "ladder-device-plugin"
	LadderProbe        = "ladder-probe"
	LadderNVMLDriver   = "ladder-nvml-driver"
	LadderFakeNVML     = "ladder-fakenvml"
	Ladder             = "ladder"
	// LadderOCIRuntime stands between a container engine and runc; see
	// e2e/cluster/docker/ociruntime.
	LadderOCIRuntime = "ladder-oci-runtime"
)

// Versions of what is built from public modules; the files in modules/ pin the
// same ones, and a test holds the two together.
const (
	KubernetesVersion = "v1.37.2"
	EtcdVersion       = "v3.7.3"
	KwokVersion       = "v0.8.0"
)

// The go.mod and go.sum of each throw-away module, so that every download is
// checked against a sum that is kept in this tree. Several modules, because
// these projects ask for different versions of the same dependencies.
//
//go:embed modules/*.mod modules/*.sum modules/*.main
var moduleFiles embed.FS

// program says how one program is made.
type program struct {
	name    string
	version string
	// module names the files modules/<module>.mod and .sum; empty for the
	// project's own programs. Where there is a modules/<module>.main, that is the
	// main package, and pkg is ".".
	module string
	// pkg is the import path of the main package, or the path below the
	// repository's root for the project's own programs.
	pkg string
	// test says that the program is the test binary of the package.
	test    bool
	ldflags string
	tags    string
	// cgo says that the program is linked against C libraries, which packages
	// names.
	cgo      bool
	packages []string
	// expect is how long a first build takes on two cores, told to the person
	// who waits.
	expect time.Duration
	// probe are the arguments that make the program print its version.
	probe []string
}

func (p program) own() bool { return p.module == "" }

const kubernetesLDFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=" + KubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=37" +
	" -X k8s.io/client-go/pkg/version.gitVersion=" + KubernetesVersion

func kubernetes(name string, expect time.Duration, probe ...string) program {
	return program{
		name: name, version: KubernetesVersion, module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/" + name,
		ldflags: kubernetesLDFlags, expect: expect, probe: probe,
	}
}

// programs is in the order in which they are best built: what shares packages
// stands together.
var programs = slices.Concat(controlPlane, node, own, chartTools, upstream)

// controlPlane are the programs of a cluster without real nodes.
var controlPlane = []program{
	{
		name: Etcd, version: EtcdVersion, module: "etcd", pkg: "go.etcd.io/etcd/server/v3",
		ldflags: "-s -w", expect: 30 * time.Second, probe: []string{"--version"},
	},
	kubernetes(APIServer, 5*time.Minute, "--version"),
	kubernetes(ControllerManager, 2*time.Minute, "--version"),
	kubernetes(Scheduler, time.Minute, "--version"),
	kubernetes(Kubectl, time.Minute, "version", "--client"),
	{
		name: Kwok, version: KwokVersion, module: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok",
		ldflags: "-s -w", expect: time.Minute, probe: []string{"--version"},
	},
}

// own are the programs of the project.
var own = []program{
	{name: LadderScheduler, pkg: "scheduler/cmd/ladder-scheduler"},
	{name: LadderController, pkg: "controllers/cmd/ladder-controller"},
	{name: LadderFakeDriver, pkg: "drivers/cmd/ladder-fake-driver"},
	{name: LadderDevicePlugin, pkg: "drivers/cmd/ladder-device-plugin"},
	{name: LadderProbe, pkg: "drivers/cmd/ladder-probe"},
	{name: LadderNVMLDriver, pkg: "drivers/cmd/ladder-nvml-driver", cgo: true, packages: []string{"gcc", "libc6-dev"}},
	{name: LadderFakeNVML, pkg: "drivers/cmd/ladder-fakenvml"},
	{name: Ladder, pkg: "tools/cmd/ladder"},
	{name: LadderOCIRuntime, pkg: "e2e/cmd/ladder-oci-runtime"},
}

// Names returns every program that Ensure knows, in the order in which they
// are built.
func Names() []string {
	names := make([]string, 0, len(programs))
	for _, p := range programs {
		names = append(names, p.name)
	}
	return names
}

// ControlPlane returns the programs that a test against a bare API server
// (controller-runtime's envtest) needs.
func ControlPlane() []string { return []string{Etcd, APIServer, Kubectl} }

func lookup(name string) (program, error) {
	for _, p := range programs {
		if p.name == name {
			return p, nil
		}
	}
	return program{}, fmt.Errorf("no program %q is known; known are %v", name, Names())
}
