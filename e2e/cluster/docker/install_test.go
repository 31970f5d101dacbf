package docker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeApt puts an apt-get first on the PATH that notes how it is called and
// whether services are forbidden meanwhile, and then runs the script.
func fakeApt(t *testing.T, policy, script string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	notes := filepath.Join(dir, "notes")
	content := "#!/bin/sh\nshift 2\ntest -x " + policy + " && forbidden=forbidden\necho \"$* $forbidden\" >> " + notes + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		content, err := os.ReadFile(notes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(content)), "\n")
	}
}

const (
	installDocker = "install -y --no-install-recommends docker.io forbidden"
	installClient = "install -y --no-install-recommends docker-cli forbidden"
)

func TestInstall(t *testing.T) {
	state := t.TempDir()
	for name, tc := range map[string]struct {
		script string
		lacks  string // the program that is there only after docker-cli
		calls  []string
		fails  string
	}{
		"at once":                {"", "", []string{installDocker}, ""},
		"after an update":        {"case $1 in update) touch " + state + "/updated;; *) test -e " + state + "/updated;; esac", "", []string{installDocker, "update forbidden", installDocker}, ""},
		"the client is separate": {"", "docker", []string{installDocker, installClient}, ""},
		"without a network":      {"echo cannot resolve; exit 100", "", []string{installDocker, "update forbidden"}, "cannot resolve"},
		"something lacks":        {"", "runc", []string{installDocker}, "no runc"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := filepath.Join(t.TempDir(), "policy-rc.d")
			calls := fakeApt(t, policy, tc.script)
			look := func(program string) (string, error) {
				if program == tc.lacks && !slices.Contains(calls(), installClient) {
					return "", exec.ErrNotFound
				}
				return "/bin/" + program, nil
			}
			var progress bytes.Buffer
			err := install(t.Context(), &progress, policy, look)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("install = %v, want %q", err, tc.fails)
			}
			if got := calls(); !slices.Equal(got, tc.calls) {
				t.Errorf("calls %q, want %q", got, tc.calls)
			}
			if _, err := os.Stat(policy); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the policy file is left: %v", err)
			}
			if !strings.HasPrefix(progress.String(), "installing docker.io") {
				t.Errorf("progress %q", progress.String())
			}
		})
	}
}

func TestForbidServicesKeepsTheAdministratorsPolicy(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	const theirs = "#!/bin/sh\nexit 0\n"
	if err := os.WriteFile(policy, []byte(theirs), 0o755); err != nil {
		t.Fatal(err)
	}
	restore, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(policy); err != nil || string(content) != theirs {
		t.Errorf("the policy is %q, %v", content, err)
	}
}

// Breaking off asks apt-get to end, so that dpkg can leave things in order.
func TestInstallBrokenOff(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	calls := fakeApt(t, policy, "trap 'exit 1' INT; echo ready >> "+policy+".ready; while :; do sleep 0.05; done")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(policy + ".ready"); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	start := time.Now()
	err := install(ctx, &bytes.Buffer{}, policy, func(string) (string, error) { return "", nil })
	if err == nil || time.Since(start) > 20*time.Second {
		t.Errorf("install = %v after %v", err, time.Since(start))
	}
	if got := calls(); !slices.Equal(got, []string{installDocker}) {
		t.Errorf("calls %q", got)
	}
	if _, err := os.Stat(policy); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the policy file is left: %v", err)
	}
}
