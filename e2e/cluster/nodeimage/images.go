package nodeimage

// The images of the pods that kubeadm starts, made without an engine: a layer
// with one program each. Their names are those that kubeadm asks for.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// podImage is an image with one program.
type podImage struct {
	// ref is the name that kubeadm asks for.
	ref     string
	program string
}

// onRoot are the programs that call others (iptables) and so need a root file
// system below them.
var onRoot = []string{binaries.KubeProxy}

// podImages reads the list that kubeadm prints.
func podImages(list string) ([]podImage, error) {
	known := append([]string{binaries.Etcd, binaries.APIServer, binaries.ControllerManager, binaries.Scheduler},
		binaries.KubeProxy, binaries.CoreDNS, binaries.Pause)
	var images []podImage
	for line := range strings.Lines(list) {
		ref := strings.TrimSpace(line)
		if ref == "" {
			continue
		}
		repository, _, found := strings.Cut(path.Base(ref), ":")
		if !found || !slices.Contains(known, repository) {
			return nil, fmt.Errorf("reading the images that kubeadm asks for, %q is not known", ref)
		}
		images = append(images, podImage{ref: ref, program: repository})
	}
	for _, program := range known {
		if !slices.ContainsFunc(images, func(i podImage) bool { return i.program == program }) {
			return nil, fmt.Errorf("reading the images that kubeadm asks for, there is none of %s in %q", program, list)
		}
	}
	return images, nil
}

// askKubeadm returns the images that this version of kubeadm wants.
func askKubeadm(ctx context.Context, kubeadm string) ([]podImage, error) {
	list, err := output(ctx, kubeadm, "config", "images", "list", "--kubernetes-version", binaries.KubernetesVersion)
	if err != nil {
		return nil, err
	}
	return podImages(list)
}

// sandbox is the name of the image that holds a pod.
func sandbox(images []podImage) string {
	i := slices.IndexFunc(images, func(i podImage) bool { return i.program == binaries.Pause })
	return images[i].ref
}

// write makes the image's archive in the folder and returns its path.
func (i podImage) write(dir, program, root, arch string) (string, error) {
	ref, err := name.NewTag(i.ref)
	if err != nil {
		return "", fmt.Errorf("naming the image of %s, %w", i.program, err)
	}
	config := &v1.ConfigFile{
		Architecture: arch, OS: "linux",
		Config: v1.Config{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/usr/local/bin/" + i.program},
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	image, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return "", fmt.Errorf("making the image of %s, %w", i.program, err)
	}
	if slices.Contains(onRoot, i.program) {
		layer, err := tarball.LayerFromFile(root)
		if err != nil {
			return "", fmt.Errorf("making the image of %s, %w", i.program, err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return "", fmt.Errorf("making the image of %s, %w", i.program, err)
		}
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return layerOf(program, "usr/local/bin/"+i.program) },
		tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
	if err != nil {
		return "", fmt.Errorf("making the image of %s, %w", i.program, err)
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return "", fmt.Errorf("making the image of %s, %w", i.program, err)
	}
	target := filepath.Join(dir, i.program+".tar")
	if err := tarball.WriteToFile(target, ref, image); err != nil {
		return "", fmt.Errorf("writing the image of %s, %w", i.program, err)
	}
	return target, nil
}

// layerOf is a tar with one program.
func layerOf(program, at string) (io.ReadCloser, error) {
	f, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	var head, foot bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: 0o755, Size: info.Size()}); err != nil {
		f.Close()
		return nil, err
	}
	// What tar puts behind a file: zeros up to a full block, and two empty ones.
	const block = 512
	foot.Write(make([]byte, (block-info.Size()%block)%block+2*block))
	return readCloser{io.MultiReader(&head, io.LimitReader(f, info.Size()), &foot), f}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
