package kind

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ParseWorker reads a worker from a flag: NAME or NAME=LABEL=VALUE,LABEL=VALUE.
func ParseWorker(text string) (Node, error) {
	name, labels, _ := strings.Cut(text, "=")
	node := Node{Name: name, Role: Worker}
	if !namePattern.MatchString(name) {
		return Node{}, fmt.Errorf("reading worker %q, its name %q is not made of lower-case letters, digits and hyphens", text, name)
	}
	for pair := range strings.SplitSeq(labels, ",") {
		if pair == "" {
			continue
		}
		label, value, found := strings.Cut(pair, "=")
		if !found {
			return Node{}, fmt.Errorf("reading worker %q, %q is not LABEL=VALUE", text, pair)
		}
		if problems := append(validation.IsQualifiedName(label), validation.IsValidLabelValue(value)...); len(problems) > 0 {
			return Node{}, fmt.Errorf("reading worker %q, label %s: %s", text, pair, strings.Join(problems, "; "))
		}
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		if _, twice := node.Labels[label]; twice {
			return Node{}, fmt.Errorf("reading worker %q, label %s is given twice", text, label)
		}
		node.Labels[label] = value
	}
	return node, nil
}

// ParseWorkers reads workers and puts a control plane before them. Without
// any, the default nodes are returned.
func ParseWorkers(texts []string) ([]Node, error) {
	if len(texts) == 0 {
		return DefaultNodes(), nil
	}
	nodes := []Node{{Name: string(ControlPlane), Role: ControlPlane}}
	for _, text := range texts {
		node, err := ParseWorker(text)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, checkNodes(nodes)
}

// Fits says whether the cluster is what these options ask for, so that it can
// be used again; the error says what differs.
func (s State) Fits(o Options) error {
	if o.Image != "" && s.Image != o.Image {
		return fmt.Errorf("its node image is %s and not %s", s.Image, o.Image)
	}
	if len(o.Nodes) == 0 {
		o.Nodes = DefaultNodes()
	}
	same := func(have, want NodeState) bool {
		return have.Name == want.Name && have.ClusterName == want.ClusterName && have.Role == want.Role && maps.Equal(have.Labels, want.Labels)
	}
	if !slices.EqualFunc(s.Nodes, statesOf(Options{Name: s.Name, Nodes: o.Nodes}), same) {
		return fmt.Errorf("its nodes are %s", nodesText(s.Nodes))
	}
	return nil
}

func nodesText(nodes []NodeState) string {
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		word := n.Name
		if tier := n.Labels[TierLabel]; tier != "" {
			word += " (" + tier + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}
