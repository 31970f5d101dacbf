// Package images builds the project's container images from the working tree,
// and keeps each as an archive that can be loaded where there is no registry.
//
// An image is a Dockerfile of this repository and static programs, nothing
// else. All images of one build bear one tag, a hash of everything that is in
// them, so that what has been built before is not built again and a chart
// needs to be told but one tag.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// Image says what one image is made of.
type Image struct {
	// Name is the image's short name.
	Name string `json:"name"`
	// Repository is its name without registry and tag.
	Repository string `json:"repository"`
	// Dockerfile is its path below the repository's root.
	Dockerfile string `json:"dockerfile"`
	// Programs lie beside the Dockerfile where the image is built.
	Programs []string `json:"programs"`
	// CLibrary says that the programs load libraries, and need the C library
	// for that.
	CLibrary bool `json:"cLibrary,omitempty"`
	// FakeNVML says that the simulated libnvidia-ml.so.1 is in it.
	FakeNVML bool `json:"fakeNVML,omitempty"`
}

var catalog = []Image{
	{
		Name: "ladder-scheduler", Repository: "ladder/ladder-scheduler", Dockerfile: "scheduler/Dockerfile",
		Programs: []string{binaries.LadderScheduler},
	},
	{
		Name: "ladder-controller", Repository: "ladder/ladder-controller", Dockerfile: "controllers/Dockerfile",
		Programs: []string{binaries.LadderController},
	},
	{
		Name: "ladder-driver", Repository: "ladder/ladder-driver", Dockerfile: "drivers/Dockerfile",
		Programs: []string{binaries.LadderFakeDriver, binaries.LadderDevicePlugin, binaries.LadderProbe, binaries.Ladder},
	},
	{
		Name: "ladder-nvml-driver", Repository: "ladder/ladder-nvml-driver", Dockerfile: "drivers/nvml/Dockerfile",
		Programs: []string{binaries.LadderNVMLDriver, binaries.LadderProbe, binaries.Ladder}, CLibrary: true,
	},
	{
		Name: "ladder-fakenvml", Repository: "ladder/ladder-fakenvml", Dockerfile: "drivers/fakenvml/Dockerfile",
		Programs: []string{binaries.LadderFakeNVML}, FakeNVML: true,
	},
}

// All returns the project's images.
func All() []Image { return slices.Clone(catalog) }

// Names returns the short names of the images.
func Names() []string {
	names := make([]string, 0, len(catalog))
	for _, image := range catalog {
		names = append(names, image.Name)
	}
	return names
}

// ErrUnknown says that there is no image of a name.
var ErrUnknown = errors.New("no such image")

// Lookup returns the image of a short name, or ErrUnknown.
func Lookup(name string) (Image, error) {
	for _, image := range catalog {
		if image.Name == name {
			return image, nil
		}
	}
	return Image{}, fmt.Errorf("looking for the image %q (known are %v), %w", name, Names(), ErrUnknown)
}

// chosen are the images of these names, without any all, in the catalog's order.
func chosen(names []string) ([]Image, error) {
	for _, name := range names {
		if _, err := Lookup(name); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(All(), func(image Image) bool { return len(names) > 0 && !slices.Contains(names, image.Name) }), nil
}

// source is an image with the files that it is made of.
type source struct {
	Image
	// files maps the name of each file in the build's folder to its place.
	files map[string]string
}

const dockerfileName = "Dockerfile"

// sourceOf finds an image's files: the Dockerfile below the root, the programs
// where locate says.
func sourceOf(ctx context.Context, image Image, root string, locate func(program string) string) (source, error) {
	s := source{Image: image, files: map[string]string{dockerfileName: filepath.Join(root, filepath.FromSlash(image.Dockerfile))}}
	for _, program := range image.Programs {
		s.files[program] = locate(program)
	}
	if image.CLibrary {
		base, err := cLibrary(ctx, locate(image.Programs[0]), askLinker)
		if err != nil {
			return source{}, err
		}
		maps.Copy(s.files, base)
	}
	if image.FakeNVML {
		library, err := fakeNVML(ctx, filepath.Dir(locate(image.Programs[0])))
		if err != nil {
			return source{}, err
		}
		s.files[fakenvml.LibraryName] = library
	}
	for _, name := range s.names() {
		if info, err := os.Stat(s.files[name]); err != nil {
			return source{}, fmt.Errorf("looking for what %s is made of, %w", image.Name, err)
		} else if !info.Mode().IsRegular() {
			return source{}, fmt.Errorf("looking for what %s is made of, %s is no file", image.Name, s.files[name])
		}
	}
	return s, nil
}

// names are those of the files in the build's folder, sorted.
func (s source) names() []string {
	names := make([]string, 0, len(s.files))
	for name := range s.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// writeContext fills an empty folder with the image's files.
func (s source) writeContext(dir string) error {
	for _, name := range s.names() {
		mode := os.FileMode(0o755)
		if name == dockerfileName {
			mode = 0o644
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(to), 0o755)
		if err == nil {
			err = copyFile(s.files[name], to, mode)
		}
		if err != nil {
			return fmt.Errorf("gathering what %s is made of, %w", s.Name, err)
		}
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	// The mode counts in an image, so the user's umask must not.
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// tagOf is the tag of images made of these sources.
func tagOf(sources []source) (string, error) {
	h := sha256.New()
	for _, s := range sources {
		fmt.Fprintf(h, "%s\n", s.Repository)
		for _, name := range s.names() {
			sum, err := digest(s.files[name])
			if err != nil {
				return "", fmt.Errorf("reading what %s is made of, %w", s.Name, err)
			}
			fmt.Fprintf(h, "%s %s\n", name, sum)
		}
	}
	return tagPrefix + hex.EncodeToString(h.Sum(nil))[:tagDigits], nil
}

const (
	tagPrefix = "dev-"
	tagDigits = 12
)

// isOurTag says whether a tag is one that tagOf makes.
func isOurTag(tag string) bool {
	digits, found := strings.CutPrefix(tag, tagPrefix)
	if !found || len(digits) != tagDigits {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
