package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/controllers/records"
)

func TestFlags(t *testing.T) {
	var opts options
	fs := flag.NewFlagSet("ladder-controller", flag.ContinueOnError)
	opts.addFlags(fs)
	if opts.recordPatience != time.Minute {
		t.Errorf("records may be late by %s, want a minute", opts.recordPatience)
	}
	if !opts.leaderElect || opts.leaderElectionNamespace != "ladder-system" || opts.lease != 15*time.Second || !opts.quota {
		t.Errorf("got defaults %+v, want leader election in ladder-system with a lease of 15 s, and quotas", opts)
	}
	err := fs.Parse([]string{
		"--leader-elect=false", "--leader-election-lease=40s", "--leader-election-namespace=other", "--metrics-bind-address=127.0.0.1:1", "--health-probe-bind-address=0", "--version",
		"--record-max-age=2h", "--records-per-namespace=7", "--record-patience=3s", "--quota=false", "--quota-config=/etc/quota.yaml",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := options{
		leaderElectionNamespace: "other", lease: 40 * time.Second, metricsBindAddress: "127.0.0.1:1", healthProbeBindAddress: "0", version: true,
		retention:      records.Retention{MaxAge: 2 * time.Hour, MaxPerNamespace: 7},
		recordPatience: 3 * time.Second, quotaConfig: "/etc/quota.yaml",
	}
	if opts != want {
		t.Errorf("got %+v, want %+v", opts, want)
	}
}

func TestRunRefusesARetentionBelowNothing(t *testing.T) {
	for _, retention := range []records.Retention{{MaxAge: -time.Second}, {MaxPerNamespace: -1}} {
		err := run(t.Context(), options{lease: shortestLease, retention: retention})
		if err == nil || !strings.Contains(err.Error(), "must not be below 0") {
			t.Errorf("got error %v for %+v", err, retention)
		}
	}
}

func TestRunRefusesNoPatience(t *testing.T) {
	err := run(t.Context(), options{lease: shortestLease})
	if err == nil || !strings.Contains(err.Error(), "--record-patience is 0s, must be above 0") {
		t.Errorf("got error %v", err)
	}
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent/kubeconfig")
	t.Setenv("HOME", t.TempDir())
	err := run(t.Context(), options{lease: shortestLease, recordPatience: time.Second})
	if err == nil || !strings.Contains(err.Error(), "finding the cluster") {
		t.Errorf("got error %v, want that there is no cluster", err)
	}
}

func TestRunRefusesALeaseThatCannotBeRenewed(t *testing.T) {
	err := run(t.Context(), options{lease: time.Second})
	if err == nil || !strings.Contains(err.Error(), "--leader-election-lease is 1s, must be at least 9s") {
		t.Errorf("got error %v, want that the lease is too short", err)
	}
}

func TestRunRefusesSettingsThatItDoesNotKnow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quota.yaml")
	if err := os.WriteFile(file, []byte("costs: {H100: 0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "cost 0 of model H100", file + ".none": "no such file"} {
		err := run(t.Context(), options{lease: shortestLease, quota: true, quotaConfig: path})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
