package policy

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/command"
)

// change is one field that differs. Old or New is empty where it is not there.
type change struct {
	Policy string          `json:"policy"`
	Field  string          `json:"field"`
	Old    json.RawMessage `json:"old,omitempty"`
	New    json.RawMessage `json:"new,omitempty"`
}

func newDiffCommand(s command.Streams) *cobra.Command {
	format := command.Text
	var files command.Files
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say in which fields policies differ",
		Long: `Diff compares AcceleratorPolicies or PolicyRevisions of two files, by name, or
the only one of each. Defaults are filled in first; tiers are compared by name.

Exit code 0: they mean the same; 1: they differ; 2: a file can't be read.`,
		Example: `  {{ladder}} policy diff old.yaml new.yaml
  kubectl get policyrevision h100-first-3 -o yaml | {{ladder}} policy diff - h100-first.yaml`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, paths []string) error {
			var sides [2]map[string]*v1alpha1.AcceleratorPolicySpec
			for i, path := range paths {
				files.Paths = []string{path}
				set, err := files.Read(cmd.Context(), s)
				if err != nil {
					return err
				}
				if sides[i] = specs(set); len(sides[i]) == 0 {
					return command.BadInput(fmt.Errorf("%s: there is no AcceleratorPolicy or PolicyRevision in it", path))
				}
			}
			changes, err := diff(sides[0], sides[1])
			if err != nil {
				return command.Failed(err)
			}
			err = format.Write(s.Out, struct {
				Changes []change `json:"changes"`
			}{changes}, func(w io.Writer) error { return printChanges(w, s, changes) })
			if err != nil {
				return command.Printed(err)
			}
			if len(changes) > 0 {
				return &command.Exit{Code: command.CodeFailed}
			}
			return nil
		},
	}
	files.LimitFlags(cmd)
	format.Flag(cmd)
	return cmd
}

// specs are the policies and revisions of a file by name.
func specs(set *manifest.Set) map[string]*v1alpha1.AcceleratorPolicySpec {
	out := map[string]*v1alpha1.AcceleratorPolicySpec{}
	for p := range manifest.All[*v1alpha1.AcceleratorPolicy](set) {
		out[p.Name] = &p.Spec
	}
	for r := range manifest.All[*v1alpha1.PolicyRevision](set) {
		out[r.Name] = &r.Spec.PolicySpec
	}
	return out
}

func diff(before, after map[string]*v1alpha1.AcceleratorPolicySpec) ([]change, error) {
	if len(before) == 1 && len(after) == 1 {
		// The only ones are compared whatever they are called.
		for name := range after {
			for _, spec := range before {
				before = map[string]*v1alpha1.AcceleratorPolicySpec{name: spec}
			}
		}
	}
	names := maps.Clone(before)
	maps.Copy(names, after)
	changes := []change{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := before[name], after[name]
		if a != nil && b != nil && a.ContentHash() == b.ContentHash() && reflect.DeepEqual(a.ActiveRevision, b.ActiveRevision) {
			continue // 40Gi and 40960Mi are no difference
		}
		left, err := generic(a)
		if err != nil {
			return nil, err
		}
		right, err := generic(b)
		if err != nil {
			return nil, err
		}
		w := walk{policy: name}
		w.compare("spec", left, right)
		changes = append(changes, w.changes...)
	}
	return changes, nil
}

// generic turns a spec into maps and lists; nil stays nil.
func generic(spec *v1alpha1.AcceleratorPolicySpec) (any, error) {
	if spec == nil {
		return nil, nil
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var v any
	err = json.Unmarshal(raw, &v)
	return v, err
}

type walk struct {
	policy  string
	changes []change
}

func (w *walk) compare(path string, a, b any) {
	if reflect.DeepEqual(a, b) {
		return
	}
	if x, ok := a.(map[string]any); ok {
		if y, ok := b.(map[string]any); ok {
			keys := maps.Clone(x)
			maps.Copy(keys, y)
			for _, k := range slices.Sorted(maps.Keys(keys)) {
				w.compare(path+"."+k, x[k], y[k])
			}
			return
		}
	}
	if x, y, ok := named(a, b); ok {
		w.compareNamed(path, x, y)
		return
	}
	w.changes = append(w.changes, change{Policy: w.policy, Field: path, Old: raw(a), New: raw(b)})
}

// compareNamed compares lists of things with names: by name, then their order.
func (w *walk) compareNamed(path string, a, b []item) {
	var common [2][]string
	for _, x := range a {
		y, ok := find(b, x.name)
		if ok {
			common[0] = append(common[0], x.name)
		}
		w.compare(path+"["+x.name+"]", x.value, y)
	}
	for _, y := range b {
		if _, ok := find(a, y.name); ok {
			common[1] = append(common[1], y.name)
		} else {
			w.compare(path+"["+y.name+"]", nil, y.value)
		}
	}
	if !slices.Equal(common[0], common[1]) {
		w.changes = append(w.changes, change{Policy: w.policy, Field: path + " (order)", Old: raw(common[0]), New: raw(common[1])})
	}
}

// item is one element of a list of things with names.
type item struct {
	name  string
	value any
}

func find(items []item, name string) (any, bool) {
	for _, x := range items {
		if x.name == name {
			return x.value, true
		}
	}
	return nil, false
}

// named says whether both are lists of things with names, and gives them.
func named(a, b any) (x, y []item, ok bool) {
	read := func(v any) ([]item, bool) {
		list, ok := v.([]any)
		if !ok {
			return nil, false
		}
		var items []item
		for _, e := range list {
			m, ok := e.(map[string]any)
			if !ok {
				return nil, false
			}
			name, ok := m["name"].(string)
			if !ok {
				return nil, false
			}
			items = append(items, item{name, e})
		}
		return items, true
	}
	x, okX := read(a)
	y, okY := read(b)
	return x, y, okX && okY
}

// raw is JSON, or nothing for nothing.
func raw(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err))
	}
	return text
}

func printChanges(w io.Writer, s command.Streams, changes []change) error {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s: %s\n", c.Policy, c.Field)
		if c.Old != nil {
			b.WriteString("  " + s.Paint(command.Bad, "- "+string(c.Old)) + "\n")
		}
		if c.New != nil {
			b.WriteString("  " + s.Paint(command.Good, "+ "+string(c.New)) + "\n")
		}
	}
	if len(changes) == 0 {
		b.WriteString("no difference\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
