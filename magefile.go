//go:build mage

// Targets of the repository: run `go tool mage -l` for the list. What they do
// is in tools/targets.
package main

import (
	//mage:import
	"gpuladder.dev/ladder/tools/targets"
)

// Aliases are short names: `go tool mage e2e` runs the end-to-end suites.
var Aliases = map[string]any{"e2e": targets.E2e.All, "bench": targets.Bench.All}
