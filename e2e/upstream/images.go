package upstream

// The container images that tests' Pods need, made here where no registry can
// be asked for them. They carry the very names that the suite asks for, so a
// kubelet finds them on its node. No container engine is needed to make them:
// each is one or two layers of files.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// recipe says how an image is made. Its first layer is always the same: BusyBox
// with a link for each of its programs.
type recipe struct {
	// base is the last part of the image's name, without the tag.
	base string
	// program, one of those that binaries.Ensure provides, is put at the root
	// of the image under the name as; both may be empty.
	program, as string
	// entrypoint and command are what runs.
	entrypoint, command []string
	// told is what people read about it.
	told string
}

var recipes = []recipe{
	{
		base: "busybox", command: []string{"sh"},
		told: "BusyBox from the distribution's package " + busyboxPackage,
	},
	{
		base: "hostpathplugin", program: binaries.SocketProxy, as: "hostpathplugin", entrypoint: []string{"/hostpathplugin"},
		told: "a stand-in that joins sockets as the CSI driver's option --proxy-endpoint does, on BusyBox: the suite uses nothing else of it",
	},
	{
		base: "sample-device-plugin", program: binaries.SampleDevicePlugin, as: "sampledeviceplugin",
		entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"},
		told:       "upstream's program, built from its Go module, on BusyBox",
	},
}

// Substitutable are the base names of the images that MakeImages can make.
func Substitutable() []string {
	var bases []string
	for _, r := range recipes {
		bases = append(bases, r.base)
	}
	return bases
}

// Substitute is an image that was made in place of the one of this name.
type Substitute struct{ Name, Made string }

// String is one line for people, without the registry.
func (s Substitute) String() string { return "`" + path.Base(s.Name) + "`: " + s.Made }

// substitutes chooses among the images that the suite knows those that the
// tests of DRA need.
func substitutes(images []string) (map[string][]string, error) {
	chosen := map[string][]string{}
	for _, image := range images {
		base, _, _ := strings.Cut(path.Base(image), ":")
		if slices.ContainsFunc(recipes, func(r recipe) bool { return r.base == base }) && !slices.Contains(chosen[base], image) {
			chosen[base] = append(chosen[base], image)
		}
	}
	for _, r := range recipes {
		if len(chosen[r.base]) == 0 {
			return nil, fmt.Errorf("choosing images, the suite names none that is called %s", r.base)
		}
	}
	return chosen, nil
}

// MakeImages makes the images among those that the suite names and writes them
// to an archive, as docker save does.
func MakeImages(ctx context.Context, images []string, archive string, progress io.Writer) ([]Substitute, error) {
	chosen, err := substitutes(images)
	if err != nil {
		return nil, err
	}
	set, err := binaries.Ensure(ctx, progress, binaries.SocketProxy, binaries.SampleDevicePlugin)
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "ladder-images-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for images, %w", err)
	}
	defer os.RemoveAll(work)
	busybox, err := findBusyBox(ctx, work, progress)
	if err != nil {
		return nil, err
	}
	tree, err := busyboxTree(ctx, busybox)
	if err != nil {
		return nil, err
	}
	return pack(chosen, tree, set.Path, archive)
}

// pack makes the images on the tree and writes all of them.
func pack(chosen map[string][]string, tree *tree, programPath func(string) string, archive string) ([]Substitute, error) {
	below, err := tree.layer()
	if err != nil {
		return nil, fmt.Errorf("packing BusyBox, %w", err)
	}
	var made []Substitute
	byName := map[name.Reference]v1.Image{}
	for _, r := range recipes {
		image, err := r.image(below, programPath)
		if err != nil {
			return nil, fmt.Errorf("making the image %s, %w", r.base, err)
		}
		for _, text := range chosen[r.base] {
			reference, err := name.NewTag(text, name.StrictValidation)
			if err != nil {
				return nil, fmt.Errorf("naming the image %s, %w", r.base, err)
			}
			byName[reference] = image
			made = append(made, Substitute{Name: text, Made: r.told})
		}
	}
	if err := tarball.MultiRefWriteToFile(archive, byName); err != nil {
		return nil, fmt.Errorf("writing images, %w", err)
	}
	return made, nil
}

func (r recipe) image(below v1.Layer, programPath func(string) string) (v1.Image, error) {
	layers := []v1.Layer{below}
	if r.program != "" {
		content, err := os.ReadFile(programPath(r.program))
		if err != nil {
			return nil, err
		}
		own := &tree{}
		own.file(r.as, 0o755, content)
		layer, err := own.layer()
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform()
	config.Config = v1.Config{
		Entrypoint: r.entrypoint, Cmd: r.command, Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"},
	}
	return mutate.ConfigFile(image, config)
}
