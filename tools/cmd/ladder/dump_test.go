package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gpuladder.dev/ladder/tools/internal/decision"
)

// dump is a cluster as kubectl prints it: an H100 and an A100, a policy with its
// revisions, of which the second is active, and two Pods that wait with it.
const dump = `apiVersion: v1
kind: Node
metadata: {name: node-1, uid: node}
status: {allocatable: {cpu: "64", memory: 512Gi, pods: "110"}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n-gpus, uid: s}
spec:
  driver: gpu.gpuladder.dev
  nodeName: node-1
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: H100}}}
  - {name: gpu-1, attributes: {model: {string: A100}}}
---
apiVersion: gpuladder.dev/v1alpha1
kind: AcceleratorPolicy
metadata: {name: p, uid: p, generation: 2}
spec: {tiers: [{name: b200, models: [B200]}]}
status: {observedGeneration: 2, activeRevision: 2, latestRevision: 2, templateName: p-2}
---
apiVersion: gpuladder.dev/v1alpha1
kind: PolicyRevision
metadata: {name: p-1, uid: r1, ownerReferences: [{apiVersion: gpuladder.dev/v1alpha1, kind: AcceleratorPolicy, name: p, uid: p, controller: true}]}
spec: {policy: p, revision: 1, hash: "sha256:1111111111111111111111111111111111111111111111111111111111111111", policySpec: {tiers: [{name: a100, models: [A100]}]}}
---
apiVersion: gpuladder.dev/v1alpha1
kind: PolicyRevision
metadata: {name: p-2, uid: r2, ownerReferences: [{apiVersion: gpuladder.dev/v1alpha1, kind: AcceleratorPolicy, name: p, uid: p, controller: true}]}
spec: {policy: p, revision: 2, hash: "sha256:2222222222222222222222222222222222222222222222222222222222222222", policySpec: {tiers: [{name: b200, models: [B200]}]}}
---
` + dumpedPod + dumpedOldPod

// dumpedPod waits with revision 2, and its claim was made from that.
const dumpedPod = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: t, uid: a, creationTimestamp: "2026-11-01T00:00:00Z", labels: {gpuladder.dev/policy: p}, annotations: {gpuladder.dev/claim-template: p-2}}
spec: {containers: [{name: m, image: x}], resourceClaims: [{name: accelerator, resourceClaimTemplateName: p-2}]}
status: {resourceClaimStatuses: [{name: accelerator, resourceClaimName: a-accelerator}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: a-accelerator
  namespace: t
  uid: c
  annotations: {resource.kubernetes.io/pod-claim-name: accelerator}
  ownerReferences: [{apiVersion: v1, kind: Pod, name: a, uid: a, controller: true}]
spec: {devices: {requests: [{name: accelerator, firstAvailable: [{name: b200, deviceClassName: gpu.gpuladder.dev, count: 1}]}]}}
---
`

// dumpedOldPod was made when revision 1 was active.
const dumpedOldPod = `apiVersion: v1
kind: Pod
metadata: {name: old, namespace: t, uid: old, creationTimestamp: "2026-10-01T00:00:00Z", labels: {gpuladder.dev/policy: p}}
spec: {containers: [{name: m, image: x}], resourceClaims: [{name: accelerator, resourceClaimTemplateName: p-1}]}
---
`

// edited replaces something in the dump, which must be there.
func edited(t *testing.T, pairs ...string) string {
	t.Helper()
	text := dump
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in the dump", pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// newTiers are what the policy is changed to; the words before are the policy's
// own, since a revision's stand in policySpec.
var newTiers = []string{"spec: {tiers: [{name: b200, models: [B200]}]}\nstatus", "spec: {tiers: [{name: h100, models: [H100]}]}\nstatus"}

// A policy that was edited in a dump is tried, for the Pods that waited with
// what was active; each answer names its revision.
func TestEditedPolicyIsTried(t *testing.T) {
	const oldKeeps = "t/old  Allocated: tier a100 of p revision 1, on node-1: gpu-1 (A100)\n"
	for name, tc := range map[string]struct {
		text         string
		want, warned string
	}{
		"as it is": {dump, "no tier of policy p revision 2 can ever be met", ""},
		"edited": {
			edited(t, newTiers...), "t/a  Allocated: tier h100 of p revision 3, on node-1: gpu-0 (H100)\n",
			"AcceleratorPolicy p: it says something else than its newest revision. New Pods get it as revision 3, which ladder-controller would make, " +
				"as do the Pods here that wait with an older one (1); in the cluster such Pods keep theirs until they are made anew\n",
		},
		"written anew": {
			edited(t, "metadata: {name: p, uid: p, generation: 2}", "metadata: {name: p}", newTiers[0], strings.TrimSuffix(newTiers[1], "status")+"# status"),
			"t/a  Allocated: tier h100 of p revision 3", "New Pods get it as revision 3",
		},
		"edited back": {
			edited(t, newTiers[0], strings.ReplaceAll(strings.ReplaceAll(newTiers[1], "h100", "a100"), "H100", "A100"), dumpedOldPod, ""),
			"t/a  Allocated: tier a100 of p revision 3", "as revision 3",
		},
		"edited, with a pin": {
			edited(t, append([]string{"labels: {gpuladder.dev/policy: p}, annotations", `labels: {gpuladder.dev/policy: p, gpuladder.dev/policy-revision: "2"}, annotations`}, newTiers...)...),
			"no tier of policy p revision 2 can ever be met", "New Pods get it as revision 3, which ladder-controller would make\n",
		},
		"edited, but another one is named": {
			edited(t, newTiers[0], strings.Replace(newTiers[1], "{tiers", "{activeRevision: 2, tiers", 1)),
			"no tier of policy p revision 2 can ever be met",
			"AcceleratorPolicy p: what it says here is in none of its revisions and is not tried, since spec.activeRevision names revision 2; take that field out to try it\n",
		},
		"rolled back": {
			edited(t, newTiers[0], strings.Replace(newTiers[0], "{tiers", "{activeRevision: 1, tiers", 1), dumpedOldPod, ""),
			"t/a  Allocated: tier a100 of p revision 1", "AcceleratorPolicy p: new Pods get revision 1 by what it says here, while its status has 2, as do the Pods here",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := write(t, t.TempDir(), "cluster.yaml", tc.text)
			r := ladder(t, "decide", "-f", in)
			if !strings.Contains(r.stdout, tc.want) || strings.Contains(tc.text, "name: old,") && !strings.Contains(r.stdout, oldKeeps) {
				t.Errorf("it says\n%swant\n%s", r.stdout, tc.want)
			}
			if !strings.Contains(r.stderr, tc.warned) || strings.Count(r.stderr, "\n") > 1 || tc.warned == "" && r.stderr != "" {
				t.Errorf("warned %q, want %q", r.stderr, tc.warned)
			}
		})
	}
}

// What was tried can be replayed, and explained.
func TestEditedPolicyInABundle(t *testing.T) {
	dir := t.TempDir()
	in, bundle := write(t, dir, "cluster.yaml", edited(t, newTiers...)), filepath.Join(dir, "run.jsonl")
	ladder(t, "decide", "-f", in, "--bundle", bundle).want(t, 0)
	ladder(t, "replay", bundle).want(t, 0)
	if r := ladder(t, "explain", "a", "-f", in).want(t, 0); !strings.Contains(r.stdout, "p, revision 3") {
		t.Errorf("explain says\n%s", r.stdout)
	}
	// A record in the dump is of what was before, and explain says so.
	record := "apiVersion: gpuladder.dev/v1alpha1\nkind: AllocationDecision\nmetadata: {name: r, namespace: t}\n" +
		"spec: {pod: a, podUID: a, outcome: Pending, message: \"Pending: as it was\", decidedAt: \"2026-11-01T00:00:01.000000Z\", attempt: 1}\n"
	with := write(t, dir, "records.yaml", edited(t, newTiers...)+record)
	if r := ladder(t, "explain", "a", "-f", with).want(t, 0); !strings.Contains(r.stdout, "as it was") || !strings.Contains(r.stderr, "made before the policy was changed there") {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
}

// One Pod that is parked, or two objects that do not fit together, are no reason
// to say nothing of all others.
func TestUnsettledDumpIsDecided(t *testing.T) {
	pod := func(name, labels, claims string) string {
		if claims != "" {
			claims = ", resourceClaims: [" + claims + "]"
		}
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: u, uid: " + name + ", labels: {" + labels + "}}\n" +
			"spec: {containers: [{name: m, image: x}]" + claims + "}\n---\n"
	}
	const follows = "gpuladder.dev/policy: "
	for name, tc := range map[string]struct {
		more   string
		class  string
		warned string
	}{
		"a policy that is gone":   {pod("x", follows+"gone", "{name: accelerator, resourceClaimTemplateName: gone-1}"), "PolicyInvalid", `AcceleratorPolicy "gone", not found`},
		"a revision that is gone": {pod("x", follows+"p", "{name: accelerator, resourceClaimTemplateName: p-7}"), "PolicyInvalid", `revision 7 of policy "p", not found`},
		"a claim that is gone":    {pod("x", "", "{name: c, resourceClaimName: gone}"), "ClaimGone", `ResourceClaim "gone", not found`},
		"a bad pin":               {pod("x", follows+`p, gpuladder.dev/policy-revision: "x"`, ""), "PolicyInvalid", `"x" is not a revision`},
		"a claim of another revision": {
			strings.NewReplacer("name: a,", "name: x,", "namespace: t", "namespace: u", "a-accelerator", "x-accelerator", "uid: a", "uid: x", "firstAvailable: [{name: b200,", "firstAvailable: [{name: other,").Replace(dumpedPod),
			"PolicyInvalid", "the claim was not made from revision 2",
		},
		"no active revision": {
			"apiVersion: gpuladder.dev/v1alpha1\nkind: AcceleratorPolicy\nmetadata: {name: q, uid: q}\nspec: {activeRevision: 7, tiers: [{name: any}]}\n---\n" + pod("x", follows+"q", ""),
			"PolicyInvalid", "spec.activeRevision: names revision 7, which is not there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := write(t, t.TempDir(), "cluster.yaml", dump+tc.more)
			r := ladder(t, "decide", "-f", in, "-o", "json").want(t, 3)
			var l decision.List
			if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
				t.Fatal(err)
			}
			if len(l.Decisions) != 3 {
				t.Fatalf("%d decisions, want 3:\n%s", len(l.Decisions), r.stdout)
			}
			for _, d := range l.Decisions {
				if d.Pod == "x" && (string(d.Class) != tc.class || d.Outcome != "Pending") {
					t.Errorf("got %s with class %q, want Pending with %s: %s", d.Outcome, d.Class, tc.class, d.Message)
				}
				if d.Pod == "old" && d.Tier != "a100" {
					t.Errorf("another Pod got tier %q", d.Tier)
				}
			}
			if !strings.Contains(r.stderr, tc.warned) || !strings.Contains(r.stderr, "warning: ") {
				t.Errorf("warned %q, want %q", r.stderr, tc.warned)
			}
			if r := ladder(t, "explain", "x", "-f", in).want(t, 0); !strings.Contains(r.stdout, tc.class) {
				t.Errorf("explain says\n%s", r.stdout)
			}
			if r := ladder(t, "explain", "old", "-f", in).want(t, 0); !strings.Contains(r.stdout, "gpu-1") {
				t.Errorf("explain of another Pod says\n%s", r.stdout)
			}
		})
	}
	two := "apiVersion: gpuladder.dev/v1alpha1\nkind: TenantQuota\nmetadata: {name: %s, uid: %s}\nspec: {namespaces: [t], models: [{model: A100}]}\n---\n"
	in := write(t, t.TempDir(), "cluster.yaml", dump+format(two, "q1", "q1")+format(two, "q2", "q2"))
	if r := ladder(t, "decide", "-f", in).want(t, 3); !strings.Contains(r.stdout, "t/old  Allocated") || !strings.Contains(r.stderr, "namespace t belongs to TenantQuota q1 already") {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
	// A policy that does not compile: its Pods have the revision that was made before.
	in = write(t, t.TempDir(), "cluster.yaml", edited(t, newTiers[0], strings.Replace(newTiers[1], "models: [H100]", "selectors: ['1 +']", 1)))
	if r := ladder(t, "decide", "-f", in).want(t, 3); !strings.Contains(r.stdout, "no tier of policy p revision 2 can") || !strings.Contains(r.stdout, "t/old  Allocated") ||
		!strings.Contains(r.stderr, "spec.tiers[0].selectors[0]: CEL does not compile") {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
	bundle := filepath.Join(t.TempDir(), "run.jsonl")
	in = write(t, t.TempDir(), "cluster.yaml", dump+pod("x", follows+"gone", ""))
	ladder(t, "decide", "-f", in, "--bundle", bundle).want(t, 3)
	ladder(t, "replay", bundle).want(t, 0)
}

// Hundreds of such Pods are counted, not told one by one.
func TestManyParkedPods(t *testing.T) {
	text := dump
	for i := range 30 {
		name := strings.Repeat("x", i+1)
		text += "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: u, uid: " + name + ", labels: {gpuladder.dev/policy: gone}}\nspec: {containers: [{name: m, image: x}]}\n---\n"
	}
	r := ladder(t, "decide", "-f", write(t, t.TempDir(), "cluster.yaml", text)).want(t, 3)
	if n := strings.Count(r.stderr, "\n"); n != 11 || !strings.HasSuffix(r.stderr, "warning: 20 further Pods name what is not there\n") {
		t.Errorf("%d lines of warnings: %s", n, r.stderr)
	}
}

// Records of several namespaces are several Pods, and that of a Pod that is gone
// is none of the one that has its name now.
func TestExplainPicksNobodyElsesRecord(t *testing.T) {
	record := func(namespace, uid, message string) string {
		return "apiVersion: gpuladder.dev/v1alpha1\nkind: AllocationDecision\nmetadata: {name: r-" + uid + ", namespace: " + namespace + "}\n" +
			"spec: {pod: old, podUID: " + uid + ", outcome: Pending, message: \"Pending: " + message + "\", decidedAt: \"2026-11-01T00:00:01.000000Z\", attempt: 1}\n---\n"
	}
	dir := t.TempDir()
	two := write(t, dir, "records.yaml", record("t", "one", "in t")+record("u", "two", "in u"))
	refused(t, ladder(t, "explain", "old", "-f", two), "several namespaces have a Pod old", "-n")
	if r := ladder(t, "explain", "old", "-n", "u", "-f", two).want(t, 0); !strings.Contains(r.stdout, "in u") {
		t.Errorf("it says\n%s", r.stdout)
	}
	waits := write(t, dir, "waits.yaml", dump+record("u", "two", "in u"))
	refused(t, ladder(t, "explain", "old", "-f", waits), "several namespaces have a Pod old", "-n")

	namesake := write(t, dir, "namesake.yaml", dump+record("t", "before", "of the one before"))
	if r := ladder(t, "explain", "old", "-f", namesake).want(t, 0); strings.Contains(r.stdout, "of the one before") || !strings.Contains(r.stdout, "gpu-1") {
		t.Errorf("it says\n%s", r.stdout)
	}
	own := write(t, dir, "own.yaml", dump+record("t", "old", "its own"))
	if r := ladder(t, "explain", "old", "-f", own).want(t, 0); !strings.Contains(r.stdout, "its own") {
		t.Errorf("it says\n%s", r.stdout)
	}
}
