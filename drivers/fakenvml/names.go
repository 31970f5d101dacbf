package fakenvml

// This file is what may be named: the numbers of a GPU's state and the functions
// of the library, as its sources have them, so that both sides agree.

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// UnknownNameError occurs where something is named that the library has not.
type UnknownNameError struct {
	// What it would be, such as "function", and what it was called.
	What, Name string
	// Known are the names that there are; none where they are too many to tell.
	Known []string
}

func (e *UnknownNameError) Error() string {
	said := fmt.Sprintf("there is no %s %q", e.What, e.Name)
	if len(e.Known) > 0 {
		said += "; there are " + strings.Join(e.Known, ", ")
	}
	return said
}

var (
	ofStates   = regexp.MustCompile(`#define GPU_STATES\(X\)((?:.*\\\n)*.*\n)`)
	ofState    = regexp.MustCompile(`X\((\w+)\)`)
	ofFunction = regexp.MustCompile(`(?m)^(?:EXPORT \w+ |[A-Z_]+\()(nvml[A-Z]\w*)`)
	ofVersion  = regexp.MustCompile(`_v[0-9]+$`)
)

// states are the names of the numbers of a GPU's state, sorted.
var states = sync.OnceValue(func() []string {
	source, err := sources.ReadFile("lib/fakenvml.h")
	if err != nil {
		panic(err) // it is embedded
	}
	var names []string
	for _, found := range ofState.FindAllSubmatch(ofStates.Find(source), -1) {
		if name := string(found[1]); name != "X" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
})

// functions are those that a fault can be told to: what the library exports, and
// the same without their versions.
var functions = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	files, err := fs.Glob(sources, "lib/*.c")
	if err != nil {
		panic(err) // the pattern is right
	}
	for _, file := range files {
		source, err := sources.ReadFile(file)
		if err != nil {
			panic(err)
		}
		for _, found := range ofFunction.FindAllSubmatch(source, -1) {
			names[string(found[1])] = true
			names[ofVersion.ReplaceAllString(string(found[1]), "")] = true
		}
	}
	return names
})

// checkState says whether a GPU's state has a number of that name.
func checkState(name string) error {
	if _, known := slices.BinarySearch(states(), name); !known {
		return &UnknownNameError{What: "number of a GPU's state", Name: name, Known: states()}
	}
	return nil
}

// checkFunction says whether faults can be told to a function; "*" is all.
func checkFunction(name string) error {
	if name != "*" && !functions()[name] {
		return &UnknownNameError{What: "function of NVML", Name: name}
	}
	return nil
}
