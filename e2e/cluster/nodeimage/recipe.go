package nodeimage

// What an image is made from, as a value: its tag covers all of it.

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// recipeVersion changes when the code that makes an image does so otherwise
// than before.
const recipeVersion = "1"

// repository is the name of the images that are made here, without a tag.
const repository = "ladder/node"

//go:embed setup.sh
var setupScript []byte

// rootPackages are what a node needs from the distribution: an init, what
// kubelet and kube-proxy call, and what kind's entry point uses.
var rootPackages = []string{
	"systemd",
	"conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod",
	"bash", "ca-certificates", "curl", "jq", "procps",
}

// recipe is what an image is made from.
type recipe struct {
	// suite and distribution are the host's own: its mirror is known to work.
	distribution, suite string
	arch                string
	// programs names each program with a key that covers its source.
	programs map[string]string
	// kind is the checksum of kind's module, whose files are used.
	kind string
	// pause is the checksum of the source of the pause program.
	pause string
	setup []byte
}

func currentRecipe(ctx context.Context) (recipe, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return recipe{}, fmt.Errorf("finding out the distribution, %w", err)
	}
	r := recipe{arch: runtime.GOARCH, setup: setupScript}
	r.distribution, r.suite = parseRelease(release)
	if r.programs, err = binaries.Keys(ctx, binaries.Node()...); err != nil {
		return recipe{}, fmt.Errorf("finding out the versions of the programs, %w", err)
	}
	if r.kind, err = binaries.ModuleSum(binaries.KindModule, binaries.KindVersion); err != nil {
		return recipe{}, err
	}
	if r.pause, err = pauseSum(); err != nil {
		return recipe{}, err
	}
	return r, nil
}

// pauseSum covers the one program of the image that is built from this tree.
func pauseSum() (string, error) {
	root, err := binaries.Root()
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(filepath.Join(root, "e2e", "cluster", "nodeimage", "pause", "main.go"))
	if err != nil {
		return "", fmt.Errorf("reading the source of the pause program, %w", err)
	}
	sum := sha256.Sum256(source)
	return hex.EncodeToString(sum[:]), nil
}

// image is the name of the image with its tag.
func (r recipe) image() string {
	return repository + ":" + binaries.KubernetesVersion + "-" + r.hash("image", r.inputs())
}

// base names the image in its first state: a root file system and files.
func (r recipe) base() string { return repository + "-base:" + r.hash("image", r.inputs()) }

// rootArchive is the file name of the root file system in the cache.
func (r recipe) rootArchive() string {
	return fmt.Sprintf("root-%s-%s-%s.tar.gz", r.suite, r.arch, r.hash("root", r.rootInputs()))
}

func (r recipe) rootInputs() []string {
	return append([]string{r.distribution, r.suite, r.arch}, slices.Concat(rootPackages, leftOut)...)
}

func (r recipe) inputs() []string {
	inputs := append(r.rootInputs(), r.kind, r.pause, string(r.setup))
	names := make([]string, 0, len(r.programs))
	for name := range r.programs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		inputs = append(inputs, name+"="+r.programs[name])
	}
	return inputs
}

func (recipe) hash(what string, inputs []string) string {
	h := sha256.New()
	for _, input := range append([]string{what, recipeVersion}, inputs...) {
		fmt.Fprintf(h, "%d:%s\n", len(input), input)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// parseRelease reads the distribution and the code name of its release from
// os-release(5).
func parseRelease(content []byte) (distribution, suite string) {
	for line := range bytes.Lines(content) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			distribution = value
		case "VERSION_CODENAME":
			suite = value
		}
	}
	return distribution, suite
}

// errNoSuite says that no root file system can be made on this distribution.
var errNoSuite = errors.New("this distribution is neither Debian nor Ubuntu, so there is no root file system for a node to be had")

// kindDir is the folder of kind's module in the module cache.
func kindDir(ctx context.Context) (string, error) {
	dir, err := binaries.ModuleDir(ctx, binaries.KindModule)
	if err != nil {
		return "", err
	}
	files := filepath.Join(dir, "images", "base", "files")
	if _, err := os.Stat(files); err != nil {
		return "", fmt.Errorf("looking for kind's files for a node, %w", err)
	}
	return files, nil
}

func join(words []string) string { return strings.Join(words, " ") }

// output runs a program of this machine and returns what it prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running %s %s, %w\n%s", name, join(args), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
