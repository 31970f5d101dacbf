// Package crds holds the CustomResourceDefinitions of the API, as generated
// from the types in package v1alpha1, for programs that install them.
package crds

import (
	"embed"
	"fmt"
	"io/fs"
)

// FS holds one file for each kind, <group>_<plural>.yaml.
//
//go:embed *.yaml
var FS embed.FS

// All returns the definitions as YAML, one document for each kind, in the
// order of their names.
func All() [][]byte {
	names, err := fs.Glob(FS, "*.yaml")
	if err != nil {
		panic(fmt.Sprintf("listing embedded CRDs, %v", err)) // the pattern is a constant
	}
	docs := make([][]byte, 0, len(names))
	for _, name := range names {
		doc, err := FS.ReadFile(name)
		if err != nil {
			panic(fmt.Sprintf("reading embedded CRD %s, %v", name, err)) // it was listed a moment ago
		}
		docs = append(docs, doc)
	}
	return docs
}
