package harness

import (
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/kind"
	"gpuladder.dev/ladder/e2e/images"
)

// Each driver has its images, and what no driver needs is not built.
func TestImagesOfDrivers(t *testing.T) {
	for driver, want := range map[Driver]int{FakeDriver: 3, NVMLDriver: 5} {
		names := imagesOf(driver)
		for _, name := range names {
			if _, err := images.Lookup(name); err != nil {
				t.Errorf("%s: %v", driver, err)
			}
		}
		if len(names) != want || !slices.Contains(names, driverImage) {
			t.Errorf("%s: %v, want %d with the test workload's", driver, names, want)
		}
	}
}

func TestEnvIsRememberedAndForgotten(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	o := Options{Name: "some"}
	if _, err := Env(o); err == nil || !strings.Contains(err.Error(), "e2e up") {
		t.Errorf("got %v, want an error that names the command", err)
	}
	if err := forget(o.Name); err != nil {
		t.Errorf("forgetting what was never there, %v", err)
	}
	e := &env{Variables: map[string]string{"B": "2", "A": "1"}}
	if err := e.write(o.Name); err != nil {
		t.Fatal(err)
	}
	lines, err := Env(o)
	if err != nil || !slices.Equal(lines, []string{"A=1", "B=2"}) {
		t.Errorf("got %v, %v", lines, err)
	}
	if err := forget(o.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := Env(o); err == nil {
		t.Error("a forgotten cluster was found")
	}
}

// Of a cluster without Ladder the suites are told nothing, and only of such a
// cluster the test that installs it.
func TestEnvIsForThoseWhoWantTheCluster(t *testing.T) {
	release := []string{charts.EnvKubeconfig, charts.EnvTag}
	for _, bare := range []bool{false, true} {
		h := &harness{Options: Options{Name: "some", Driver: FakeDriver, Bare: bare}, cluster: &kind.Cluster{}}
		e := h.env(&images.Set{Tag: "dev-1"})
		if e.Variables[charts.EnvTag] != "dev-1" == bare {
			t.Errorf("bare %v: the tag is %q", bare, e.Variables[charts.EnvTag])
		}
		for name := range e.Variables {
			if slices.Contains(release, name) != bare {
				t.Errorf("bare %v: %s is told", bare, name)
			}
		}
	}
}

func TestValuesBecomeFlags(t *testing.T) {
	got := sets([][2]string{{"a.b", "1"}, {"c", "x"}})
	if !slices.Equal(got, []string{"--set", "a.b=1", "--set", "c=x"}) {
		t.Errorf("got %v", got)
	}
}
