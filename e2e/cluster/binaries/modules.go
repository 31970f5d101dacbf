package binaries

// What the pinned modules say about themselves, for those who make something
// of the programs and want to know when it is out of date.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// KindModule is the module with the files that make a root file system the
// node of a cluster.
const KindModule = "sigs.k8s.io/kind"

// Keys returns, for each of the named programs that comes from a public
// module, a word that changes with everything the program is built from.
func Keys(ctx context.Context, names ...string) (map[string]string, error) {
	wanted, err := inBuildOrder(names)
	if err != nil {
		return nil, err
	}
	b := &builder{progress: io.Discard, run: runGo}
	version, err := b.goVersion(ctx)
	if err != nil {
		return nil, err
	}
	keys := map[string]string{}
	for _, p := range wanted {
		if p.own() {
			continue
		}
		if keys[p.name], err = key(p, version); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// ModuleSum returns the checksum of a module of the node that is used for its
// files and not for a program.
func ModuleSum(module, version string) (string, error) {
	_, sums, err := moduleOf(program{module: nodeModule})
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(sums) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == module && string(fields[1]) == version {
			return string(fields[2]), nil
		}
	}
	return "", fmt.Errorf("looking for %s %s, the pinned module %s has no checksum of it", module, version, nodeModule)
}

// ModuleDir downloads a module of the node unless it is there, and returns
// where its files lie. The go command checks them against the pinned sum.
func ModuleDir(ctx context.Context, module string) (string, error) {
	work, err := os.MkdirTemp("", "ladder-module-")
	if err != nil {
		return "", fmt.Errorf("downloading %s, %w", module, err)
	}
	defer os.RemoveAll(work)
	mod, sum, err := moduleOf(program{module: nodeModule})
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{"go.mod": mod, "go.sum": sum} {
		if err := os.WriteFile(filepath.Join(work, name), content, 0o644); err != nil {
			return "", fmt.Errorf("downloading %s, %w", module, err)
		}
	}
	var out bytes.Buffer
	if err := runGo(ctx, work, moduleEnv(false), []string{"mod", "download", "-json", module}, &out); err != nil {
		return "", fmt.Errorf("downloading %s, %w\n%s", module, err, bytes.TrimSpace(out.Bytes()))
	}
	var told struct{ Dir, Error string }
	// The go command may print what it downloads before the answer.
	if start := bytes.IndexByte(out.Bytes(), '{'); start >= 0 {
		out.Next(start)
	}
	if err := json.NewDecoder(&out).Decode(&told); err != nil {
		return "", fmt.Errorf("reading where %s lies, %w", module, err)
	}
	if told.Dir == "" {
		return "", fmt.Errorf("downloading %s, %s", module, told.Error)
	}
	return told.Dir, nil
}
