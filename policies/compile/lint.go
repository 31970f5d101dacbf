package compile

import (
	"fmt"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Warning is something that is allowed and probably not meant.
type Warning struct {
	// Field is the path under the policy, such as spec.tiers[0].selectors[1].
	Field string `json:"field"`
	// Message says what can happen and what to write instead.
	Message string `json:"message"`
}

// Lint warns of free selectors that read an attribute or a capacity without
// asking whether it is there. On a device without it they fail with an error:
// to ladder-scheduler that device is then not eligible, but the stock
// scheduler leaves the whole Pod pending. Selectors that do not compile are
// left to [Check].
func Lint(spec *v1alpha1.AcceleratorPolicySpec) []Warning {
	var warnings []Warning
	for _, s := range freeSelectors(spec, field.NewPath("spec")) {
		result := compileSelector(s.expression)
		if result.Error != nil {
			continue
		}
		tree, issues := result.Environment.Compile(s.expression)
		if issues.Err() != nil {
			continue
		}
		g := guards{reported: sets.New[reference]()}
		g.walk(tree.NativeRep().Expr(), nil)
		for _, r := range g.unguarded {
			warnings = append(warnings, Warning{Field: s.path.String(), Message: fmt.Sprintf(
				"%s is read without a guard: on a device without it the stock scheduler leaves the Pod pending; write has(%s) && … or use .?%s.orValue(…)",
				r, r, r.name)})
		}
	}
	return warnings
}

// reference is one attribute or capacity: device.<field>[<domain>].<name>.
type reference struct{ field, domain, name string }

func (r reference) String() string {
	return fmt.Sprintf("device.%s[%q].%s", r.field, r.domain, r.name)
}

// guards finds the references that can fail. It follows CEL's logic, in which
// && and || are symmetric: one operand that decides the result hides the error
// of the other, on whichever side it stands.
type guards struct {
	unguarded []reference
	reported  sets.Set[reference]
}

func (g *guards) walk(e ast.Expr, guarded sets.Set[reference]) {
	if r, ok := referenceOf(e); ok {
		if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
			return
		}
		if !guarded.Has(r) && !g.reported.Has(r) {
			g.reported.Insert(r)
			g.unguarded = append(g.unguarded, r)
		}
		return
	}
	switch e.Kind() {
	case ast.CallKind:
		g.walkCall(e.AsCall(), guarded)
	case ast.SelectKind:
		g.walk(e.AsSelect().Operand(), guarded)
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			g.walk(element, guarded)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			g.walk(entry.AsMapEntry().Key(), guarded)
			g.walk(entry.AsMapEntry().Value(), guarded)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		for _, part := range []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			g.walk(part, guarded)
		}
	}
}

func (g *guards) walkCall(call ast.CallExpr, guarded sets.Set[reference]) {
	args := call.Args()
	switch call.FunctionName() {
	case operators.LogicalAnd, operators.LogicalOr:
		whenTrue := call.FunctionName() == operators.LogicalAnd
		g.walk(args[0], guarded.Union(presentWhen(args[1], whenTrue)))
		g.walk(args[1], guarded.Union(presentWhen(args[0], whenTrue)))
	case operators.Conditional:
		g.walk(args[0], guarded)
		g.walk(args[1], guarded.Union(presentWhen(args[0], true)))
		g.walk(args[2], guarded.Union(presentWhen(args[0], false)))
	default:
		if call.IsMemberFunction() {
			g.walk(call.Target(), guarded)
		}
		for _, arg := range args {
			g.walk(arg, guarded)
		}
	}
}

// presentWhen gives the references that are surely there when e has the value.
func presentWhen(e ast.Expr, value bool) sets.Set[reference] {
	if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() && value {
		if r, ok := referenceOf(e); ok {
			return sets.New(r)
		}
	}
	if e.Kind() != ast.CallKind {
		return nil
	}
	call := e.AsCall()
	args := call.Args()
	switch call.FunctionName() {
	case operators.LogicalNot:
		return presentWhen(args[0], !value)
	case operators.LogicalAnd, operators.LogicalOr:
		if (call.FunctionName() == operators.LogicalAnd) == value {
			return presentWhen(args[0], value).Union(presentWhen(args[1], value))
		}
	case operators.In:
		name, isText := text(args[0])
		if field, domain, ok := domainOf(args[1]); ok && isText && value {
			return sets.New(reference{field, domain, name})
		}
	}
	return nil
}

// referenceOf recognises device.<field>[<domain>].<name>, the same with the
// name in brackets, and has() of it.
func referenceOf(e ast.Expr) (reference, bool) {
	switch e.Kind() {
	case ast.SelectKind:
		s := e.AsSelect()
		if field, domain, ok := domainOf(s.Operand()); ok {
			return reference{field, domain, s.FieldName()}, true
		}
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index {
			break
		}
		name, isText := text(call.Args()[1])
		if field, domain, ok := domainOf(call.Args()[0]); ok && isText {
			return reference{field, domain, name}, true
		}
	}
	return reference{}, false
}

// domainOf recognises device.<field>[<domain>], which never fails: a domain
// that a device does not have is an empty map.
func domainOf(e ast.Expr) (field, domain string, ok bool) {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.Index {
		return "", "", false
	}
	args := e.AsCall().Args()
	if args[0].Kind() != ast.SelectKind || args[0].AsSelect().Operand().Kind() != ast.IdentKind ||
		args[0].AsSelect().Operand().AsIdent() != "device" {
		return "", "", false
	}
	domain, ok = text(args[1])
	return args[0].AsSelect().FieldName(), domain, ok
}

func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}
