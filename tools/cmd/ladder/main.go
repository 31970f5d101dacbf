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
	os.Exit(untilInterrupted(func(ctx context.Context) int { return root.Main(ctx, os.Args, command.OSStreams()) }))
}

// untilInterrupted ends the context at the first Ctrl-C. The second one ends the
// process, whatever it is at.
func untilInterrupted(do func(context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop)
	return do(ctx)
}
