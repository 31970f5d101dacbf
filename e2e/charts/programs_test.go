package charts_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

// The scheduler takes the rendered configuration and becomes ready with it; one
// with which it could not keep its promises it refuses, in words.
func TestSchedulerTakesItsConfiguration(t *testing.T) {
	for _, variation := range []string{"default", "replace"} {
		t.Run(variation, func(t *testing.T) {
			config, _, _ := unstructured.NestedString(find(t, render(t, variation), "ConfigMap", "ladder-scheduler").Object, "data", "config.yaml")
			// In the cluster the account comes with the Pod.
			config = strings.Replace(config, "clientConnection:\n", "clientConnection:\n  kubeconfig: "+kubeconfig(t)+"\n", 1)
			log, ready := startScheduler(t, config)
			err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 60*time.Second, true, func(ctx context.Context) (bool, error) {
				return ready(ctx), nil
			})
			if err != nil {
				t.Errorf("not ready, %v:\n%s", err, process.Tail(log, 20))
			}
		})
	}
	t.Run("with a weight that is too small", func(t *testing.T) {
		config, _, _ := unstructured.NestedString(find(t, render(t, "default"), "ConfigMap", "ladder-scheduler").Object, "data", "config.yaml")
		config = strings.Replace(config, "clientConnection:\n", "clientConnection:\n  kubeconfig: "+kubeconfig(t)+"\n", 1)
		log, _ := startScheduler(t, strings.Replace(config, "weight: 100000", "weight: 1", 1))
		waitForLog(t, log, "the score weight of Ladder is 1")
	})
}

func waitForLog(t *testing.T, log, word string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return strings.Contains(process.Tail(log, 50), word), nil
	})
	if err != nil {
		t.Errorf("the log lacks %q:\n%s", word, process.Tail(log, 20))
	}
}

// startScheduler runs ladder-scheduler until the test ends.
func startScheduler(t *testing.T, config string) (log string, ready func(context.Context) bool) {
	t.Helper()
	set, err := binaries.Ensure(t.Context(), os.Stderr, binaries.LadderScheduler)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freePort(t)
	log = filepath.Join(dir, "log")
	p, err := process.Start(process.Spec{
		Name: binaries.LadderScheduler, Path: set.Path(binaries.LadderScheduler), Log: log, Dir: dir,
		Args: []string{
			"--config=" + file, "--secure-port=" + port(address), "--bind-address=127.0.0.1", "--journal=" + filepath.Join(dir, "journal.jsonl"),
			"--authentication-kubeconfig=" + kubeconfig(t), "--authorization-kubeconfig=" + kubeconfig(t),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(context.WithoutCancel(t.Context()), 5*time.Second) })
	return log, func(ctx context.Context) bool {
		_, err := read(ctx, "https://"+address+"/readyz", "")
		return err == nil
	}
}

// kubeconfig writes a file that reaches the test's API server.
func kubeconfig(t *testing.T) string {
	t.Helper()
	_, config := server(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// The flags that the chart gives each program are flags that it has.
func TestProgramsKnowTheirFlags(t *testing.T) {
	for _, tc := range []struct {
		program, variation, kind, workload, container string
		command                                       []string
	}{
		{binaries.LadderScheduler, "full", "Deployment", "ladder-scheduler", "ladder-scheduler", nil},
		{binaries.LadderController, "full", "Deployment", "ladder-controller", "ladder-controller", nil},
		{binaries.LadderFakeDriver, "full", "DaemonSet", "ladder-driver", "ladder-driver", []string{"node"}},
		{binaries.LadderDevicePlugin, "full", "DaemonSet", "ladder-device-plugin", "ladder-device-plugin", nil},
		{binaries.LadderNVMLDriver, "nvml", "DaemonSet", "ladder-driver", "ladder-driver", []string{"node"}},
		{binaries.LadderNVMLDriver, "nvml-simulated", "DaemonSet", "ladder-driver", "ladder-driver", []string{"node"}},
		{binaries.LadderFakeNVML, "nvml-simulated", "DaemonSet", "ladder-driver", "fakenvml-install", []string{"install"}},
		{binaries.LadderFakeNVML, "nvml-simulated", "DaemonSet", "ladder-driver", "fakenvml", []string{"serve"}},
	} {
		t.Run(tc.container+" "+tc.variation, func(t *testing.T) {
			if testing.Short() {
				t.Skip("builds the program")
			}
			set, err := binaries.Ensure(t.Context(), os.Stderr, tc.program)
			if err != nil {
				t.Fatal(err)
			}
			help, _ := exec.CommandContext(t.Context(), set.Path(tc.program), append(tc.command, "--help")...).CombinedOutput()
			var args []string
			for _, container := range containers(find(t, render(t, tc.variation), tc.kind, tc.workload)) {
				if container["name"] == tc.container {
					args, _, _ = unstructured.NestedStringSlice(container, "args")
				}
			}
			given := 0
			for _, arg := range args {
				name, isFlag := strings.CutPrefix(arg, "--")
				if !isFlag {
					continue
				}
				given++
				name, _, _ = strings.Cut(name, "=")
				if !hasFlag(string(help), name) {
					t.Errorf("%s has no flag --%s:\n%s", tc.program, name, help)
				}
			}
			if given == 0 {
				t.Errorf("no flags are given: %v", args)
			}
		})
	}
}

// hasFlag looks for a flag in a help text, in the style of package flag or pflag.
func hasFlag(help, name string) bool {
	for line := range strings.SplitSeq(help, "\n") {
		for field := range strings.FieldsSeq(strings.ReplaceAll(line, ",", " ")) {
			if strings.TrimLeft(field, "-") == name && strings.HasPrefix(field, "-") {
				return true
			}
		}
	}
	return false
}
