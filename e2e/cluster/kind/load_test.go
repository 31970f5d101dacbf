package kind

import (
	"archive/tar"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const hexA, hexB = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

func saved(t *testing.T, manifest string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "images.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "manifest.json", Mode: 0o644, Size: int64(len(manifest))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(manifest)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadArchive(t *testing.T) {
	path := saved(t, `[{"Config":"`+hexA+`.json","RepoTags":["ladder/x:1","ladder/x:2"]},{"Config":"blobs/sha256/`+hexB+`","RepoTags":["y:1"]}]`)
	got, err := readArchive(path)
	want := []archived{{"sha256:" + hexA, []string{"ladder/x:1", "ladder/x:2"}}, {"sha256:" + hexB, []string{"y:1"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for name, manifest := range map[string]string{
		"digest": `[{"Config":"short.json","RepoTags":["x:1"]}]`,
		"no tag": `[{"Config":"` + hexA + `.json"}]`,
	} {
		if _, err := readArchive(saved(t, manifest)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readArchive(filepath.Join(t.TempDir(), "missing.tar")); err == nil {
		t.Error("a missing archive is read")
	}
}

func TestLacks(t *testing.T) {
	list := `{"images":[{"id":"sha256:` + hexA + `","repoTags":["registry.example/ladder/x:1"]},{"id":"sha256:` + hexB + `","repoTags":["y:1"]}]}`
	images := []archived{
		{"sha256:" + hexA, []string{"ladder/x:1", "ladder/x:2"}},
		{"sha256:" + hexA, []string{"y:1"}}, // other content under the tag
		{"sha256:" + hexB, []string{"y:1"}},
		{"sha256:" + hexA, []string{"x:1"}},
	}
	got, err := lacks([]byte(list), images)
	if err != nil || !slices.Equal(got, []string{"ladder/x:2", "y:1"}) {
		t.Errorf("lacks = %v, %v", got, err)
	}
	if _, err := lacks([]byte("no list"), images); err == nil {
		t.Error("text that is no list is accepted")
	}
}
