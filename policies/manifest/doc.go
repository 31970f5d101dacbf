// Package manifest reads Kubernetes objects from YAML and JSON text, as a
// person writes them or as `kubectl get -o yaml` prints them, and refuses what
// is wrong with the place where it is wrong: file, document, item of a List,
// object and field path.
//
// Reading is strict. An unknown field, a field given twice, a value of the
// wrong type, two objects of one name, a CEL expression that does not compile,
// a Pod that names a policy which is not there: each is an [Error], never a
// guess. Kinds that Ladder does not read are skipped and reported once, by
// [Set.Warnings]. Of objects that a cluster made, and only of them, it is no
// error that what they name is not there ([Set.Check]), or that a policy's CEL
// does not compile ([Set.Uncompiled]).
//
// # Limits
//
// All input of one call together may have [DefaultMaxBytes]; [Options].MaxBytes
// raises or lowers that. Nesting deeper than 10,000 levels and documents that
// are mostly expanded aliases are refused by the YAML library.
//
// # Documents
//
// Documents are numbered from 1 in each file, by the lines `---` that separate
// them; a document that holds only comments is counted and skipped. A `---`
// before any other text opens the first document.
//
// # Versions
//
// The objects of Dynamic Resource Allocation are read in resource.k8s.io/v1
// only. Older versions are refused with the command that prints v1, since the
// API server converts them and a second converter could disagree with it.
package manifest
