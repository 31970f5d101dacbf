package kind

// Giving images to the nodes without a registry.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// archived is an image in an archive.
type archived struct {
	// id is the digest of its configuration, by which engines know it.
	id   string
	tags []string
}

// LoadImages gives the images of archives (as docker save writes them) to every
// node that lacks one of them.
func (c *Cluster) LoadImages(ctx context.Context, archives ...string) error {
	for _, path := range archives {
		images, err := readArchive(path)
		if err != nil {
			return fmt.Errorf("reading the images in %s, %w", path, err)
		}
		err = c.each(c.state.clusterNames(), func(node string) error { return c.loadOn(ctx, node, path, images) })
		if err != nil {
			return fmt.Errorf("loading %s, %w", path, err)
		}
	}
	return nil
}

func (c *Cluster) loadOn(ctx context.Context, node, path string, images []archived) error {
	list, err := c.Exec(ctx, node, "crictl", "images", "--output=json")
	if err != nil {
		return err
	}
	lacking, err := lacks([]byte(list), images)
	if err != nil || len(lacking) == 0 {
		return err
	}
	c.say("loading %s on %s", strings.Join(lacking, ", "), node)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The images of this platform only: an archive may name others that it does
	// not hold.
	_, err = c.execIn(ctx, f, node, "ctr", "--namespace=k8s.io", "images", "import", "--digests", "--snapshotter=overlayfs", "-")
	return err
}

// readArchive tells the images of an archive.
func readArchive(path string) ([]archived, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	if err != nil {
		return nil, err
	}
	var images []archived
	for _, m := range manifest {
		id, err := configDigest(m.Config)
		if err != nil {
			return nil, err
		}
		if len(m.RepoTags) == 0 {
			return nil, errors.New("an image has no tag")
		}
		images = append(images, archived{id: id, tags: m.RepoTags})
	}
	return images, nil
}

// configDigest reads the digest from the name of a configuration's file:
// sha256:<hex>, <hex>.json, or blobs/sha256/<hex>.
func configDigest(file string) (string, error) {
	name := strings.TrimSuffix(file[strings.LastIndexByte(file, '/')+1:], ".json")
	digest, err := v1.NewHash("sha256:" + strings.TrimPrefix(name, "sha256:"))
	if err != nil {
		return "", fmt.Errorf("reading the digest of an image, %w", err)
	}
	return digest.String(), nil
}

// lacks returns the tags of those images that the list of a node's images, as
// crictl prints it, does not hold under their tags.
func lacks(list []byte, images []archived) ([]string, error) {
	var on struct {
		Images []struct {
			ID       string   `json:"id"`
			RepoTags []string `json:"repoTags"`
		} `json:"images"`
	}
	if err := json.Unmarshal(list, &on); err != nil {
		return nil, fmt.Errorf("reading the list of images, %w", err)
	}
	var lacking []string
	for _, image := range images {
		for _, tag := range image.tags {
			has := false
			for _, there := range on.Images {
				// A node has tags with the registry that they belong to.
				has = has || there.ID == image.id && slices.ContainsFunc(there.RepoTags, func(full string) bool {
					return full == tag || strings.HasSuffix(full, "/"+tag)
				})
			}
			if !has {
				lacking = append(lacking, tag)
			}
		}
	}
	return lacking, nil
}
