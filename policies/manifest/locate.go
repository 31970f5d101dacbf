package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strings"

	kjson "sigs.k8s.io/json"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// locate finds the first field, in the order of names, whose value does not
// fit the Go type, and says why. The decoder's own errors lack indices, and
// have no path at all where a type reads itself (quantities, times). It is
// only called after decoding has failed.
func locate(t reflect.Type, raw any, path string) (field, why string) {
	if raw == nil {
		return "", ""
	}
	if t.Kind() == reflect.Pointer {
		return locate(t.Elem(), raw, path)
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return try(t, raw, path)
	}
	switch t.Kind() {
	case reflect.Struct:
		m, ok := raw.(map[string]any)
		if !ok {
			return path, mismatch(raw, "a mapping")
		}
		fields := jsonFields(t)
		for _, key := range sortedKeys(m) {
			if ft, ok := fields[key]; ok {
				if f, why := locate(ft, m[key], child(path, key)); why != "" {
					return f, why
				}
			}
		}
		return "", ""
	case reflect.Map:
		m, ok := raw.(map[string]any)
		if !ok {
			return path, mismatch(raw, "a mapping")
		}
		for _, key := range sortedKeys(m) {
			if f, why := locate(t.Elem(), m[key], fmt.Sprintf("%s[%s]", path, key)); why != "" {
				return f, why
			}
		}
		return "", ""
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return try(t, raw, path)
		}
		list, ok := raw.([]any)
		if !ok {
			return path, mismatch(raw, "a list")
		}
		for i, v := range list {
			if f, why := locate(t.Elem(), v, fmt.Sprintf("%s[%d]", path, i)); why != "" {
				return f, why
			}
		}
		return "", ""
	}
	return try(t, raw, path)
}

// try decodes one value by itself.
func try(t reflect.Type, raw any, path string) (field, why string) {
	text, err := json.Marshal(raw)
	if err != nil {
		return path, err.Error()
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, reflect.New(t).Interface()); err != nil {
		switch t.Kind() {
		case reflect.String:
			want := "a string (put it in quotes)"
			if _, isBool := raw.(bool); isBool {
				want = "a string (put it in quotes: y, n, yes, no, on and off are booleans in YAML)"
			}
			return path, mismatch(raw, want)
		case reflect.Bool:
			return path, mismatch(raw, "true or false")
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			return path, mismatch(raw, fmt.Sprintf("a whole number that fits %s", t.Kind()))
		}
		return path, fmt.Sprintf("%s is not valid here: %v", short(raw), err)
	}
	return "", ""
}

// mismatch says what was found and what is wanted.
func mismatch(raw any, want string) string {
	return fmt.Sprintf("wrong type, %s; give %s", short(raw), want)
}

// short names a value in a few words.
func short(raw any) string {
	switch v := raw.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		if len(v) > 60 {
			return "a long string"
		}
		return fmt.Sprintf("the string %q", v)
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	default:
		text, _ := json.Marshal(v)
		return "the number " + string(text)
	}
}

// jsonFields maps the JSON names of a struct to their types, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || (!f.IsExported() && !f.Anonymous):
		case name == "" && f.Anonymous:
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			for k, v := range jsonFields(inner) {
				if _, taken := fields[k]; !taken {
					fields[k] = v
				}
			}
		case name == "":
			fields[f.Name] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
