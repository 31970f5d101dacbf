package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// quotaCluster has two H100, both of them held by team-b, of which one is
// guaranteed to team-a, and Pods of both tenants at their gate.
const quotaCluster = `apiVersion: v1
kind: Node
metadata: {name: node}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node}
spec:
  driver: gpu.gpuladder.dev
  nodeName: node
  pool: {name: node, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: H100}}}
  - {name: gpu-1, attributes: {model: {string: H100}}}
---
apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: h100}
spec:
  preempts: Borrowed
  tiers: [{name: h100, models: [H100]}]
---
apiVersion: gpuladder.dev/v1alpha1
kind: TenantQuota
metadata: {name: team-a}
spec: {namespaces: [a], models: [{model: H100, guaranteed: 1, limit: 1}]}
---
apiVersion: gpuladder.dev/v1alpha1
kind: TenantQuota
metadata: {name: team-b}
spec: {namespaces: [b], models: [{model: H100, limit: 2}]}
`

func quotaPod(namespace, name, created, device string) string {
	gate := ", schedulingGates: [{name: gpuladder.dev/quota}]"
	if device != "" {
		gate = ""
	}
	text := `---
apiVersion: v1
kind: Pod
metadata: {namespace: ` + namespace + `, name: ` + name + `, uid: ` + name + `, creationTimestamp: "` + created + `", labels: {gpuladder.dev/policy: h100}}
spec:
  {schedulerName: ladder-scheduler, containers: [{name: main, image: img, resources: {claims: [{name: accelerator}]}}], resourceClaims: [{name: accelerator, resourceClaimTemplateName: h100-1}]` + gate + `}
`
	if device == "" {
		return text
	}
	return text + `---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  namespace: ` + namespace + `
  name: ` + name + `-accelerator
  uid: c-` + name + `
  annotations: {resource.kubernetes.io/pod-claim-name: accelerator}
  ownerReferences: [{apiVersion: v1, kind: Pod, name: ` + name + `, uid: ` + name + `, controller: true}]
spec: {devices: {requests: [{name: accelerator, exactly: {deviceClassName: gpu.gpuladder.dev}}]}}
status:
  allocation: {devices: {results: [{request: accelerator, driver: gpu.gpuladder.dev, pool: node, device: ` + device + `}]}}
`
}

func quotaFile(t *testing.T) string {
	t.Helper()
	return write(t, t.TempDir(), "cluster.yaml", quotaCluster+
		quotaPod("b", "holds-0", "2026-11-01T00:00:00Z", "gpu-0")+quotaPod("b", "holds-1", "2026-11-01T00:10:00Z", "gpu-1")+
		quotaPod("a", "asks", "2026-11-01T01:00:00Z", "")+quotaPod("b", "more", "2026-11-01T00:30:00Z", ""))
}

func TestQuotaShow(t *testing.T) {
	file := quotaFile(t)
	golden(t, "quota-show.txt", ladder(t, "quota", "show", "-f", file).want(t, 0).stdout)
	var v struct{ Tenants []struct{ Name string } }
	if err := json.Unmarshal([]byte(ladder(t, "quota", "show", "team-b", "-f", file, "-o", "json").want(t, 0).stdout), &v); err != nil || len(v.Tenants) != 1 {
		t.Errorf("got %+v, %v", v, err)
	}
	if r := ladder(t, "quota", "show", "nobody", "-f", file).want(t, 1); !strings.Contains(r.stderr, "no TenantQuota nobody") {
		t.Errorf("stderr %q", r.stderr)
	}
	if r := ladder(t, "quota", "show").want(t, 2); !strings.Contains(r.stderr, "give files with -f") {
		t.Errorf("stderr %q", r.stderr)
	}
}

func TestQuotaExplain(t *testing.T) {
	file := quotaFile(t)
	golden(t, "quota-explain.txt", ladder(t, "quota", "explain", "more", "-n", "b", "-f", file).want(t, 0).stdout)
	r := ladder(t, "quota", "explain", "asks", "-n", "a", "-f", file, "-o", "json").want(t, 0)
	if !strings.Contains(r.stdout, `"entitled": true`) || !strings.Contains(r.stdout, `"reason": "NoFreeDevices"`) {
		t.Errorf("got %s", r.stdout)
	}
	if r := ladder(t, "quota", "explain", "nobody", "-f", file).want(t, 1); !strings.Contains(r.stderr, "no Pod default/nobody") {
		t.Errorf("stderr %q", r.stderr)
	}
}

// A higher limit lets nothing in while all is held; without a guarantee nothing
// is taken back.
func TestQuotaWhatIf(t *testing.T) {
	file := quotaFile(t)
	changed := write(t, t.TempDir(), "a.yaml", `apiVersion: gpuladder.dev/v1alpha1
kind: TenantQuota
metadata: {name: team-a}
spec: {namespaces: [a], models: [{model: H100, limit: 1}]}
`)
	golden(t, "quota-what-if.txt", ladder(t, "quota", "what-if", "-f", file, "--quota", changed).want(t, 0).stdout)
	var v map[string]struct{ Opens, Reclaims []string }
	if err := json.Unmarshal([]byte(ladder(t, "quota", "what-if", "-f", file, "--quota", changed, "-o", "json").want(t, 0).stdout), &v); err != nil {
		t.Fatal(err)
	}
	if len(v["now"].Reclaims) != 1 || v["now"].Reclaims[0] != "b/holds-1" || len(v["then"].Reclaims) != 0 {
		t.Errorf("got %+v, want the one with the least lost work taken back, and nothing without a guarantee", v)
	}
	if r := ladder(t, "quota", "what-if", "-f", file, "--quota", file+".none").want(t, 2); r.stdout != "" {
		t.Errorf("stdout %q", r.stdout)
	}
}

// A policy that was edited in a dump is tried, and a warning says so.
func TestQuotaOfAnEditedPolicy(t *testing.T) {
	revision := `---
apiVersion: gpuladder.dev/v1alpha1
kind: PolicyRevision
metadata: {name: h100-1, uid: r}
spec: {policy: h100, revision: 1, hash: "sha256:` + strings.Repeat("1", 64) + `", policySpec: {preempts: Borrowed, tiers: [{name: t4, models: [T4]}]}}
`
	file := write(t, t.TempDir(), "cluster.yaml", quotaCluster+revision+quotaPod("b", "more", "2026-11-01T00:30:00Z", ""))
	r := ladder(t, "quota", "explain", "more", "-n", "b", "-f", file, "-o", "json").want(t, 0)
	if !strings.Contains(r.stderr, "AcceleratorPolicy h100: it says something else than its newest revision. New Pods get it as revision 2") || !strings.Contains(r.stdout, `"reason": "Ready"`) {
		t.Errorf("stderr %q, stdout %s", r.stderr, r.stdout)
	}
}
