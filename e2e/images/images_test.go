package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// tree writes files below a folder; a path that ends in a program's name is
// made executable by nobody: the images do that.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var (
	first  = Image{Name: "first", Repository: "ladder/first", Dockerfile: "one/Dockerfile", Programs: []string{"a", "b"}}
	second = Image{Name: "second", Repository: "ladder/second", Dockerfile: "two/Dockerfile", Programs: []string{"b"}}
)

func files() map[string]string {
	return map[string]string{
		"one/Dockerfile": "FROM scratch\nCOPY a b /\n", "two/Dockerfile": "FROM scratch\nCOPY b /b\n",
		"bin/a": "program a", "bin/b": "program b",
	}
}

func sourcesOf(t *testing.T, files map[string]string, all ...Image) []source {
	t.Helper()
	root := tree(t, files)
	var sources []source
	for _, image := range all {
		s, err := sourceOf(t.Context(), image, root, func(p string) string { return filepath.Join(root, "bin", p) })
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	return sources
}

func TestTagCoversAllThatIsInTheImages(t *testing.T) {
	tag := func(change func(map[string]string), all ...Image) string {
		t.Helper()
		f := files()
		change(f)
		tag, err := tagOf(sourcesOf(t, f, all...))
		if err != nil {
			t.Fatal(err)
		}
		if !isOurTag(tag) {
			t.Errorf("tag %q", tag)
		}
		return tag
	}
	nothing := func(map[string]string) {}
	base := tag(nothing, first, second)
	if again := tag(nothing, first, second); again != base {
		t.Errorf("the same files in another place have the tag %s, not %s", again, base)
	}
	renamed := second
	renamed.Repository = "ladder/renamed"
	seen := map[string]string{base: "base"}
	for name, other := range map[string]string{
		"a program":      tag(func(f map[string]string) { f["bin/a"] = "program A" }, first, second),
		"shared program": tag(func(f map[string]string) { f["bin/b"] = "program B" }, first, second),
		"a Dockerfile":   tag(func(f map[string]string) { f["two/Dockerfile"] += "USER 1\n" }, first, second),
		"fewer images":   tag(nothing, first),
		"a name":         tag(nothing, first, renamed),
		"swapped files":  tag(func(f map[string]string) { f["bin/a"], f["bin/b"] = f["bin/b"], f["bin/a"] }, first, second),
	} {
		if before, found := seen[other]; found {
			t.Errorf("%s: the tag is that of %s", name, before)
		}
		seen[other] = name
	}
}

func TestIsOurTag(t *testing.T) {
	for tag, want := range map[string]bool{
		"dev-0123456789ab": true, "dev-0123456789a": false, "dev-0123456789abc": false, "dev-0123456789xy": false,
		"v1.0.0": false, "latest": false, "": false, "../x": false,
	} {
		if isOurTag(tag) != want {
			t.Errorf("isOurTag(%q) = %v", tag, !want)
		}
	}
}

func TestSourceThatIsMissing(t *testing.T) {
	for name, missing := range map[string]string{"Dockerfile": "one/Dockerfile", "program": "bin/b"} {
		f := files()
		delete(f, missing)
		root := tree(t, f)
		_, err := sourceOf(t.Context(), first, root, func(p string) string { return filepath.Join(root, "bin", p) })
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "first") {
			t.Errorf("%s: %v", name, err)
		}
	}
	root := tree(t, files())
	if _, err := sourceOf(t.Context(), first, root, func(string) string { return root }); err == nil {
		t.Error("a folder is taken for a program")
	}
}

func TestWriteContextSetsModes(t *testing.T) {
	dir := t.TempDir()
	if err := sourcesOf(t, files(), first)[0].writeContext(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[entry.Name()] = info.Mode()
	}
	if len(got) != 3 || got["Dockerfile"] != 0o644 || got["a"] != 0o755 || got["b"] != 0o755 {
		t.Errorf("the folder holds %v", got)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(content) != "program a" {
		t.Errorf("a is %q, %v", content, err)
	}
}

// The catalog and the Dockerfiles of the repository belong together: what is
// copied is what lies beside the file, and each image starts one of its programs.
func TestDockerfilesOfTheRepository(t *testing.T) {
	root, err := binaries.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range All() {
		t.Run(image.Name, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join(root, image.Dockerfile))
			if err != nil {
				t.Fatal(err)
			}
			var copied []string
			var from, entrypoint string
			for line := range strings.Lines(string(content)) {
				words := strings.Fields(line)
				if len(words) < 2 {
					continue
				}
				switch words[0] {
				case "FROM":
					from += words[1]
				case "COPY":
					copied = append(copied, words[1:len(words)-1]...)
				case "ENTRYPOINT":
					entrypoint = strings.Trim(strings.Join(words[1:], " "), `[]"`)
				}
			}
			slices.Sort(copied)
			wanted := slices.Clone(image.Programs)
			if image.CLibrary {
				wanted = append(wanted, baseFolder+"/")
			}
			if image.FakeNVML {
				wanted = append(wanted, fakenvml.LibraryName)
			}
			slices.Sort(wanted)
			if from != "scratch" || !slices.Equal(copied, wanted) {
				t.Errorf("FROM %s copies %v, want scratch and %v", from, copied, wanted)
			}
			if entrypoint != "/"+image.Programs[0] {
				t.Errorf("the entry point is %q", entrypoint)
			}
			for _, label := range []string{"title=\"" + image.Name + "\"", "description=", "licenses=\"Apache-2.0\""} {
				if !strings.Contains(string(content), "org.opencontainers.image."+label) {
					t.Errorf("no label %s", label)
				}
			}
			for _, program := range image.Programs {
				if !slices.Contains(binaries.Names(), program) {
					t.Errorf("the program %s is not known", program)
				}
			}
		})
	}
}

func TestLookup(t *testing.T) {
	for _, name := range Names() {
		if image, err := Lookup(name); err != nil || image.Name != name {
			t.Errorf("Lookup(%q) = %+v, %v", name, image, err)
		}
	}
	if _, err := Lookup("nginx"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Lookup of another = %v", err)
	}
	All()[0].Name = "changed"
	if Names()[0] == "changed" {
		t.Error("All gives the catalog itself away")
	}
}

func TestChosen(t *testing.T) {
	all, err := chosen(nil)
	if err != nil || len(all) != len(catalog) {
		t.Errorf("without names: %v, %v", all, err)
	}
	some, err := chosen([]string{"ladder-driver", "ladder-scheduler"})
	if err != nil || len(some) != 2 || some[0].Name != "ladder-scheduler" {
		t.Errorf("chosen: %v, %v", some, err)
	}
	if _, err := chosen([]string{"ladder-driver", "nothing"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("a name that there is not: %v", err)
	}
	if len(All()) != len(catalog) {
		t.Error("choosing has changed the catalog")
	}
}
