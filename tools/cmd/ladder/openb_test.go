package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/fleet"
	"gpuladder.dev/ladder/tools/internal/decision"
)

// traces opens a file of the public traces, which are kept beside the project:
// in $LADDER_DATA, else in ../shared/data. Without them the test is skipped.
func trace(t *testing.T, name string) *os.File {
	t.Helper()
	dir := os.Getenv("LADDER_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "data")
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("the trace is not there (set LADDER_DATA): %v", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A real fleet, Alibaba's of 2023 with 1,213 nodes, and 500 Pods of its trace:
// the same bytes twice, from YAML written once.
func TestRealFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("decides 500 Pods on 1,213 nodes twice")
	}
	nodes, err := fleet.FromOpenBNodes(trace(t, "openb_node_list_gpu_node.csv"))
	if err != nil {
		t.Fatal(err)
	}
	const wanted = 500
	workload, err := fleet.OpenBPods(trace(t, "openb_pod_list_gpuspec33.csv"), wanted)
	if err != nil {
		t.Fatal(err)
	}
	if nodes.NodeCount() != 1213 || len(workload.Pods) != wanted {
		t.Fatalf("%d nodes and %d Pods, want 1213 and %d", nodes.NodeCount(), len(workload.Pods), wanted)
	}
	dir := t.TempDir()
	for name, w := range map[string]interface{ WriteManifests(*os.File) error }{
		"fleet.yaml": writer(func(f *os.File) error { return nodes.WriteManifests(f) }),
		"pods.yaml":  writer(func(f *os.File) error { return workload.WriteManifests(f) }),
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteManifests(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"decide", "-f", dir, "-o", "json"}
	start := time.Now()
	first := ladder(t, args...)
	t.Logf("%d bytes decided in %v", len(first.stdout), time.Since(start))
	if first.code != 0 && first.code != 3 {
		first.want(t, 0)
	}
	bundle := filepath.Join(t.TempDir(), "run.jsonl")
	second := ladder(t, append(args, "--bundle", bundle)...).want(t, first.code)
	if first.stdout != second.stdout {
		t.Error("the second run gives other bytes")
	}
	var list decision.List
	if err := json.Unmarshal([]byte(first.stdout), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Decisions) != wanted {
		t.Errorf("%d decisions, want %d", len(list.Decisions), wanted)
	}
	taken := map[string]string{}
	for _, d := range list.Decisions {
		for _, x := range d.Devices {
			device := x.Pool + "/" + x.Device
			if other, twice := taken[device]; twice {
				t.Errorf("device %s is given to %s and %s", device, other, d.Pod)
			}
			taken[device] = d.Pod
		}
	}
	if len(taken) < wanted/2 {
		t.Errorf("only %d devices are given", len(taken))
	}
	ladder(t, "replay", bundle).want(t, 0)
}

type writer func(*os.File) error

func (w writer) WriteManifests(f *os.File) error { return w(f) }

// The same trace simulated from end to end, on its own node list: every job
// that asks for GPUs, by models that it names. Nothing is left over.
func TestSimulateRealTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("plays 7,064 jobs on 1,213 nodes")
	}
	dir := t.TempDir()
	policy := write(t, dir, "policy.yaml", `apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: large-first}
spec:
  preempts: Borrowed
  tiers:
  - {name: large, models: [G2, G3]}
  - {name: middle, models: [V100M32, V100M16]}
  - {name: small, models: [T4, P100, A10]}
`)
	quota := write(t, dir, "quota.yaml", `apiVersion: gpuladder.dev/v1alpha1
kind: TenantQuota
metadata: {name: latency}
spec:
  namespaces: [ls, guaranteed]
  models: [{model: G2, guaranteed: 2000}, {model: G3}, {model: T4, guaranteed: 500}, {model: P100}, {model: V100M16}, {model: V100M32}, {model: A10}]
`)
	args := []string{
		"simulate", "--trace", trace(t, "openb_pod_list_gpuspec33.csv").Name(), "--fleet", trace(t, "openb_node_list_gpu_node.csv").Name(),
		"--policy", policy, "--quota", quota, "--private=false", "--setups", "ladder", "-o", "json",
	}
	r := ladder(t, args...).want(t, 0)
	var got struct {
		Trace struct {
			Format        string
			Jobs, Skipped int
		}
		Fleet  struct{ Nodes int }
		Setups []struct {
			Jobs, Unfinished int
			Tenants          []struct {
				Name string
				Jobs int
			}
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	u := got.Setups[0]
	if got.Trace.Format != "openb" || got.Trace.Jobs != 7064 || got.Trace.Skipped != 1088 || got.Fleet.Nodes != 1213 || u.Jobs != 7064 || u.Unfinished != 0 {
		t.Errorf("%+v", got)
	}
	jobs := map[string]int{}
	for _, x := range u.Tenants {
		jobs[x.Name] = x.Jobs
	}
	if jobs["latency"] != 4017 || jobs["be"] != 2948 || jobs["burstable"] != 99 || len(jobs) != 3 {
		t.Errorf("jobs by tenant %v", jobs)
	}
}
