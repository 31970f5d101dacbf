package decide

// Constraints between the devices of a claim: the same value of an attribute,
// or different ones. The rules are those of the in-tree allocator.

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

type constraintKind int

const (
	matchValues constraintKind = iota
	distinctValues
	// sameModel is a policy's mixModels: Never. With NVIDIA's driver it means
	// the same productName, which is what a claim can say.
	sameModel
)

// constraint holds between the devices of some requests of one claim.
type constraint struct {
	kind      constraintKind
	attribute string
	qualified resourceapi.QualifiedName
	domain    string
	id        resourceapi.QualifiedName
	requests  []string // empty: all of the claim
}

func newConstraint(kind constraintKind, attribute string, requests []string) *constraint {
	c := &constraint{kind: kind, attribute: attribute, qualified: resourceapi.QualifiedName(attribute), requests: requests}
	if domain, id, ok := strings.Cut(attribute, "/"); ok {
		c.domain, c.id = domain, resourceapi.QualifiedName(id)
	}
	return c
}

// appliesTo: a constraint names requests, or one alternative of a request.
func (c *constraint) appliesTo(a *alternative) bool {
	return len(c.requests) == 0 || slices.Contains(c.requests, a.request.name) || slices.Contains(c.requests, a.requestName())
}

// attrValue is the value of an attribute, in a form that compares.
type attrValue struct {
	kind byte // 's', 'i', 'b', 'v'; 'o': a kind that never equals anything; 0: absent
	text string
	n    int64
}

// valueOf is the device's value for the constraint.
func (c *constraint) valueOf(d *device) attrValue {
	if c.kind == sameModel {
		if d.model.name == "" {
			return attrValue{}
		}
		return attrValue{kind: 's', text: d.model.name}
	}
	a, ok := d.spec.Attributes[c.qualified]
	if !ok && c.domain == d.id.driver {
		a, ok = d.spec.Attributes[c.id]
	}
	switch {
	case !ok:
		return attrValue{}
	case a.StringValue != nil:
		return attrValue{kind: 's', text: *a.StringValue}
	case a.IntValue != nil:
		return attrValue{kind: 'i', n: *a.IntValue}
	case a.BoolValue != nil:
		if *a.BoolValue {
			return attrValue{kind: 'b', n: 1}
		}
		return attrValue{kind: 'b'}
	case a.VersionValue != nil:
		return attrValue{kind: 'v', text: *a.VersionValue}
	default:
		return attrValue{kind: 'o'}
	}
}

// allows says whether a device with the value v may join one with the value w.
func (c *constraint) allows(v, w attrValue) bool {
	if v.kind == 'o' {
		return false
	}
	if c.kind == distinctValues {
		return v != w
	}
	return v == w
}
