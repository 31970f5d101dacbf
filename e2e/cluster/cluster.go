// Package cluster says what tests, the demo and the scenario runner need from
// a Kubernetes cluster, whatever it is made of. Package lab provides one from
// bare processes.
package cluster

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
)

// Cluster is a running cluster. Its methods may be called from several
// goroutines.
type Cluster interface {
	// Kubeconfig is the path of a kubeconfig file of an administrator.
	Kubeconfig() string
	// RESTConfig is the same for programs. The caller gets a copy of its own.
	RESTConfig() *rest.Config
	// NodeNames lists the nodes that are registered now, sorted.
	NodeNames(ctx context.Context) ([]string, error)
	// LogsDir is the folder with a log file for each component.
	LogsDir() string
	// Components names the parts that Kill and Restart know, sorted.
	Components() []string
	// Kill ends a component without warning (SIGKILL). It stays down until
	// Restart, and its end is not reported by Failed.
	Kill(ctx context.Context, component string) error
	// Restart ends a component in an orderly way where it runs, starts it
	// again at the same address and waits until it is ready.
	Restart(ctx context.Context, component string) error
	// Failed delivers at most one error: the first component that ended
	// without being asked to, as a *ComponentError.
	Failed() <-chan error
	// KeepLogs makes Down leave the logs where they are, for a test that has
	// failed.
	KeepLogs()
	// Down ends every process and removes everything that the cluster wrote,
	// except logs that are to be kept. Calling it again does nothing.
	Down(ctx context.Context) error
}

// ComponentError says that a component ended or did not become ready.
type ComponentError struct {
	// Component is its name, as in Cluster.Components.
	Component string
	// Reason says what happened: an exit status, or what readiness lacks.
	Reason error
	// Log is its log file; Tail are the last lines of it.
	Log  string
	Tail string
}

func (e *ComponentError) Error() string {
	msg := fmt.Sprintf("running %s, %v", e.Component, e.Reason)
	if e.Tail != "" {
		msg += fmt.Sprintf("\nlast lines of %s:\n%s", e.Log, e.Tail)
	}
	return msg
}

func (e *ComponentError) Unwrap() error { return e.Reason }
