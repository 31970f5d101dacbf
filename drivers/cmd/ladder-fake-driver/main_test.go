package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/policies/fleet"
)

const smallFleet = `
apiVersion: gpuladder.dev/v1alpha1
kind: Fleet
groups:
- {name: h100, nodes: 3, board: H100-SXM5-80GB, gpus: 2}
- {name: l4, nodes: 2, board: L4, gpus: 1}
`

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// call runs the program as a user does.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestBadUseEndsWithTwo(t *testing.T) {
	good := write(t, "fleet.yaml", smallFleet)
	bad := write(t, "bad.yaml", smallFleet+"- {name: x, nodes: 1, colour: red}\n")
	many := write(t, "many.yaml", "apiVersion: gpuladder.dev/v1alpha1\nkind: Fleet\ngroups:\n- {name: a, nodes: 101}\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":   {[]string{"dance"}, `unknown command "dance"`},
		"unknown flag":      {[]string{"publish", "--fast"}, "unknown flag: --fast"},
		"no fleet":          {[]string{"publish"}, "--fleet is required"},
		"fleet is gone":     {[]string{"publish", "--fleet", good + ".gone"}, "fleet.yaml.gone: no such file"},
		"bad fleet":         {[]string{"publish", "--fleet", bad}, `unknown field "groups[2].colour"`},
		"once without":      {[]string{"publish", "--fleet", good, "--once"}, "--once goes only with --direct"},
		"parallelism":       {[]string{"publish", "--fleet", good, "--direct", "--parallelism", "0"}, "--parallelism must be at least 1"},
		"resync":            {[]string{"publish", "--fleet", good, "--direct", "--resync", "1ms"}, "--resync must be at least 1s"},
		"no such node":      {[]string{"publish", "--fleet", good, "--nodes", "h100-*,a100-*"}, `"a100-*" matches no node`},
		"bad pattern":       {[]string{"publish", "--fleet", good, "--nodes", "[h"}, "syntax error in pattern"},
		"too many nodes":    {[]string{"publish", "--fleet", many}, "101 nodes are too many"},
		"no kubeconfig":     {[]string{"publish", "--fleet", good, "--kubeconfig", good + ".gone"}, "finding the cluster"},
		"no node":           {[]string{"node"}, "--node-name is required"},
		"node and more":     {[]string{"node", "n"}, `unknown command "n"`},
		"no catalog":        {[]string{"node", "--node-name", "n", "--catalog", good + ".gone"}, "reading tier catalog"},
		"bad catalog":       {[]string{"node", "--node-name", "n", "--catalog", bad}, `unknown field "groups[2].colour"`},
		"node's kubeconfig": {[]string{"node", "--node-name", "n", "--kubeconfig", good + ".gone"}, "finding the cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, test.args...)
			if code != exit.Usage {
				t.Errorf("exit code %d, want %d", code, exit.Usage)
			}
			if stdout != "" {
				t.Errorf("stdout has %q", stdout)
			}
			if !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("stderr has %q, want one line with %q", stderr, test.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for command, want := range map[string]string{"publish": "--direct", "node": "--allow-faults"} {
		if code, stdout, _ := call(t, command, "--help"); code != exit.OK || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, help is\n%s", code, stdout)
		}
	}
}

// clusterOf is a client of a cluster that has the fleet's Nodes.
func clusterOf(t *testing.T, file string) (*fake.Clientset, func(string) (kubernetes.Interface, error)) {
	t.Helper()
	f, err := fleet.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	for _, node := range f.Nodes() {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return client, func(string) (kubernetes.Interface, error) { return client, nil }
}

func poolsOf(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pools := make([]string, 0, len(list.Items))
	for _, slice := range list.Items {
		pools = append(pools, slice.Spec.Pool.Name)
	}
	return strings.Join(pools, " ")
}

func TestPublishDirectlyOnce(t *testing.T) {
	file := write(t, "fleet.yaml", smallFleet)
	client, connected := clusterOf(t, file)
	p := publishing{fleet: file, direct: true, once: true, parallelism: 2, resync: time.Minute, client: connected, nodes: []string{"h100-000[01]"}}
	var out bytes.Buffer
	if err := p.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := poolsOf(t, client), "h100-0000 h100-0001"; got != want {
		t.Errorf("published %s, want %s", got, want)
	}
	if !strings.HasPrefix(out.String(), "2 slices: 2 created, 0 updated, 0 unchanged, 0 stale ones deleted, in ") {
		t.Errorf("printed %q", &out)
	}
	p.nodes = nil
	if err := p.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := poolsOf(t, client), "h100-0000 h100-0001 h100-0002 l4-0000 l4-0001"; got != want {
		t.Errorf("published %s, want %s", got, want)
	}
}

func TestPublishDirectlyRepairs(t *testing.T) {
	file := write(t, "fleet.yaml", smallFleet)
	client, connected := clusterOf(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	p := publishing{fleet: file, direct: true, parallelism: 2, resync: time.Second, client: connected}
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, &bytes.Buffer{}) }()
	full := "h100-0000 h100-0001 h100-0002 l4-0000 l4-0001"
	until := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); poolsOf(t, client) != full; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: published are %s", what, poolsOf(t, client))
			}
		}
	}
	until("at first")
	if err := client.ResourceV1().ResourceSlices().Delete(t.Context(), "00000-gpu.gpuladder.dev-l4-0001", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("after a slice was deleted")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestClusterThatRefusesEndsWithOne(t *testing.T) {
	file := write(t, "fleet.yaml", smallFleet)
	empty := func(string) (kubernetes.Interface, error) { return fake.NewClientset(), nil }
	for name, direct := range map[string]bool{"direct": true, "drivers": false} {
		p := publishing{fleet: file, direct: direct, once: direct, parallelism: 1, resync: time.Minute, client: empty}
		err := p.run(t.Context(), &bytes.Buffer{})
		var failed *exit.Error
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), "-000") {
			t.Errorf("%s: got %v, want a runtime error that names the node", name, err)
		}
	}
}
