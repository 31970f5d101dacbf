package main

import (
	"testing"
	"time"

	"gpuladder.dev/ladder/e2e/bench"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		nodes   int
		repeats int
		steady  time.Duration
	}{
		"full":            {nil, bench.FullNodes, 5, 0},
		"short":           {[]string{"-short"}, shortNodes, 1, shortSteady},
		"short, but":      {[]string{"-nodes=60", "-short", "-repeats=2"}, 60, 2, shortSteady},
		"longer measured": {[]string{"-steady=1m"}, bench.FullNodes, 5, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(c.args)
			if err != nil || o.nodes != c.nodes || o.repeats != c.repeats || o.steady != c.steady {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	for _, args := range [][]string{{"-nodes=1"}, {"-repeats=0"}, {"more"}, {"-nonsense"}} {
		if o, err := parse(args); err == nil {
			t.Errorf("parse(%v) = %+v", args, o)
		}
	}
}

func TestNothingRunsForAWrongName(t *testing.T) {
	for _, args := range [][]string{{"-workloads=nothing"}, {"-schedulers=volcano"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("run(%v) succeeds", args)
		}
	}
}
