package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func regression(name string) string { return filepath.Join("testdata", "regressions", name+".yaml") }

// Two Pods that name one claim get the same device, and a replay agrees.
func TestRegressionSharedClaim(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "run.jsonl")
	r := ladder(t, "decide", "-f", regression("shared-claim"), "--bundle", bundle).want(t, 0)
	if n := strings.Count(r.stdout, "on n1: gpu-1 (A100)"); n != 2 {
		t.Errorf("%d Pods got gpu-1, want both:\n%s", n, r.stdout)
	}
	ladder(t, "replay", bundle).want(t, 0)
}

// A Pod that is younger than the evaluation time has waited for no time, which
// is enough for a tier without `after`.
func TestRegressionClockSkew(t *testing.T) {
	r := ladder(t, "decide", "-f", regression("clock-skew"), "--now", "2026-11-01T00:00:00Z", "-o", "json").want(t, 0)
	if got := pods(t, r); got != "p:h100" {
		t.Errorf("decided %q, want p:h100", got)
	}
}

// Requests whose sum is more than 64 bits hold do not make a full node free.
func TestRegressionHugeRequests(t *testing.T) {
	r := ladder(t, "decide", "-f", regression("huge-cpu")).want(t, 3)
	if !strings.Contains(r.stdout, "NodeUnsuitable") {
		t.Errorf("want NodeUnsuitable:\n%s", r.stdout)
	}
}

// A Pod written by hand has no creationTimestamp: it begins to wait now, not
// at the beginning of time.
func TestRegressionNeverCreated(t *testing.T) {
	content, err := os.ReadFile(regression("clock-skew"))
	if err != nil {
		t.Fatal(err)
	}
	in := string(content)
	for old, replacement := range map[string]string{
		`"creationTimestamp": "2026-11-01T00:00:01Z", `: "",
		`{"name": "h100", "models": ["H100"]}`:          `{"name": "h100", "models": ["H100"], "after": "10m"}`,
		`{"name": "a100", "models": ["A100"]}`:          `{"name": "a100", "models": ["A100"]}`,
	} {
		if !strings.Contains(in, old) {
			t.Fatalf("the manifest lacks %s", old)
		}
		in = strings.ReplaceAll(in, old, replacement)
	}
	r := ladder(t, "decide", "-f", write(t, t.TempDir(), "in.yaml", in), "--now", "2026-11-01T00:00:00Z", "-o", "json").want(t, 0)
	if got := pods(t, r); got != "p:a100" {
		t.Errorf("decided %q, want p:a100", got)
	}
}
