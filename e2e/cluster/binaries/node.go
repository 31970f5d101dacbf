package binaries

// The programs of a node, from which package nodeimage makes an image. A lab
// without real nodes needs none of them.

import "time"

// Names of the programs of a node.
const (
	Kubelet    = "kubelet"
	Kubeadm    = "kubeadm"
	KubeProxy  = "kube-proxy"
	Containerd = "containerd"
	Shim       = "containerd-shim-runc-v2"
	Ctr        = "ctr"
	Runc       = "runc"
	Crictl     = "crictl"
	HostLocal  = "host-local"
	Loopback   = "loopback"
	PTP        = "ptp"
	Portmap    = "portmap"
	CoreDNS    = "coredns"
	Pause      = "pause"
)

// Versions of the programs of a node that do not come with Kubernetes.
const (
	ContainerdVersion = "v2.4.2"
	RuncVersion       = "v1.5.3"
	CrictlVersion     = "v1.37.0"
	CNIVersion        = "v1.10.0"
	CoreDNSVersion    = "v1.14.6"
	// KindVersion is that of the module whose files make a root file system a
	// node.
	KindVersion = "v0.33.0"
)

// nodeModule is the module that pins what a node consists of besides
// Kubernetes.
const nodeModule = "node"

func containerd(name string, expect time.Duration) program {
	return program{
		name: name, version: ContainerdVersion, module: nodeModule,
		pkg: "github.com/containerd/containerd/v2/cmd/" + name, ldflags: "-s -w", expect: expect, probe: []string{"--version"},
	}
}

func cni(kind, name string) program {
	return program{
		name: name, version: CNIVersion, module: nodeModule,
		pkg: "github.com/containernetworking/plugins/plugins/" + kind + "/" + name, ldflags: "-s -w", expect: 5 * time.Second,
	}
}

// node are the programs of a node.
var node = []program{
	kubernetes(Kubelet, 90*time.Second, "--version"),
	kubernetes(Kubeadm, 30*time.Second, "version"),
	kubernetes(KubeProxy, 30*time.Second, "--version"),
	containerd(Containerd, 80*time.Second),
	containerd(Shim, 10*time.Second),
	containerd(Ctr, 15*time.Second),
	{
		// Static, so that it runs on whatever root file system it is put.
		name: Runc, version: RuncVersion, module: nodeModule, pkg: "github.com/opencontainers/runc",
		ldflags: "-s -w -extldflags=-static", tags: "seccomp,netgo,osusergo", cgo: true,
		packages: []string{"gcc", "libc6-dev", "libseccomp-dev", "pkg-config"},
		expect:   20 * time.Second, probe: []string{"--version"},
	},
	{
		name: Crictl, version: CrictlVersion, module: nodeModule, pkg: "sigs.k8s.io/cri-tools/cmd/crictl",
		ldflags: "-s -w", expect: 30 * time.Second, probe: []string{"--version"},
	},
	cni("ipam", HostLocal),
	cni("main", Loopback),
	cni("main", PTP),
	cni("meta", Portmap),
	{
		// With the plugins that a node needs alone: all of them take longer to
		// compile than the kubelet.
		name: CoreDNS, version: CoreDNSVersion, module: "coredns", pkg: ".",
		ldflags: "-s -w", expect: 20 * time.Second, probe: []string{"--version"},
	},
	{name: Pause, pkg: "e2e/cluster/nodeimage/pause"},
}

// Node returns the programs that a node of a cluster is made of, those that
// run in its static pods and add-ons included.
func Node() []string {
	names := []string{Etcd, APIServer, ControllerManager, Scheduler, Kubectl}
	for _, p := range node {
		names = append(names, p.name)
	}
	return names
}
