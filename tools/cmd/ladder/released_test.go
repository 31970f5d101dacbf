package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// claimServer answers for ResourceClaims: with claims of the Pod until it was
// asked so often, then without.
func claimServer(t *testing.T, until int32) string {
	t.Helper()
	claim := func(name, owner string, allocated bool) map[string]any {
		c := map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": map[string]any{
			"name": name, "namespace": "team-a",
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": "1"}},
		}}
		if allocated {
			c["status"] = map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": []any{
				map[string]any{"request": "accelerator", "driver": "gpu.gpuladder.dev", "pool": "n-1", "device": "gpu-0"},
			}}}}
		}
		return c
	}
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		items := []any{claim("of-another", "train-1", true), claim("waits", "train-0", false)}
		if asked.Add(1) <= until {
			items = append(items, claim("train-0-accelerator", "train-0", true))
		}
		err := json.NewEncoder(w).Encode(map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "metadata": map[string]any{}, "items": items})
		if err != nil {
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

func TestReleased(t *testing.T) {
	r := ladder(t, "released", "train-0", "--kubeconfig", claimServer(t, 2)).want(t, 0)
	if r.stdout != "Pod team-a/train-0 holds no devices\n" {
		t.Errorf("got %q", r.stdout)
	}
	r = ladder(t, "released", "train-0", "-n", "team-a", "--timeout", "600ms", "--kubeconfig", claimServer(t, 1000)).want(t, 1)
	if !strings.Contains(r.stderr, "still held by claim train-0-accelerator (gpu-0 of n-1)") || strings.Contains(r.stderr, "of-another") {
		t.Errorf("got %q", r.stderr)
	}
	ladder(t, "released", "--kubeconfig", claimServer(t, 0)).want(t, 2)
}
