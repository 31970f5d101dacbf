package upstream

// Which tests run.

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Label filters, in Ginkgo's language.
const (
	// FilterAll are the tests of DRA that need nothing that Kubernetes leaves
	// off by default: a test of a feature gate that is off carries the label
	// Feature:OffByDefault.
	FilterAll = "DRA && Feature: isSubsetOf {DynamicResourceAllocation} && !Flaky && !Slow"
	// FilterControlPlane are those of them that need no kubelet: the suite
	// marks the others by Feature:DynamicResourceAllocation.
	FilterControlPlane = "DRA && Feature: isEmpty && !Flaky && !Slow"
	// filterArea are all tests of the area, to tell which ones are left out.
	filterArea = "DRA"
)

// Selection is a set of tests. All its parts must agree.
type Selection struct {
	// LabelFilter is an expression over labels.
	LabelFilter string
	// Focus and Skip are regular expressions over full names; empty means all
	// and none.
	Focus, Skip string
	// Shard takes one part out of what the others leave.
	Shard Shard
}

// Shard is part Index (from 1) of Count. The zero value is everything.
type Shard struct{ Index, Count int }

// ParseShard reads "2/4"; "" is everything.
func ParseShard(text string) (Shard, error) {
	if text == "" {
		return Shard{}, nil
	}
	before, after, _ := strings.Cut(text, "/")
	index, err1 := strconv.Atoi(before)
	count, err2 := strconv.Atoi(after)
	if err1 != nil || err2 != nil || count < 1 || index < 1 || index > count {
		return Shard{}, fmt.Errorf("shard %q is not known; 2/4 is the second of four parts", text)
	}
	return Shard{Index: index, Count: count}, nil
}

// String is the text that ParseShard reads.
func (s Shard) String() string {
	if s.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.Index, s.Count)
}

// Has says whether the test at this place of the sorted list belongs to it.
// Neighbours, which often are variants of one another, go to different parts.
func (s Shard) Has(place int) bool {
	return s.Count == 0 || place%s.Count == s.Index-1
}

// Validate says what is wrong with the expressions that this package can judge;
// the label filter is judged by the suite.
func (s Selection) Validate() error {
	for name, expression := range map[string]string{"focus": s.Focus, "skip": s.Skip} {
		if _, err := regexp.Compile(expression); err != nil {
			return fmt.Errorf("reading %s, %w", name, err)
		}
	}
	return nil
}

// args are Ginkgo's flags for the selection, without the shard. prefix stands
// before each name: "ginkgo." for the suite itself.
func (s Selection) args(prefix string) []string {
	args := []string{"--" + prefix + "label-filter=" + s.LabelFilter}
	if s.Focus != "" {
		args = append(args, "--"+prefix+"focus="+s.Focus)
	}
	if s.Skip != "" {
		args = append(args, "--"+prefix+"skip="+s.Skip)
	}
	return args
}

// exactly selects tests by their names. Ginkgo matches the name of the suite, a
// space and the name of the test.
func exactly(names []string) Selection {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return Selection{Focus: "(^| )(" + strings.Join(quoted, "|") + ")$"}
}
