package docker

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeApt puts an apt-get and a dpkg-query first on the PATH. apt-get notes
// what it is to install and whether services are forbidden meanwhile, and then
// runs the script; dpkg-query knows what has been installed.
func fakeApt(t *testing.T, policy, script string) (installed func() []string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"apt-get":    "for package; do :; done\ntest -x " + policy + " && package=\"$package forbidden\"\n" + script + "\necho \"$package\" >> " + dir + "/installed\n",
		"dpkg-query": "for package; do :; done\ngrep -q \"^$package\" " + dir + "/installed 2>/dev/null && echo install ok installed\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		content, err := os.ReadFile(filepath.Join(dir, "installed"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(content)), "\n")
	}
}

func TestInstall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root installs packages")
	}
	const engine, client = "docker.io forbidden", "docker-cli forbidden"
	for name, tc := range map[string]struct {
		script string
		lacks  string // the program that is there only after docker-cli
		want   []string
		fails  string
	}{
		"at once":                {"", "", []string{engine}, ""},
		"the client is separate": {"", "docker", []string{engine, client}, ""},
		"without a network":      {"echo cannot resolve; exit 100", "", nil, "cannot resolve"},
		"something lacks":        {"", "runc", []string{engine}, "no runc"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := filepath.Join(t.TempDir(), "policy-rc.d")
			installed := fakeApt(t, policy, tc.script)
			look := func(program string) (string, error) {
				if program == tc.lacks && !slices.Contains(installed(), client) {
					return "", exec.ErrNotFound
				}
				return "/bin/" + program, nil
			}
			var progress bytes.Buffer
			err := install(t.Context(), &progress, policy, look)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("install = %v, want %q", err, tc.fails)
			}
			if got := installed(); !slices.Equal(got, tc.want) {
				t.Errorf("installed %q, want %q", got, tc.want)
			}
			if _, err := os.Stat(policy); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the policy file is left: %v", err)
			}
			if !strings.Contains(progress.String(), "docker.io") {
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

// A policy that replaced ours in the meantime is not removed.
func TestForbidServicesKeepsALaterPolicy(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	restore, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(policy); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("the policy cannot be run: %v, %v", info, err)
	}
	const later = "#!/bin/sh\nexit 0\n"
	if err := os.WriteFile(policy, []byte(later), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(policy); err != nil || string(content) != later {
		t.Errorf("the policy is %q, %v", content, err)
	}
}
