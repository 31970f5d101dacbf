package kind

import "sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

// machine is what the configuration of a cluster depends on.
type machine struct {
	// cgroupV1 says that the host has the first version of cgroups, which
	// kubelet refuses unless it is told otherwise.
	cgroupV1 bool
	// noResource says that processes may not get CAP_SYS_RESOURCE, without
	// which containerd can't protect pods from the kernel's memory killer.
	noResource bool
}

// podSubnet is split by kubeadm into a /24 for each node.
const podSubnet = "10.244.0.0/16"

// config is the cluster in kind's terms.
func config(o Options, m machine) *v1alpha4.Cluster {
	c := &v1alpha4.Cluster{
		TypeMeta: v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4"},
		Name:     o.Name,
		Networking: v1alpha4.Networking{
			IPFamily: v1alpha4.IPv4Family,
			// The API server is for this machine alone.
			APIServerAddress: "127.0.0.1",
			PodSubnet:        podSubnet,
			// kind's own network plugin is an image that only a registry has; the
			// nodes get a configuration of the plugins that every node image has.
			DisableDefaultCNI: true,
		},
		RuntimeConfig:        o.RuntimeConfig,
		FeatureGates:         o.FeatureGates,
		KubeadmConfigPatches: kubeadmPatches(m),
	}
	if m.noResource {
		c.ContainerdConfigPatches = []string{"[plugins.\"io.containerd.grpc.v1.cri\"]\n  restrict_oom_score_adj = true\n"}
	}
	for _, n := range o.Nodes {
		c.Nodes = append(c.Nodes, v1alpha4.Node{Role: v1alpha4.NodeRole(n.Role), Image: o.Image, Labels: n.Labels})
	}
	v1alpha4.SetDefaultsCluster(c)
	return c
}

// patience is what kubeadm and the nodes get for steps that take seconds on an
// idle machine: Options.Within bounds the whole.
const patience = `timeouts:
  controlPlaneComponentHealthCheck: 8m0s
  discovery: 8m0s
  kubeletHealthCheck: 8m0s
  kubernetesAPICall: 8m0s
  tlsBootstrap: 8m0s
`

// kubeadmPatches change what kind tells kubeadm.
func kubeadmPatches(m machine) []string {
	patches := []string{
		"apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n" + patience,
		"apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n" + patience,
		// A cluster of tests need not survive the end of the machine, and disks
		// that are slow to sync make API servers that are slow to answer.
		`apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
etcd:
  local:
    extraArgs:
    - name: unsafe-no-fsync
      value: "true"
controllerManager:
  extraArgs: # there is one: on a busy machine it would only lose its lease, and end
  - name: leader-elect
    value: "false"
scheduler:
  extraArgs:
  - name: leader-elect
    value: "false"
`,
	}
	// A pod whose devices could not be prepared is tried again with the next
	// sync, a driver that was killed is started again with the next try: tests
	// wait for both.
	kubelet := `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
syncFrequency: 10s
crashLoopBackOff: {maxContainerRestartPeriod: 10s}
`
	if m.cgroupV1 {
		kubelet += "failCgroupV1: false\n"
	}
	return append(patches, kubelet)
}
