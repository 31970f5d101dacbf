// Command socket-proxy is package socketproxy as a program, with the flags that
// Kubernetes' DRA suite gives.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"gpuladder.dev/ladder/e2e/upstream/socketproxy"
)

func main() {
	socket := flag.String("endpoint", "", "unix socket that clients connect to")
	target := flag.String("proxy-endpoint", "", "TCP address that servers connect to, as tcp://[host]:port")
	_ = flag.Int("v", 0, "accepted; every connection is always told")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, strings.TrimPrefix(*socket, "unix://"), *target); err != nil {
		fmt.Fprintf(os.Stderr, "socket-proxy: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket, target string) error {
	address, ok := strings.CutPrefix(target, "tcp://")
	if socket == "" || !ok {
		return fmt.Errorf("--endpoint and --proxy-endpoint=tcp://… are needed, got %q and %q", socket, target)
	}
	p, err := socketproxy.Listen(socket, address, func(format string, args ...any) {
		// Whoever started the proxy may be gone. Then this write ends it.
		fmt.Printf(format+"\n", args...)
	})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}
