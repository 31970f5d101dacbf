package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

func sample(claims int) *State {
	state := New("boot-1")
	for i := range claims {
		state.Claims[types.UID(fmt.Sprintf("uid-%d", i))] = &Claim{
			Namespace: "team-a", Name: fmt.Sprintf("claim-%d", i), Phase: PrepareCompleted,
			Since:   time.Date(2026, 11, 29, 18, 0, i, 0, time.UTC),
			Devices: []Device{{Request: "accelerator/h100", Name: fmt.Sprintf("gpu-%d", i), Model: "H100"}},
		}
	}
	return state
}

func store(t *testing.T) *Store {
	t.Helper()
	return NewStore(t.TempDir())
}

func save(t *testing.T, s *Store, states ...*State) {
	t.Helper()
	for _, state := range states {
		if err := s.Save(state); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T, s *Store) Loaded {
	t.Helper()
	loaded, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func put(t *testing.T, s *Store, name, content string) {
	t.Helper()
	if err := os.WriteFile(s.path(name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsSavedIsLoaded(t *testing.T) {
	s := store(t)
	if got := load(t, s); got.Origin != Fresh || got.Problem != nil || len(got.State.Claims) != 0 {
		t.Errorf("an empty folder is loaded as %+v", got)
	}
	want := sample(3)
	want.Claims["uid-1"].Devices[0].AdminAccess = true
	want.Claims["uid-2"].Devices[0].ShareID = "share"
	want.Claims["uid-2"].Evidence = FromCDI
	want.Claims["uid-2"].Sharing = map[string]v1alpha1.Sharing{"gpu-2": {Strategy: v1alpha1.SharingTimeSlicing}}
	save(t, s, sample(1), want)
	if got := load(t, NewStore(s.folder)); got.Origin != Current || !reflect.DeepEqual(got.State, want) {
		t.Errorf("got %+v, want %+v", got.State, want)
	}
}

// TestDamageAtEveryByte: whatever a crash leaves of the file, the one before
// is found, and never a state that was not saved.
func TestDamageAtEveryByte(t *testing.T) {
	s := store(t)
	before := sample(1)
	save(t, s, before, sample(2))
	whole, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, content []byte) {
		t.Helper()
		put(t, s, FileName, string(content))
		got := load(t, s)
		var corrupt *CorruptError
		if got.Origin != Previous || !errors.As(got.Problem, &corrupt) || corrupt.Path != s.Path() {
			t.Errorf("%s: loaded from %s, problem %v", what, got.Origin, got.Problem)
		}
		if !reflect.DeepEqual(got.State, before) {
			t.Errorf("%s: loaded %+v", what, got.State)
		}
	}
	for cut := range len(whole) - 2 { // the last brace and line end may go, and do no harm
		check(fmt.Sprintf("cut at %d", cut), whole[:cut])
		check(fmt.Sprintf("zeros from %d", cut), append(bytes.Clone(whole[:cut]), make([]byte, len(whole)-cut)...))
	}
	payload := bytes.Index(whole, []byte(`"payload":`)) + len(`"payload":`)
	for at := payload; at < len(whole)-2; at++ {
		flipped := bytes.Clone(whole)
		flipped[at] ^= 1
		check(fmt.Sprintf("bit flipped at %d", at), flipped)
	}
}

func TestLostAndMissingFiles(t *testing.T) {
	s := store(t)
	save(t, s, sample(1), sample(2))
	// A crash between two renames that keep the file would look like this.
	if err := os.Remove(s.Path()); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Origin != Previous || len(got.State.Claims) != 1 || !errors.Is(got.Problem, fs.ErrNotExist) {
		t.Errorf("without the current file: %+v", got)
	}
	put(t, s, FileName, "")
	put(t, s, PreviousFileName, "{")
	got := load(t, s)
	if got.Origin != Lost || len(got.State.Claims) != 0 {
		t.Errorf("with two damaged files: %+v", got)
	}
	for _, name := range []string{FileName, PreviousFileName} {
		if got.Problem == nil || !strings.Contains(got.Problem.Error(), s.path(name)+" is damaged") {
			t.Errorf("the problem does not name %s: %v", name, got.Problem)
		}
	}
	if err := os.Remove(s.path(PreviousFileName)); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Origin != Lost {
		t.Errorf("with one damaged file: %+v", got)
	}
}

func TestDamagedFileIsSetAside(t *testing.T) {
	s := store(t)
	if err := s.SetAside(); err != nil {
		t.Errorf("nothing to set aside: %v", err)
	}
	save(t, s, sample(1), sample(2))
	put(t, s, FileName, "torn")
	if err := s.SetAside(); err != nil {
		t.Fatal(err)
	}
	save(t, s, sample(3))
	put(t, s, FileName, "torn again")
	if got := load(t, s); got.Origin != Previous || len(got.State.Claims) != 1 {
		t.Errorf("the damaged file became the previous one: %+v", got)
	}
	if data, err := os.ReadFile(s.path(CorruptFileName)); err != nil || string(data) != "torn" {
		t.Errorf("set aside is %q, %v", data, err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	newer := `{"schema":2,"claims":[1,2,3]}`
	for name, files := range map[string][2]string{
		"current":                  {newer, ""},
		"previous of a damaged":    {"torn", newer},
		"previous of one not here": {"", newer},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t)
			for i, file := range []string{FileName, PreviousFileName} {
				if files[i] != "" {
					put(t, s, file, files[i])
				}
			}
			_, err := s.Load()
			var schema *SchemaError
			if !errors.As(err, &schema) || schema.Found != 2 || schema.Known != 1 {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), "schema version 2 and this driver knows up to 1") {
				t.Errorf("the error says %q", err)
			}
		})
	}
}

func TestNoSchemaIsDamage(t *testing.T) {
	s := store(t)
	for _, content := range []string{`{}`, `{"schema":0}`, `{"schema":-1}`, `[]`, `null`, `{"schema":"1"}`, `{"schema":1,"payload":null}`} {
		put(t, s, FileName, content)
		if got := load(t, s); got.Origin != Lost {
			t.Errorf("%s is loaded from %s", content, got.Origin)
		}
	}
}

// TestUnknownFieldsAreKept: a newer driver of the same schema may have written
// more; going back to this one and forth again must not lose it.
func TestUnknownFieldsAreKept(t *testing.T) {
	s := store(t)
	payload := `{"bootID":"boot-1","claims":{"uid-0":{"namespace":"n","name":"c","phase":"PrepareCompleted","devices":[],"mps":{"percent":30}}},"partitions":[9007199254740993]}`
	put(t, s, FileName, fmt.Sprintf(`{"schema":1,"checksum":%q,"writer":"ladder 9","payload":%s}`, checksum([]byte(payload)), payload))
	loaded := load(t, s)
	if loaded.Origin != Current {
		t.Fatalf("loaded from %s, %v", loaded.Origin, loaded.Problem)
	}
	loaded.State.Claims["uid-0"].Phase = PrepareStarted
	loaded.State.Claims["uid-1"] = &Claim{Name: "new"}
	save(t, s, loaded.State.DeepCopy())
	data, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{`"mps":{"percent":30}`, `"partitions":[9007199254740993]`, `"phase":"PrepareStarted"`} {
		if !strings.Contains(string(data), kept) {
			t.Errorf("%s is not in %s", kept, data)
		}
	}
	if got := load(t, s); got.Origin != Current || len(got.State.Claims) != 2 {
		t.Errorf("got %+v", got)
	}
}

// TestFormat is the contract with drivers of other versions: this file was
// written by schema 1 and must be read for as long as schema 1 is.
func TestFormat(t *testing.T) {
	s := store(t)
	const golden = `{"schema":1,"checksum":"sha256:31733f22d231231753720cb07c10dd2b62b88bb6d49192d609b50d3805627ff9","payload":{"bootID":"boot-1","claims":{"uid-0":{"namespace":"team-a","name":"claim-0","phase":"PrepareCompleted","devices":[{"request":"accelerator/h100","name":"gpu-0","model":"H100"}],"since":"2026-11-29T18:00:00Z"}}}}` + "\n"
	save(t, s, sample(1))
	data, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != golden {
		t.Errorf("written is\n%swant\n%s", data, golden)
	}
	put(t, s, FileName, golden)
	if got := load(t, s); got.Origin != Current || !reflect.DeepEqual(got.State, sample(1)) {
		t.Errorf("read is %+v, %v", got.State, got.Problem)
	}
}

func TestDeepCopySharesNothing(t *testing.T) {
	first := sample(1)
	second := first.DeepCopy()
	second.Claims["uid-0"].Devices[0].Name = "other"
	second.Claims["uid-0"].Sharing = map[string]v1alpha1.Sharing{"gpu-0": {Strategy: v1alpha1.SharingMPS}}
	third := second.DeepCopy()
	delete(third.Claims["uid-0"].Sharing, "gpu-0")
	if len(second.Claims["uid-0"].Sharing) != 1 {
		t.Error("the copy shares a map")
	}
	second.Claims["uid-0"].Phase = PrepareStarted
	second.Claims["uid-9"] = &Claim{}
	if !reflect.DeepEqual(first, sample(1)) {
		t.Errorf("the original became %+v", first)
	}
}

// TestLockExcludes counts who is inside. The counters are atomic, since a lock
// on a file is none to the race detector.
func TestLockExcludes(t *testing.T) {
	folder := t.TempDir()
	var group sync.WaitGroup
	var inside, most atomic.Int64
	for range 4 {
		s := NewStore(folder) // as another process would have its own
		group.Go(func() {
			for range 5 {
				unlock, err := s.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				unlock()
			}
		})
	}
	group.Wait()
	if most.Load() != 1 {
		t.Errorf("%d were inside at once", most.Load())
	}
}

func TestLockEndsWithItsContext(t *testing.T) {
	s := store(t)
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestFolderThatIsGone(t *testing.T) {
	s := NewStore(filepath.Join(t.TempDir(), "gone"))
	if err := s.Save(sample(1)); err == nil {
		t.Error("saved into nothing")
	}
	if _, err := s.Lock(t.Context()); err == nil {
		t.Error("locked nothing")
	}
}

// TestLoadingAgain: what is on the disk counts, whoever has written it, and what
// was loaded is the caller's own.
func TestLoadingAgain(t *testing.T) {
	one := store(t)
	other := NewStore(one.folder)
	save(t, one, sample(2))
	for range 2 {
		loaded := load(t, one)
		if len(loaded.State.Claims) != 2 || loaded.State.Claims["uid-0"].Phase != PrepareCompleted {
			t.Fatalf("got %+v", loaded.State)
		}
		loaded.State.Claims["uid-0"].Phase = PrepareStarted
		loaded.State.Claims["uid-0"].Devices[0].Name = "changed"
		delete(loaded.State.Claims, "uid-1")
	}
	if got := load(t, one).State.Claims["uid-0"].Devices[0].Name; got != "gpu-0" {
		t.Errorf("a caller has changed what the next one loads: %s", got)
	}
	save(t, other, sample(3))
	if got := load(t, one); len(got.State.Claims) != 3 || got.Origin != Current {
		t.Errorf("after another process has saved: %d claims, %s", len(got.State.Claims), got.Origin)
	}
	data, err := os.ReadFile(one.Path())
	if err != nil {
		t.Fatal(err)
	}
	put(t, one, FileName, strings.Replace(string(data), "gpu-2", "gpu-7", 1))
	if got := load(t, one); got.Origin != Previous || got.Problem == nil {
		t.Errorf("a file that was damaged after it was read: %s, %v", got.Origin, got.Problem)
	}
	mine := sample(1)
	save(t, one, mine)
	mine.Claims["uid-0"].Name = "changed"
	if got := load(t, one).State.Claims["uid-0"].Name; got != "claim-0" {
		t.Errorf("what is changed after it was saved is loaded: %s", got)
	}
}
