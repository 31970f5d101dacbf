package plugin

// This file answers probes and Prometheus.

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Handler serves /metrics, /healthz and /readyz.
//
// Healthy is a driver whose two sockets answer, as kubelet would ask. Ready is
// one whose hardware answers, that kubelet has registered, whose slices are
// published and whose state on disk can be used.
func (d *Driver) Handler(metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", answer(d.Healthy))
	mux.HandleFunc("GET /readyz", answer(func(context.Context) error { return d.Ready() }))
	return mux
}

func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// Ready says what the driver still waits for.
func (d *Driver) Ready() error {
	if err := d.hardware.problem(); err != nil {
		return err
	}
	switch {
	case !d.started.Load():
		return fmt.Errorf("the state on disk can't be used, see the log")
	case !d.registered.Load():
		return fmt.Errorf("kubelet has not registered the driver")
	case !d.published.Load():
		return fmt.Errorf("no slices are published")
	}
	return nil
}

// Healthy asks both sockets, the second for no claims at all.
func (d *Driver) Healthy(ctx context.Context) error {
	err := ask(d.config.registrarSocket(), func(connection *grpc.ClientConn) error {
		_, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("asking the registration socket, %w", err)
	}
	err = ask(d.config.pluginSocket(), func(connection *grpc.ClientConn) error {
		_, err := drapb.NewDRAPluginClient(connection).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("asking the plugin's socket, %w", err)
	}
	return nil
}

func ask(socket string, call func(*grpc.ClientConn) error) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	err = call(connection)
	if closing := connection.Close(); err == nil {
		err = closing
	}
	return err
}
