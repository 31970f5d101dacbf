package kind

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/e2e/cluster/docker"
)

// Role of a node.
type Role string

// The roles.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
)

// TierLabel names the tier of fake GPUs that a node gets.
const TierLabel = tiers.LabelTier

// Node is one node that is wanted.
type Node struct {
	// Name is how tests call the node ("h100"); Cluster.Node tells what it is
	// called in the cluster.
	Name   string
	Role   Role
	Labels map[string]string
}

// DefaultName is the name of the cluster of the end-to-end tests.
const DefaultName = "ladder-e2e"

// DefaultNodes are a control plane and a worker of each of three tiers.
func DefaultNodes() []Node {
	return []Node{
		{Name: "control-plane", Role: ControlPlane},
		{Name: "h100", Role: Worker, Labels: map[string]string{TierLabel: "h100"}},
		{Name: "a100", Role: Worker, Labels: map[string]string{TierLabel: "a100-80"}},
		{Name: "small", Role: Worker, Labels: map[string]string{TierLabel: "l4"}},
	}
}

// Options say what kind of cluster is wanted.
type Options struct {
	// Name tells clusters of one engine apart. Default: DefaultName.
	Name string
	// Nodes are the nodes. Default: DefaultNodes.
	Nodes []Node
	// Image is the node image; package nodeimage provides one.
	Image string
	// Engine runs the node containers.
	Engine *docker.Engine
	// RuntimeConfig turns API versions on or off that are not as they should
	// be by default, as kube-apiserver's flag does.
	RuntimeConfig map[string]string
	// FeatureGates turns features of all components on and off.
	FeatureGates map[string]bool
	// Within bounds the creation. Default: 10 minutes.
	Within time.Duration
	// Keep leaves the nodes of a creation that failed, for a look at them.
	Keep bool
	// Progress is told what happens, line by line.
	Progress io.Writer
}

// namePattern keeps node names, which kind makes of the cluster's, valid as
// host names.
var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// CheckName says what is wrong with the name of a cluster.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("cluster name %q: up to 40 lower-case letters, digits and hyphens are wanted", name)
	}
	return nil
}

func (o *Options) complete() error {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if err := CheckName(o.Name); err != nil {
		return err
	}
	if len(o.Nodes) == 0 {
		o.Nodes = DefaultNodes()
	}
	if o.Within == 0 {
		o.Within = 10 * time.Minute
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	switch {
	case o.Engine == nil:
		return fmt.Errorf("creating cluster %s, no container engine is given", o.Name)
	case o.Image == "":
		return fmt.Errorf("creating cluster %s, no node image is given", o.Name)
	}
	return checkNodes(o.Nodes)
}

// checkNodes wants one control plane and names that tell nodes apart.
func checkNodes(nodes []Node) error {
	seen := map[string]bool{}
	controlPlanes := 0
	for _, n := range nodes {
		if !namePattern.MatchString(n.Name) {
			return fmt.Errorf("node name %q: up to 40 lower-case letters, digits and hyphens are wanted", n.Name)
		}
		if seen[n.Name] {
			return fmt.Errorf("node name %q is given twice", n.Name)
		}
		seen[n.Name] = true
		switch n.Role {
		case ControlPlane:
			controlPlanes++
		case Worker:
		default:
			return fmt.Errorf("node %s: role %q is not known; %s and %s are", n.Name, n.Role, ControlPlane, Worker)
		}
	}
	if controlPlanes != 1 {
		return fmt.Errorf("one control plane is wanted, %d are given", controlPlanes)
	}
	return nil
}

// CheckTiers returns advice about nodes whose labels ask for GPUs that the
// driver's own catalog does not have.
func CheckTiers(nodes []Node) []string {
	known := tiers.Default()
	var words []string
	for _, n := range nodes {
		if _, err := known.Choose(n.Labels); err != nil && !errors.Is(err, tiers.ErrNoTier) {
			words = append(words, fmt.Sprintf("node %s gets no GPUs, unless the driver is given a catalog that knows better: %v", n.Name, err))
		}
	}
	return words
}

// clusterNames returns what each node is called in the cluster: kind counts
// the nodes of a role and gives the first no number.
func clusterNames(cluster string, nodes []Node) map[string]string {
	count := map[Role]int{}
	names := make(map[string]string, len(nodes))
	for _, n := range nodes {
		count[n.Role]++
		names[n.Name] = fmt.Sprintf("%s-%s", cluster, n.Role)
		if i := count[n.Role]; i > 1 {
			names[n.Name] += fmt.Sprint(i)
		}
	}
	return names
}
