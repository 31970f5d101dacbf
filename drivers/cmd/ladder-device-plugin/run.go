package main

// This file puts the plugin together.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/deviceplugin"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/fault"
)

// run runs all parts until ctx is done; if one fails, all end.
func (o *options) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	catalog, err := tiers.Load(o.catalog)
	if err != nil {
		return err
	}
	client, err := o.client(o.kubeconfig)
	if err != nil {
		return &exit.Error{Err: err}
	}
	var source *deviceplugin.NodeSource
	faults := deviceplugin.NewFaults(func() []string { return source.Names() }, time.Now)
	source = deviceplugin.NewNodeSource(o.node, catalog, faults)
	plugin := &deviceplugin.Plugin{Resource: o.resource, Folder: o.folder, Source: source}

	group, ctx := errgroup.WithContext(ctx)
	if o.allowFaults {
		if err := os.MkdirAll(filepath.Dir(o.faultSocket), 0o755); err != nil {
			return &exit.Error{Err: fmt.Errorf("making the folder of the fault socket, %w", err)}
		}
		listener, err := fault.Listen(o.faultSocket)
		if err != nil {
			return &exit.Error{Err: err}
		}
		group.Go(func() error { return fault.Serve(ctx, listener, faults) })
	}
	if o.health != "" {
		listener, err := net.Listen("tcp", o.health)
		if err != nil {
			return &exit.Error{Err: fmt.Errorf("serving health, %w", err)}
		}
		group.Go(func() error { return serveHealth(ctx, listener, plugin.Registered) })
	}
	group.Go(func() error { return source.Run(ctx, client) })
	group.Go(func() error { return plugin.Run(ctx) })
	if err := group.Wait(); err != nil {
		return &exit.Error{Err: err}
	}
	return nil
}

// serveHealth says ok at /healthz while the program runs, and at /readyz while
// kubelet knows the plugin.
func serveHealth(ctx context.Context, listener net.Listener, ready func() bool) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "kubelet does not know the plugin yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health, %w", err)
	}
	return nil
}
