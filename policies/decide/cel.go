package decide

// CEL selectors, beside what package selector does.

import (
	"strings"

	"k8s.io/dynamic-resource-allocation/cel"

	"gpuladder.dev/ladder/policies/selector"
)

// maxExpressions bounds the cache of compiled expressions of a State.
const maxExpressions = 1024

func newExpressions() *cel.Cache { return selector.NewCache(maxExpressions) }

// compileExpression returns what is wrong with an expression, or nil.
func compileExpression(c *cel.Cache, expression string) error {
	if r := c.GetOrCompile(expression); r.Error != nil {
		return r.Error
	}
	return nil
}

// oneLine makes the text of a CEL error fit for a record.
func oneLine(err error) string {
	const most = 200
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
