//go:build mage

// Targets of the repository: run `go tool mage -l` for the list. What they do
// is in tools/targets.
package main

import (
	//mage:import
	_ "gpuladder.dev/ladder/tools/targets"
)
