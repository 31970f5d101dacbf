// Command ladder decides, explains and replays GPU choices by policy. Under
// the name kubectl-ladder it is a plugin of kubectl.
package main

import (
	"context"
	"os"
	"os/signal"

	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/root"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := root.Main(ctx, os.Args, command.OSStreams())
	stop()
	os.Exit(code)
}
