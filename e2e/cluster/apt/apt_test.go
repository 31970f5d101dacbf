package apt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// machine is a system whose packages a test decides.
type machine struct {
	installed map[string]bool
	// known are those that apt-get finds; update adds what is in fresh.
	known, fresh map[string]bool
	calls        []string
	broken       bool
}

func (m *machine) run(_ context.Context, out io.Writer, name string, args ...string) error {
	if name == "dpkg-query" {
		pkg := args[len(args)-1]
		if _, ok := m.installed[pkg]; !ok {
			return errors.New("exit status 1")
		}
		status := "deinstall ok config-files"
		if m.installed[pkg] {
			status = "install ok installed"
		}
		_, err := io.WriteString(out, status)
		return err
	}
	m.calls = append(m.calls, name+" "+strings.Join(args[3:], " "))
	switch args[3] {
	case "update":
		for pkg := range m.fresh {
			m.known[pkg] = true
		}
	case "install":
		for _, pkg := range args[6:] {
			if !m.known[pkg] {
				fmt.Fprintf(out, "E: Unable to locate package %s\n", pkg)
				return errors.New("exit status 100")
			}
			m.installed[pkg] = !m.broken
		}
	}
	return nil
}

func (m *machine) installer(root, debian bool) (*Installer, *bytes.Buffer) {
	var said bytes.Buffer
	return &Installer{Progress: &said, run: m.run, root: root, look: func(string) error {
		if debian {
			return nil
		}
		return errors.New("not found")
	}}, &said
}

func newMachine() *machine {
	return &machine{
		installed: map[string]bool{"gcc": true, "removed": false},
		known:     map[string]bool{"gcc": true, "debootstrap": true, "removed": true},
		fresh:     map[string]bool{"libseccomp-dev": true},
	}
}

func TestMissing(t *testing.T) {
	i, _ := newMachine().installer(true, true)
	if got := i.Missing(t.Context(), "debootstrap", "gcc", "removed"); !slices.Equal(got, []string{"debootstrap", "removed"}) {
		t.Errorf("Missing = %v", got)
	}
}

func TestEnsureInstallsOnlyWhatIsMissing(t *testing.T) {
	m := newMachine()
	i, said := m.installer(true, true)
	if err := i.Ensure(t.Context(), "gcc", "debootstrap"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"apt-get install --yes --no-install-recommends debootstrap"}; !slices.Equal(m.calls, want) {
		t.Errorf("calls = %q, want %q", m.calls, want)
	}
	if !strings.Contains(said.String(), "installing the packages debootstrap") {
		t.Errorf("said %q", said)
	}
	m.calls = nil
	if err := i.Ensure(t.Context(), "gcc", "debootstrap"); err != nil || len(m.calls) != 0 {
		t.Errorf("the second time: %v, calls %q", err, m.calls)
	}
}

func TestEnsureUpdatesTheListsWhereAPackageIsUnknown(t *testing.T) {
	m := newMachine()
	i, said := m.installer(true, true)
	if err := i.Ensure(t.Context(), "libseccomp-dev"); err != nil {
		t.Fatal(err)
	}
	if len(m.calls) != 3 || m.calls[1] != "apt-get update" || !strings.Contains(said.String(), "apt-get update") {
		t.Errorf("calls %q, said %q", m.calls, said)
	}
	err := i.Ensure(t.Context(), "no-such-package")
	if err == nil || !strings.Contains(err.Error(), "Unable to locate package no-such-package") {
		t.Errorf("an unknown package: %v", err)
	}
}

func TestWhatCannotBeInstalledIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		root, debian bool
		want         string
	}{
		"another system": {true, false, "not Debian or Ubuntu"},
		"not root":       {false, true, "only root"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			i, _ := m.installer(tc.root, tc.debian)
			var missing *MissingError
			for _, err := range []error{i.Ensure(t.Context(), "debootstrap", "gcc"), i.Check(t.Context(), "debootstrap", "gcc")} {
				if !errors.As(err, &missing) || !slices.Equal(missing.Packages, []string{"debootstrap"}) ||
					!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "apt-get install debootstrap") {
					t.Errorf("error = %v", err)
				}
			}
			if len(m.calls) != 0 {
				t.Errorf("the machine was changed: %q", m.calls)
			}
			if err := i.Check(t.Context(), "gcc"); err != nil {
				t.Errorf("Check of what is there: %v", err)
			}
		})
	}
}

func TestCheckChangesNothing(t *testing.T) {
	m := newMachine()
	i, _ := m.installer(true, true)
	if err := i.Check(t.Context(), "debootstrap"); err != nil || len(m.calls) != 0 {
		t.Errorf("Check = %v, calls %q", err, m.calls)
	}
}

func TestASuccessThatInstalledNothingIsAnError(t *testing.T) {
	m := newMachine()
	m.broken = true
	i, _ := m.installer(true, true)
	var missing *MissingError
	if err := i.Ensure(t.Context(), "debootstrap"); !errors.As(err, &missing) {
		t.Errorf("error = %v, want a MissingError", err)
	}
}
