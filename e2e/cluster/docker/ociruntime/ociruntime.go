// Package ociruntime stands between a container engine and runc on machines
// whose bounding set lacks capabilities. A privileged container asks for every
// capability there is, and runc fails where one cannot be given. This runtime
// takes out of the request what the machine cannot give, and hands over to
// runc. It asks for less; it gains nothing.
package ociruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"gpuladder.dev/ladder/e2e/cluster/docker/capability"
)

// EnvNext names the runtime that is handed over to; runc on the PATH if unset.
const EnvNext = "LADDER_OCI_NEXT"

// Main does what the command line (with the program's name first) asks for,
// and returns only if that fails.
func Main(argv []string) error {
	granted, err := capability.Bounding()
	if err != nil {
		return err
	}
	if err := Trim(argv[1:], granted); err != nil {
		return err
	}
	next := os.Getenv(EnvNext)
	if next == "" {
		if next, err = exec.LookPath("runc"); err != nil {
			return fmt.Errorf("looking for the runtime to hand over to, %w", err)
		}
	}
	err = syscall.Exec(next, append([]string{next}, argv[1:]...), os.Environ())
	return fmt.Errorf("handing over to %s, %w", next, err)
}

// Trim takes out of the file that the arguments name, if they name one, the
// capabilities that are not granted. A file that is not there is left for the
// runtime to complain about.
func Trim(args []string, granted capability.Set) error {
	req := parse(args)
	if req.path == "" {
		return nil
	}
	content, err := os.ReadFile(req.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading what the container asks for, %w", err)
	}
	trim := trimProcess
	if req.bundle {
		trim = trimBundle
	}
	trimmed, changed, err := trim(content, granted)
	if err != nil {
		return fmt.Errorf("reading %s, %w", req.path, err)
	}
	if !changed {
		return nil
	}
	return replace(req.path, trimmed)
}

// Documents are taken apart only where something is to be changed, so that
// fields that this program does not know stay as they are.
type document map[string]json.RawMessage

// trimBundle trims the process of a config.json; one without a process, as for
// a container that is started later, is left alone.
func trimBundle(content []byte, granted capability.Set) ([]byte, bool, error) {
	return within(content, "process", func(process []byte) ([]byte, bool, error) {
		return trimProcess(process, granted)
	})
}

// trimProcess trims the five sets (bounding, effective, inheritable, permitted,
// ambient) of a process.
func trimProcess(content []byte, granted capability.Set) ([]byte, bool, error) {
	return within(content, "capabilities", func(sets []byte) ([]byte, bool, error) {
		var byName map[string][]string
		if err := json.Unmarshal(sets, &byName); err != nil {
			return nil, false, fmt.Errorf("reading the capabilities, %w", err)
		}
		changed := false
		for set, wanted := range byName {
			kept := make([]string, 0, len(wanted))
			for _, name := range wanted {
				if granted.Has(name) {
					kept = append(kept, name)
				}
			}
			changed = changed || len(kept) != len(wanted)
			byName[set] = kept
		}
		trimmed, err := encode(byName)
		return trimmed, changed, err
	})
}

// within changes one field of a JSON object and leaves the others as they are.
func within(content []byte, field string, change func([]byte) ([]byte, bool, error)) ([]byte, bool, error) {
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return nil, false, err
	}
	inner, found := doc[field]
	if !found || bytes.Equal(inner, []byte("null")) {
		return nil, false, nil
	}
	changedInner, changed, err := change(inner)
	if err != nil || !changed {
		return nil, false, err
	}
	doc[field] = changedInner
	out, err := encode(doc)
	return out, true, err
}

func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// replace writes the file anew with its mode, and gives it its name last.
func replace(path string, content []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("looking at %s, %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return fmt.Errorf("writing %s, %w", path, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s, %w", path, err)
	}
	return nil
}
