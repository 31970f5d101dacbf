package compile

import (
	"fmt"
	"regexp"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// features are those of a 1.37 API server with default feature gates, which
// judges the templates.
var features = dracel.Features{EnableConsumableCapacity: true}

// Check says everything that keeps a policy from being compiled, by field
// under "spec": what the API refuses (over 8 tiers, over 32 devices,
// contradictions), and free selectors that don't compile, are not of type bool
// or could cost more than Kubernetes allows. It expects defaults to have been
// filled in.
func Check(spec *v1alpha1.AcceleratorPolicySpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := spec.Validate(path)
	for _, s := range freeSelectors(spec, path) {
		if err := checkSelector(s.path, s.expression); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

type freeSelector struct {
	path       *field.Path
	expression string
}

// freeSelectors are the expressions that the policy's author wrote.
func freeSelectors(spec *v1alpha1.AcceleratorPolicySpec, path *field.Path) []freeSelector {
	var selectors []freeSelector
	add := func(path *field.Path, expressions []string) {
		for i, e := range expressions {
			selectors = append(selectors, freeSelector{path.Index(i), e})
		}
	}
	add(path.Child("constraints", "selectors"), spec.Constraints.Selectors)
	for i := range spec.Tiers {
		add(path.Child("tiers").Index(i).Child("selectors"), spec.Tiers[i].Selectors)
	}
	return selectors
}

func checkSelector(path *field.Path, expression string) *field.Error {
	if expression == "" || len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return nil // reported by the API's own validation; compiling 50 MB serves nobody
	}
	result := compileSelector(expression)
	switch {
	case result.Error != nil:
		return field.Invalid(path, expression, compileError(result.Error.Detail))
	case result.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.Invalid(path, expression, fmt.Sprintf("could cost more than the %d units that a selector may",
			resourcev1.CELSelectorExpressionMaxCost))
	}
	return nil
}

func compileSelector(expression string) dracel.CompilationResult {
	env := environment.NewExpressions
	return dracel.GetCompiler(features).CompileCELExpression(expression, dracel.Options{EnvType: &env})
}

var celIssue = regexp.MustCompile(`ERROR: <input>:(\d+):(\d+): ([^\n]*)`)

// compileError puts CEL's report, which draws the expression over several
// lines, on one line: every issue with line and column.
func compileError(detail string) string {
	issues := celIssue.FindAllStringSubmatch(detail, -1)
	if len(issues) == 0 {
		return strings.Join(strings.Fields(detail), " ")
	}
	parts := make([]string, 0, len(issues))
	for _, i := range issues {
		parts = append(parts, fmt.Sprintf("line %s column %s: %s", i[1], i[2], i[3]))
	}
	return "does not compile, " + strings.Join(parts, "; ")
}
