package kind

// What is remembered of a cluster, so that another process can use it.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/cluster/jsonfile"
)

// State says what a cluster is.
type State struct {
	Name    string    `json:"name"`
	Image   string    `json:"image"`
	Created time.Time `json:"created"`
	// Engine and Host say which container engine has the nodes; an empty host
	// is the one that clients find by themselves.
	Engine docker.Kind `json:"engine"`
	Host   string      `json:"host,omitempty"`
	Nodes  []NodeState `json:"nodes"`
	// Unfinished says that the creation goes on, or was broken off.
	Unfinished bool `json:"unfinished,omitempty"`
}

// NodeState is one node.
type NodeState struct {
	// Name is what the node is called in Options.
	Name string `json:"name"`
	// ClusterName is its name in the cluster, and its container's.
	ClusterName string            `json:"clusterName"`
	Role        Role              `json:"role"`
	Labels      map[string]string `json:"labels,omitempty"`
}

const stateFile = "cluster.json"

func statesOf(o Options) []NodeState {
	names := clusterNames(o.Name, o.Nodes)
	states := make([]NodeState, 0, len(o.Nodes))
	for _, n := range o.Nodes {
		states = append(states, NodeState{Name: n.Name, ClusterName: names[n.Name], Role: n.Role, Labels: n.Labels})
	}
	return states
}

// clusterNames are the nodes' names in the cluster, sorted.
func (s State) clusterNames() []string {
	names := make([]string, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		names = append(names, n.ClusterName)
	}
	slices.Sort(names)
	return names
}

// controlPlane is the name of the control plane's node in the cluster.
func (s State) controlPlane() string {
	for _, n := range s.Nodes {
		if n.Role == ControlPlane {
			return n.ClusterName
		}
	}
	return ""
}

// stateDir is the folder of a cluster's files on this machine.
func stateDir(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "kind", name), nil
}

func (s State) write(dir string) error {
	if err := jsonfile.Write(filepath.Join(dir, stateFile), s); err != nil {
		return fmt.Errorf("remembering cluster %s, %w", s.Name, err)
	}
	return nil
}

func readState(dir string) (State, error) {
	var s State
	err := jsonfile.Read(filepath.Join(dir, stateFile), &s)
	return s, err
}

// Remembered returns what is remembered of a cluster on this machine, whether
// its nodes run or not, or nil.
func Remembered(name string) (*State, error) {
	dir, err := stateDir(name)
	if err != nil {
		return nil, err
	}
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for cluster %s, %w", name, err)
	}
	return &s, nil
}

// forget removes a cluster's files, but for its logs where they are to stay.
func forget(dir string, keepLogs bool) error {
	if !keepLogs {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing the files of a cluster, %w", err)
		}
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the files of a cluster, %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == "logs" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("removing the files of a cluster, %w", err)
		}
	}
	return nil
}

// List returns the names of the clusters that are remembered on this machine,
// sorted.
func List() ([]string, error) {
	cache, err := binaries.CacheDir()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(cache, "kind", "*", stateFile))
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(files))
	for _, file := range files {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	slices.Sort(names)
	return names, nil
}
