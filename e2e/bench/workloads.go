package bench

// What is scheduled: workloads that Kubernetes itself watches the speed of, and
// three with a policy of three tiers.

import (
	"fmt"
	"regexp"
)

// FullNodes is the number of nodes of every workload in full size.
const FullNodes = 500

// Scene is how the fleet looks before the Pods of a workload of ours come.
type Scene string

// The scenes.
const (
	// SceneEmpty: every device is free.
	SceneEmpty Scene = "empty"
	// SceneHalf: half of the devices of each node are taken.
	SceneHalf Scene = "half"
	// SceneFirstTierFull: every device of the first tier is taken, no other.
	SceneFirstTierFull Scene = "h100-full"
)

// Workload is something to schedule.
type Workload struct {
	// Name is <test case>/<workload>.
	Name string `json:"name"`
	// Folder of upstream's configuration, below scheduler_perf; empty for ours.
	Folder string `json:"folder,omitempty"`
	// TestCase and Case are the names in that configuration.
	TestCase string `json:"testCase,omitempty"`
	Case     string `json:"case,omitempty"`
	// Scene is set for ours.
	Scene Scene `json:"scene,omitempty"`
}

// Ours says whether this is a workload of Ladder's.
func (w Workload) Ours() bool { return w.Scene != "" }

// TiersCase is the first part of the names of the workloads of ours.
const TiersCase = "Tiers"

// Workloads returns all workloads: the ten with devices whose throughput
// upstream holds to a threshold, and ours.
func Workloads() []Workload {
	var all []Workload
	upstream := func(folder, testCase string, cases ...string) {
		for _, c := range cases {
			all = append(all, Workload{Name: testCase + "/" + c, Folder: folder, TestCase: testCase, Case: c})
		}
	}
	upstream("dra", "SchedulingWithResourceClaimTemplate",
		"5000pods_500nodes", "empty_500nodes", "half_500nodes", "full_500nodes", "selector_empty_500nodes", "match_empty_500nodes")
	upstream("dra/extendedresource", "ExtendedResource",
		"Explicit_25classes_5000pods_500nodes", "Explicit_50classes_5000pods_500nodes", "Implicit_25classes_5000pods_500nodes")
	upstream("dra/extendedresource/scoring", "ExtendedResourceScoring", "5000pods_500nodes")
	for _, scene := range []Scene{SceneEmpty, SceneHalf, SceneFirstTierFull} {
		all = append(all, Workload{Name: TiersCase + "/" + string(scene), Scene: scene})
	}
	return all
}

// Select returns the workloads whose names a regular expression matches; all
// for an empty one. To match none is an error.
func Select(expression string) ([]Workload, error) {
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, fmt.Errorf("choosing workloads, %w", err)
	}
	var chosen []Workload
	for _, w := range Workloads() {
		if re.MatchString(w.Name) {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("choosing workloads, no name matches %q", expression)
	}
	return chosen, nil
}
