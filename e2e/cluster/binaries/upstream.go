package binaries

import "time"

// What Kubernetes' own e2e suite needs.
const (
	// E2ETest is the suite as one test binary.
	E2ETest = "e2e.test"
	// Ginkgo runs a suite in several processes and merges what they report.
	Ginkgo = "ginkgo"
	// SampleDevicePlugin is the device plugin that the suite deploys.
	SampleDevicePlugin = "sample-device-plugin"
	// SocketProxy stands in for the proxy that the suite's DRA driver uses.
	SocketProxy = "socket-proxy"
)

// GinkgoVersion is the one that the suite is written for.
const GinkgoVersion = "v2.32.0"

const e2eModule = "kubernetes-e2e"

// upstream are the programs of that suite.
var upstream = []program{
	{
		name: E2ETest, version: KubernetesVersion, module: e2eModule, pkg: "k8s.io/kubernetes/test/e2e", test: true,
		ldflags: kubernetesLDFlags, expect: 9 * time.Minute, probe: []string{"--version"},
	},
	{
		name: SampleDevicePlugin, version: KubernetesVersion, module: e2eModule, pkg: "k8s.io/kubernetes/test/images/sample-device-plugin",
		ldflags: "-s -w", expect: time.Minute, probe: []string{"--help"},
	},
	{
		name: Ginkgo, version: GinkgoVersion, module: e2eModule, pkg: "github.com/onsi/ginkgo/v2/ginkgo",
		ldflags: "-s -w", expect: 20 * time.Second, probe: []string{"version"},
	},
	{name: SocketProxy, pkg: "e2e/upstream/socketproxy/cmd"},
}
