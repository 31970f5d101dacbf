package nodeimage

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeEngine is a command line of an engine that a script plays.
type fakeEngine struct {
	dir    string
	script string
}

func newEngine(t *testing.T, script string) *fakeEngine {
	t.Helper()
	return &fakeEngine{dir: t.TempDir(), script: script}
}

func (e *fakeEngine) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `echo "$@" >>calls; ` + e.script, "engine"}, args...)...)
	cmd.Dir = e.dir
	return cmd
}

func (e *fakeEngine) calls(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(e.dir, "calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// Images are files below images/, with / and : as they are in names replaced.
const withImages = `
file=images/$(echo "$3" | tr '/:@' '___')
case "$1 $2" in
"image inspect") test -e "$file" ;;
"load "*) mkdir -p images; touch "images/$(echo "$IMAGE" | tr '/:@' '___')" ;;
"pull "*) echo "no such host" >&2; exit 1 ;;
*) exit 1 ;;
esac`

func has(t *testing.T, e *fakeEngine, image string) {
	t.Helper()
	name := strings.NewReplacer("/", "_", ":", "_", "@", "_").Replace(image)
	if err := os.MkdirAll(filepath.Join(e.dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.dir, "images", name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func currentImage(t *testing.T) string {
	t.Helper()
	r, err := currentRecipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.image()
}

func TestParseSource(t *testing.T) {
	for _, want := range []Source{Auto, Pull, Build} {
		if got, err := ParseSource(string(want)); err != nil || got != want {
			t.Errorf("ParseSource(%s) = %s, %v", want, got, err)
		}
	}
	if _, err := ParseSource("buy"); err == nil || !strings.Contains(err.Error(), "buy") {
		t.Errorf("ParseSource(buy) = %v", err)
	}
}

func TestAnImageThatIsThereIsUsed(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	built := currentImage(t)
	for name, tc := range map[string]struct {
		source Source
		there  []string
		want   string
	}{
		"pulled":          {Auto, []string{PulledImage}, PulledImage},
		"built":           {Auto, []string{built}, built},
		"both":            {Auto, []string{built, PulledImage}, PulledImage},
		"both, to build":  {Build, []string{built, PulledImage}, built},
		"asked to pull":   {Pull, []string{PulledImage}, PulledImage},
		"the zero source": {"", []string{built}, built},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, withImages)
			for _, image := range tc.there {
				has(t, e, image)
			}
			got, err := Ensure(t.Context(), Options{Source: tc.source, Engine: e})
			if err != nil || got != tc.want {
				t.Errorf("Ensure = %s, %v, want %s", got, err, tc.want)
			}
			for _, call := range e.calls(t) {
				if !strings.HasPrefix(call, "image inspect") {
					t.Errorf("the engine was told: %s", call)
				}
			}
			plan, err := PlanFor(t.Context(), Options{Source: tc.source, Engine: e})
			if err != nil || plan.Image != tc.want || len(plan.Steps) != 0 || len(plan.Missing) != 0 {
				t.Errorf("plan = %+v, %v", plan, err)
			}
		})
	}
}

func TestAKeptImageIsLoaded(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	image := currentImage(t)
	t.Setenv("IMAGE", image)
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(dir, "node-"+strings.TrimPrefix(image, repository+":")+".tar")
	if err := os.WriteFile(kept, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, withImages)
	plan, err := PlanFor(t.Context(), Options{Engine: e})
	if err != nil || len(plan.Steps) != 1 || !strings.Contains(plan.Steps[0], kept) {
		t.Errorf("plan = %+v, %v", plan, err)
	}
	var said strings.Builder
	got, err := Ensure(t.Context(), Options{Engine: e, Progress: &said})
	if err != nil || got != image {
		t.Fatalf("Ensure = %s, %v", got, err)
	}
	if !slices.Contains(e.calls(t), "load --input="+kept) || !strings.Contains(said.String(), "loading the node image") {
		t.Errorf("calls %q, said %q", e.calls(t), said.String())
	}
}

func TestAKeptImageThatIsBrokenIsRemoved(t *testing.T) {
	e := newEngine(t, `[ "$1" != load ] || { echo "unexpected EOF" >&2; exit 1; }`)
	r, err := currentRecipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &maker{Options: Options{Engine: e, Progress: &strings.Builder{}}, recipe: r, cache: t.TempDir()}
	if err := os.WriteFile(m.archive(), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := m.load(t.Context())
	if found || err != nil {
		t.Errorf("load = %t, %v", found, err)
	}
	if _, err := os.Stat(m.archive()); err == nil {
		t.Error("the broken archive is still there")
	}
}

func TestPullThatFails(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	e := newEngine(t, withImages)
	_, err := Ensure(t.Context(), Options{Source: Pull, Engine: e})
	if err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("Ensure = %v, want what the engine said", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ensure(ctx, Options{Engine: e}); err == nil {
		t.Error("a broken-off Ensure succeeds")
	}
}

func TestOutdatedKeepsTheNewest(t *testing.T) {
	at := map[string]time.Time{}
	var names []string
	for i, name := range []string{"a", "b", "c", "d"} {
		at[name] = time.Unix(int64(100*i), 0)
		names = append(names, name)
	}
	got := outdated(names, func(name string) time.Time { return at[name] })
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("outdated = %v", got)
	}
	if got := outdated([]string{"a"}, func(string) time.Time { return time.Time{} }); len(got) != 0 {
		t.Errorf("outdated = %v", got)
	}
}

func TestPlanOfABuild(t *testing.T) {
	t.Setenv("LADDER_CACHE", t.TempDir())
	plan, err := PlanFor(t.Context(), Options{Source: Auto})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(plan.Steps, "\n")
	if !strings.Contains(all, "pull "+PulledImage) || !strings.Contains(all, plan.Image) || len(plan.Missing) != 0 {
		t.Errorf("plan = %+v", plan)
	}
	plan, err = PlanFor(t.Context(), Options{Source: Build})
	if err != nil || strings.Contains(strings.Join(plan.Steps, "\n"), "pull ") {
		t.Errorf("plan = %+v, %v", plan, err)
	}
	if (os.Geteuid() == 0) != (len(plan.Missing) == 0) {
		t.Errorf("missing = %q", plan.Missing)
	}
	if plan, err = PlanFor(t.Context(), Options{Source: Pull}); err != nil || len(plan.Steps) != 1 || plan.Image != PulledImage {
		t.Errorf("plan = %+v, %v", plan, err)
	}
}
