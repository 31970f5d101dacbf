package harness

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/kind"
)

// install installs the chart, or upgrades what is installed, and waits until
// every part of it is ready.
func (h *harness) install(ctx context.Context, tag string) error {
	tools, err := binaries.Ensure(ctx, h.Progress, binaries.Helm4)
	if err != nil {
		return err
	}
	root, err := binaries.Root()
	if err != nil {
		return err
	}
	h.say("installing the chart")
	err = h.helm(ctx, tools.Path(binaries.Helm4), append([]string{
		"upgrade", "--install", Release, filepath.Join(root, "charts", "ladder"),
		"--namespace", Namespace, "--create-namespace", "--kubeconfig", h.cluster.Kubeconfig(),
		"--wait", "--timeout", "5m",
	}, sets(values(tag, h.Driver))...))
	if err != nil {
		h.cluster.CollectLogs(context.WithoutCancel(ctx))
		return fmt.Errorf("%w\nthe logs of the nodes are in %s", err, h.cluster.LogsDir())
	}
	return nil
}

// uninstall removes a release of the chart, if there is one, for tests that want
// none. The kinds stay, as for a user.
func (h *harness) uninstall(ctx context.Context) error {
	tools, err := binaries.Ensure(ctx, h.Progress, binaries.Helm4)
	if err != nil {
		return err
	}
	return h.helm(ctx, tools.Path(binaries.Helm4), []string{
		"uninstall", Release, "--namespace", Namespace, "--kubeconfig", h.cluster.Kubeconfig(),
		"--ignore-not-found", "--wait", "--timeout", "5m",
	})
}

// values are what the suites want otherwise than a user would.
func values(tag string, driver Driver) [][2]string {
	return [][2]string{
		{"global.image.tag", tag},
		{"global.image.pullPolicy", "Never"},
		{"driver.kind", string(driver)},
		{"driver.nvml.simulation.enabled", strconv.FormatBool(driver == NVMLDriver)},
		{"driver.allowFaults", "true"},
		{"driver.bootIDFile", kind.BootIDFile},
		// All nodes share this machine: an API server that is slow is none that is gone.
		{"scheduler.leaseSeconds", "40"},
		{"controller.leaseSeconds", "40"},
		// What is taken back is waited for.
		{"controller.quota.settings", "notice: 10s"},
	}
}

func sets(values [][2]string) []string {
	args := make([]string, 0, 2*len(values))
	for _, v := range values {
		args = append(args, "--set", v[0]+"="+v[1])
	}
	return args
}

// helm runs helm; its error says what helm said.
func (h *harness) helm(ctx context.Context, program string, args []string) error {
	var out bytes.Buffer
	x := exec.CommandContext(ctx, program, args...)
	x.Stdout, x.Stderr = &out, &out
	if err := x.Run(); err != nil {
		return fmt.Errorf("running helm %s, %w\n%s", args[0], err, strings.TrimSpace(out.String()))
	}
	return nil
}
