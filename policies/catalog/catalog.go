// Package catalog is what Ladder ships as YAML: the admission policies that
// turn a label into a claim and guard Ladder's objects, the device classes,
// and policies to start from.
package catalog

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// FS holds the files as they are: admission/*.yaml, guard/*.yaml,
// policies/*.yaml and quota/*.yaml.
//
//go:embed admission/*.yaml guard/*.yaml policies/*.yaml quota/*.yaml
var FS embed.FS

// AnnotationClaimTemplate stands on every Pod that was admitted by its policy
// label: the ResourceClaimTemplate, <policy>-<revision>, that it was given.
const AnnotationClaimTemplate = "gpuladder.dev/claim-template"

// Accounts are the user names of Ladder's components, the only ones that may
// write its templates and records.
type Accounts struct {
	Controller string
	Scheduler  string
	// OtherSchedulers are more user names under which ladder-scheduler runs, such
	// as system:kube-scheduler where it is a static Pod of the control plane.
	OtherSchedulers []string
}

// DefaultAccounts are the service accounts of an installation in the namespace
// ladder-system; the files name them.
func DefaultAccounts() Accounts {
	return Accounts{
		Controller: "system:serviceaccount:ladder-system:ladder-controller",
		Scheduler:  "system:serviceaccount:ladder-system:ladder-scheduler",
	}
}

// Admission returns the objects of admission/*.yaml for an installation with
// these accounts, in an order in which they can be applied: what is referred
// to comes first, bindings last. AcceleratorPolicy's CRD must be there before.
func Admission(accounts Accounts) ([]*unstructured.Unstructured, error) {
	return decode("admission", accounts.replacer())
}

// Quota returns the objects of quota/*.yaml, which hold Pods of tenants at their
// gate until ladder-controller opens it, in an order in which they can be
// applied. TenantQuota's CRD must be there before. Without a controller that
// opens gates they must not be installed.
func Quota(accounts Accounts) ([]*unstructured.Unstructured, error) {
	return decode("quota", accounts.replacer())
}

// replacer puts these accounts in the place of the default ones.
func (a Accounts) replacer() *strings.Replacer {
	defaults := DefaultAccounts()
	listed := make([]string, 0, 1+len(a.OtherSchedulers))
	for _, name := range append([]string{a.Scheduler}, a.OtherSchedulers...) {
		listed = append(listed, strconv.Quote(name))
	}
	return strings.NewReplacer(
		strconv.Quote(defaults.Scheduler), strings.Join(listed, ", "), // where it stands in a list
		defaults.Controller, a.Controller, defaults.Scheduler, a.Scheduler,
	)
}

// decode returns the objects of a folder after the replacement, bindings last.
func decode(folder string, rename *strings.Replacer) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := eachDocument(folder, func(doc []byte) error {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(rename.Replace(string(doc))), &object.Object); err != nil {
			return err
		}
		objects = append(objects, object)
		return nil
	})
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return rank(a.GetKind()) - rank(b.GetKind())
	})
	return objects, err
}

func rank(kind string) int {
	if strings.HasSuffix(kind, "Binding") {
		return 1
	}
	return 0
}

// Policies returns the shipped policies, with defaults filled in, by name.
func Policies() ([]*v1alpha1.AcceleratorPolicy, error) {
	var policies []*v1alpha1.AcceleratorPolicy
	err := eachDocument("policies", func(doc []byte) error {
		policy := &v1alpha1.AcceleratorPolicy{}
		if err := yaml.UnmarshalStrict(doc, policy); err != nil {
			return err
		}
		policy.Default()
		policies = append(policies, policy)
		return nil
	})
	return policies, err
}

// eachDocument visits the YAML documents of a folder, files by name.
func eachDocument(folder string, visit func(doc []byte) error) error {
	names, err := fs.Glob(FS, folder+"/*.yaml")
	if err != nil {
		return fmt.Errorf("listing the catalog, %w", err)
	}
	for _, name := range names {
		raw, err := FS.ReadFile(name)
		if err != nil {
			return fmt.Errorf("reading the catalog, %w", err)
		}
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
		for {
			doc, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = visit(doc)
			}
			if err != nil {
				return fmt.Errorf("reading the catalog's %s, %w", name, err)
			}
		}
	}
	return nil
}
