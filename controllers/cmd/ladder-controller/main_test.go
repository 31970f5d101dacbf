package main

import (
	"flag"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	var opts options
	fs := flag.NewFlagSet("ladder-controller", flag.ContinueOnError)
	opts.addFlags(fs)
	if !opts.leaderElect || opts.leaderElectionNamespace != "ladder-system" {
		t.Errorf("got defaults %+v, want leader election in ladder-system", opts)
	}
	err := fs.Parse([]string{
		"--leader-elect=false", "--leader-election-namespace=other", "--metrics-bind-address=127.0.0.1:1", "--health-probe-bind-address=0",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := options{leaderElectionNamespace: "other", metricsBindAddress: "127.0.0.1:1", healthProbeBindAddress: "0"}
	if opts != want {
		t.Errorf("got %+v, want %+v", opts, want)
	}
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent/kubeconfig")
	t.Setenv("HOME", t.TempDir())
	err := run(t.Context(), options{})
	if err == nil || !strings.Contains(err.Error(), "finding the cluster") {
		t.Errorf("got error %v, want that there is no cluster", err)
	}
}
