package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// apiServer answers for the group gpuladder.dev what is under each path, in
// pages of one item, and gives a kubeconfig for it.
func apiServer(t *testing.T, lists map[string][]map[string]any, objects map[string]map[string]any) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		path := strings.TrimPrefix(r.URL.Path, "/apis/gpuladder.dev/v1alpha1/")
		answer := map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": path + " not found"}
		if items, ok := lists[path]; ok {
			at := 0
			if c := r.URL.Query().Get("continue"); c != "" {
				fmt.Sscan(c, &at)
			}
			meta := map[string]any{}
			if at+1 < len(items) {
				meta["continue"] = fmt.Sprint(at + 1)
			}
			answer = map[string]any{"apiVersion": "gpuladder.dev/v1alpha1", "kind": "List", "metadata": meta, "items": items[at:min(at+1, len(items))]}
		} else if object, ok := objects[path]; ok {
			answer = object
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return write(t, t.TempDir(), "kubeconfig", `apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: me, namespace: team-a}}]
clusters: [{name: lab, cluster: {server: "`+server.URL+`"}}]
users: [{name: me, user: {}}]
`)
}

func record(name, pod, at, message string) map[string]any {
	return map[string]any{
		"apiVersion": "gpuladder.dev/v1alpha1", "kind": "AllocationDecision",
		"metadata": map[string]any{"name": name, "namespace": "team-a"},
		"spec": map[string]any{
			"pod": pod, "outcome": "Pending", "message": "Pending: " + message, "decidedAt": at, "attempt": 1,
			"policy": "h100-first", "policyRevision": 3, "journal": "ladder-1.jsonl#7",
			"tiers": []any{map[string]any{"name": "h100", "outcome": "Rejected", "rejections": []any{
				map[string]any{"code": "InUse", "count": 16, "examples": []any{
					map[string]any{"node": "n-1", "pool": "n-1", "device": "gpu-0", "detail": "held by claim team-b/x"},
					map[string]any{"node": "n-1", "pool": "n-1", "device": "gpu-1", "detail": "held by claim team-b/y"},
				}},
			}}},
		},
	}
}

func TestExplainFromCluster(t *testing.T) {
	config := apiServer(t, map[string][]map[string]any{
		"namespaces/team-a/allocationdecisions": {
			record("r-2", "train", "2026-11-01T00:00:02.000000Z", "the second time"),
			record("r-3", "train", "2026-11-01T00:00:03.000000Z", "the third time"),
			record("r-1", "train", "2026-11-01T00:00:01.000000Z", "the first time"),
			record("r-9", "other", "2026-11-01T00:00:09.000000Z", "another Pod"),
		},
	}, nil)
	r := ladder(t, "explain", "train", "--kubeconfig", config).want(t, 0)
	golden(t, "explain-cluster.txt", r.stdout)
	if r := ladder(t, "explain", "train", "-n", "team-a", "--kubeconfig", config, "--all").want(t, 0); !strings.Contains(r.stderr, "use --bundle with the scheduler's journal (ladder-1.jsonl#7)") {
		t.Errorf("--all does not say where every device is named: %q", r.stderr)
	}
	if r := ladder(t, "explain", "train", "--kubeconfig", config, "--examples", "1").want(t, 0); strings.Contains(r.stdout, "gpu-1") || !strings.Contains(r.stdout, "and 15 more") {
		t.Errorf("--examples 1 names more devices than one:\n%s", r.stdout)
	}
	if r := ladder(t, "explain", "gone", "--kubeconfig", config).want(t, 1); !strings.Contains(r.stderr, "no AllocationDecision about Pod team-a/gone") || r.stdout != "" {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
	if r := ladder(t, "explain", "train", "-n", "team-b", "--kubeconfig", config).want(t, 1); !strings.Contains(r.stderr, "Ladder's CRDs are installed") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// Of a Pod at a gate there is no record; explain looks at the Pod and says so.
func TestExplainAtAGate(t *testing.T) {
	gated := func(name string, gates ...string) map[string]any {
		var list []any
		for _, g := range gates {
			list = append(list, map[string]any{"name": g})
		}
		return map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "team-a"},
			"spec": map[string]any{"schedulingGates": list},
		}
	}
	const pods = "/api/v1/namespaces/team-a/pods/"
	config := apiServer(t, map[string][]map[string]any{
		"namespaces/team-a/allocationdecisions": {record("r-1", "again", "2026-11-01T00:00:01.000000Z", "the first of its name")},
	}, map[string]map[string]any{
		pods + "turn": gated("turn", "gpuladder.dev/quota"), pods + "own": gated("own", "example.com/own"), pods + "free": gated("free"),
		pods + "both": gated("both", "example.com/own", "gpuladder.dev/quota"), pods + "again": gated("again", "gpuladder.dev/quota"),
	})
	for pod, want := range map[string]string{
		"turn": "no AllocationDecision about Pod team-a/turn: it waits at the gate gpuladder.dev/quota for its tenant's turn, and no scheduler has looked at it; ask why with `kubectl get ",
		"own":  "no AllocationDecision about Pod team-a/own: it waits until its scheduling gates are taken off: example.com/own, and no scheduler has looked at it\n",
		"both": "for its tenant's turn, and until its other scheduling gates are taken off: example.com/own, and no scheduler",
		"free": "was it scheduled by ladder-scheduler",
	} {
		if r := ladder(t, "explain", pod, "--kubeconfig", config).want(t, 1); !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("%s: stderr %q, stdout %q, want %q", pod, r.stderr, r.stdout, want)
		}
	}
	if r := ladder(t, "explain", "turn", "--kubeconfig", config).want(t, 1); !strings.Contains(r.stderr, "| ladder quota explain turn -n team-a -f -`") {
		t.Errorf("stderr %q has no command that says why", r.stderr)
	}
	// The record of an earlier Pod of that name is no answer for this one.
	r := ladder(t, "explain", "again", "--kubeconfig", config).want(t, 0)
	if !strings.Contains(r.stderr, "the record is of an earlier Pod of this name") || !strings.Contains(r.stdout, "the first of its name") {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
}

// The record of a Pod that is gone is none of the one that has its name now.
func TestExplainOfANamesake(t *testing.T) {
	of := func(record map[string]any, uid string) map[string]any {
		record["spec"].(map[string]any)["podUID"] = uid
		return record
	}
	pod := func(name string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "team-a", "uid": "now"}}
	}
	const pods = "/api/v1/namespaces/team-a/pods/"
	config := apiServer(t, map[string][]map[string]any{
		"namespaces/team-a/allocationdecisions": {
			of(record("r-1", "again", "2026-11-01T00:00:01.000000Z", "of the first"), "before"),
			of(record("r-2", "both", "2026-11-01T00:00:02.000000Z", "of the second"), "now"),
			of(record("r-3", "both", "2026-11-01T00:00:03.000000Z", "of the first, told late"), "before"),
			of(record("r-4", "gone", "2026-11-01T00:00:04.000000Z", "of one that is gone"), "before"),
		},
	}, map[string]map[string]any{pods + "again": pod("again"), pods + "both": pod("both")})
	for name, want := range map[string]struct{ said, warned string }{
		"again": {"of the first", "warning: the record is of an earlier Pod of this name, with the UID before; there is none of the one that is there now, with the UID now\n"},
		"both":  {"of the second", ""},
		"gone":  {"of one that is gone", ""},
	} {
		r := ladder(t, "explain", name, "--kubeconfig", config).want(t, 0)
		if !strings.Contains(r.stdout, want.said) || r.stderr != want.warned {
			t.Errorf("%s: stderr %q, stdout %q", name, r.stderr, r.stdout)
		}
	}
}

func TestPolicyShowFromCluster(t *testing.T) {
	spec := map[string]any{"tiers": []any{map[string]any{"name": "h100", "models": []any{"H100"}}}}
	revision := func(policy string, n int) map[string]any {
		return map[string]any{
			"apiVersion": "gpuladder.dev/v1alpha1", "kind": "PolicyRevision", "metadata": map[string]any{"name": fmt.Sprintf("%s-%d", policy, n)},
			"spec": map[string]any{"policy": policy, "revision": n, "hash": "sha256:0", "policySpec": spec, "state": "Usable"},
		}
	}
	config := apiServer(t, map[string][]map[string]any{
		"policyrevisions": {revision("p", 2), revision("other", 7), revision("p", 1)},
	}, map[string]map[string]any{
		"acceleratorpolicies/p": {
			"apiVersion": "gpuladder.dev/v1alpha1", "kind": "AcceleratorPolicy", "metadata": map[string]any{"name": "p", "uid": "u", "generation": 4},
			"spec": spec, "status": map[string]any{"activeRevision": 1, "observedGeneration": 4, "conditions": []any{map[string]any{
				"type": "Ready", "status": "True", "reason": "RevisionActive", "message": "new Pods get revision 1", "lastTransitionTime": "2026-11-01T00:00:00Z",
			}}},
		},
		"acceleratorpolicies/new": {
			"apiVersion": "gpuladder.dev/v1alpha1", "kind": "AcceleratorPolicy", "metadata": map[string]any{"name": "new", "uid": "v", "generation": 1}, "spec": spec,
		},
	})
	r := ladder(t, "policy", "show", "p", "--kubeconfig", config).want(t, 0)
	for _, want := range []string{"revision     1 active, of 1, 2\n", "ready        True, RevisionActive: new Pods get revision 1\n", "driver       gpu.gpuladder.dev\n", "h100  H100    1"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not said:\n%s", want, r.stdout)
		}
	}
	if r := ladder(t, "policy", "show", "new", "--kubeconfig", config).want(t, 0); !strings.Contains(r.stdout, "revision     none\n") {
		t.Errorf("a policy of which no revision was made yet:\n%s", r.stdout)
	}
	if r := ladder(t, "policy", "show", "q", "--kubeconfig", config).want(t, 1); !strings.Contains(r.stderr, "getting AcceleratorPolicy q") {
		t.Errorf("stderr %q", r.stderr)
	}
}

func TestNoCluster(t *testing.T) {
	r := ladder(t, "explain", "p", "--kubeconfig", "/nonexistent").want(t, 1)
	if !strings.Contains(r.stderr, "reading the kubeconfig") || !strings.Contains(r.stderr, "give files with -f") {
		t.Errorf("stderr %q", r.stderr)
	}
}
