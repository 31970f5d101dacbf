// Command ladder-oci-runtime is an OCI runtime that asks for no capability
// that the machine lacks and leaves the rest to runc.
package main

import (
	"fmt"
	"os"

	"gpuladder.dev/ladder/e2e/cluster/docker/ociruntime"
)

func main() {
	// Main returns only where it failed: otherwise runc has taken its place.
	err := ociruntime.Main(os.Args)
	fmt.Fprintf(os.Stderr, "ladder-oci-runtime: %v\n", err)
	os.Exit(1)
}
