// Command ladder-lab runs a Kubernetes control plane with simulated GPU nodes.
package main

import (
	"context"
	"os"

	"gpuladder.dev/ladder/e2e/cluster/lab/command"
)

func main() {
	os.Exit(command.Execute(context.Background(), command.New(), os.Stderr))
}
