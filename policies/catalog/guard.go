package catalog

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Guard says who may allocate what, for the policies of guard/*.yaml. They are
// for a cluster in which Ladder's scheduler runs beside another one; package
// documentation of the files says what each refuses.
type Guard struct {
	// Drivers are those whose devices only the Allocators may allocate.
	Drivers []string
	// Allocators are the user names of Ladder's schedulers.
	Allocators []string
	// Schedulers are the values of a Pod's schedulerName that mean them.
	Schedulers []string
	// Driver is the user name of the DRA driver, which may write the slices of
	// its own node.
	Driver string
}

// DefaultGuard is what the files say.
func DefaultGuard() Guard {
	return Guard{
		Drivers:    []string{v1alpha1.DriverName},
		Allocators: []string{DefaultAccounts().Scheduler},
		Schedulers: []string{v1alpha1.SchedulerName},
		Driver:     "system:serviceaccount:ladder-system:ladder-driver",
	}
}

// Objects returns the objects of guard/*.yaml, policies before their bindings.
func (g Guard) Objects() ([]*unstructured.Unstructured, error) {
	defaults := DefaultGuard()
	var pairs []string
	for _, list := range [][2][]string{
		{defaults.Drivers, g.Drivers}, {defaults.Allocators, g.Allocators}, {defaults.Schedulers, g.Schedulers},
	} {
		from, err := celList(list[0])
		if err != nil {
			return nil, err
		}
		to, err := celList(list[1])
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, from, to)
	}
	return decode("guard", strings.NewReplacer(append(pairs, defaults.Driver, g.Driver)...))
}

// celList is a list of strings as CEL, in YAML's single quotes.
func celList(list []string) (string, error) {
	raw, err := json.Marshal(append([]string{}, list...))
	if err != nil {
		return "", fmt.Errorf("writing a list as CEL, %w", err)
	}
	return "'" + strings.ReplaceAll(string(raw), "'", "''") + "'", nil
}
