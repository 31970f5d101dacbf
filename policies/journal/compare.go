package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"

	"k8s.io/apimachinery/pkg/types"

	"gpuladder.dev/ladder/policies/decide"
)

// Difference is one decision or digest that came out otherwise.
type Difference struct {
	// Line and Entry say where it stands.
	Line  int
	Entry int64
	// Pod was asked about; empty for a digest.
	Pod types.NamespacedName
	// Fields are what differs, in the order of their paths.
	Fields []FieldDifference
}

// FieldDifference is one field of a decision with another value. Values are
// JSON; an empty one means that the field is not there.
type FieldDifference struct {
	Path          string
	Recorded, Now string
}

func (f FieldDifference) String() string {
	word := func(s string) string {
		switch {
		case s == "":
			return "nothing"
		case len(s) > 200:
			return s[:200] + "…"
		}
		return s
	}
	return fmt.Sprintf("%s: recorded %s, now %s", f.Path, word(f.Recorded), word(f.Now))
}

// compare says where an answer differs from the recorded one. The journal
// field is not the engine's and is not compared.
func compare(e *entry, d *decide.Decision, err error) ([]FieldDifference, error) {
	now, recorded := "", e.Error
	if err != nil {
		now = err.Error()
	}
	if now != "" || recorded != "" {
		if now == recorded {
			return nil, nil
		}
		return []FieldDifference{{Path: "error", Recorded: quote(recorded), Now: quote(now)}}, nil
	}
	var was decide.Decision
	if err := decodeStrict(e.Decision, &was); err != nil {
		return nil, fmt.Errorf("reading the decision, %w", err)
	}
	// What was written is taken as it stands, but for the journal's place.
	old, err := marshal(&was)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(old, e.Decision) {
		return []FieldDifference{{Path: "decision", Recorded: string(e.Decision), Now: string(old)}}, nil
	}
	was.Journal = ""
	is := *d
	is.Journal = ""
	old, err = marshal(&was)
	if err != nil {
		return nil, err
	}
	fresh, err := marshal(&is)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(old, fresh) {
		return nil, nil
	}
	var a, b any
	if err := json.Unmarshal(old, &a); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(fresh, &b); err != nil {
		return nil, err
	}
	var out []FieldDifference
	differ("", a, b, &out)
	return out, nil
}

// differ walks two JSON values side by side.
func differ(path string, a, b any, out *[]FieldDifference) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			keys := map[string]bool{}
			for k := range x {
				keys[k] = true
			}
			for k := range y {
				keys[k] = true
			}
			names := make([]string, 0, len(keys))
			for k := range keys {
				names = append(names, k)
			}
			sort.Strings(names)
			for _, k := range names {
				p := k
				if path != "" {
					p = path + "." + k
				}
				differ(p, x[k], y[k], out)
			}
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			for i := range max(len(x), len(y)) {
				var l, r any
				if i < len(x) {
					l = x[i]
				}
				if i < len(y) {
					r = y[i]
				}
				differ(fmt.Sprintf("%s[%d]", path, i), l, r, out)
			}
			return
		}
	}
	old, fresh := text(a), text(b)
	if old != fresh {
		*out = append(*out, FieldDifference{Path: path, Recorded: old, Now: fresh})
	}
}

func text(v any) string {
	if v == nil {
		return ""
	}
	raw, err := marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func quote(s string) string {
	if s == "" {
		return ""
	}
	return text(s)
}
