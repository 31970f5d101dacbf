// Command ladder-probe is a workload for tests: it says which GPUs its container
// was given, and fails if something about them does not add up. It needs the
// standard library only, so that its image holds one small file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"gpuladder.dev/ladder/policies/buildinfo"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the container was not given what it should have been
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], container{root: "/", env: os.Environ()}, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program: what the container is in, exit code out.
func run(ctx context.Context, args []string, c container, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ladder-probe", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "ladder-probe prints one line of JSON about the GPUs that its container was given.\n\nFlags:\n")
		flags.PrintDefaults()
		fmt.Fprint(stderr, "\nExit codes: 0 all is well, 1 it is not (\"problems\" says why), 2 bad flags.\n")
	}
	hold := flags.Bool("hold", false, "then wait for SIGTERM, if all is well")
	legacy := flags.Bool("legacy", false, "expect what the device plugin gives, not what the DRA driver does")
	nvidia := flags.Bool("nvidia", false, "expect NVIDIA's device nodes")
	version := flags.Bool("version", false, "print the version of the program, and nothing else")
	expect := flags.Int("expect", -1, "fail unless there are exactly this many devices")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "ladder-probe: there is nothing to do with %q\n", flags.Args())
		return exitUsage
	}
	if *version {
		fmt.Fprint(stdout, buildinfo.Read().Text("ladder-probe"))
		return exitOK
	}
	from := fakeDriver
	switch {
	case *legacy && *nvidia:
		fmt.Fprintln(stderr, "ladder-probe: --legacy and --nvidia exclude each other")
		return exitUsage
	case *legacy:
		from = devicePlugin
	case *nvidia:
		from = nvmlDriver
	}
	report := c.look(from, *expect)
	line, err := json.Marshal(report)
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%s\n", line)
	}
	if err != nil {
		fmt.Fprintf(stderr, "ladder-probe: printing the report, %v\n", err)
		return exitFailed
	}
	if !report.OK {
		return exitFailed
	}
	if *hold {
		<-ctx.Done()
	}
	return exitOK
}
