package checkpoint

// This file finds the names under which encoding/json knows a struct's fields.

import (
	"reflect"
	"strings"
)

// names of the fields of what a pointer to a struct points to.
func names(pointer any) map[string]bool {
	known := map[string]bool{}
	kind := reflect.TypeOf(pointer).Elem()
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		if name != "" {
			known[name] = true
		}
	}
	return known
}
