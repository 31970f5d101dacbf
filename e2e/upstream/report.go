package upstream

// The report for people.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
)

// About is what a report says besides the comparison.
type About struct {
	// Version is Kubernetes' version, Cluster the kind of cluster, Filter the
	// label filter.
	Version, Cluster, Filter string
	// Narrowed says that only a part was run: a focus, a shard.
	Narrowed string
	// LeftOut are the tests of the area that the filter leaves out.
	LeftOut []Spec
	// Substitutes say which images were replaced by what.
	Substitutes []string
}

// group is a set of tests with one reason.
type group struct {
	Reason string
	Names  []string
}

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"short": short, "reason": cell, "minutes": func(r *Run) string { return fmt.Sprintf("%.0f min", r.Took.Minutes()) },
	"passed":  func(r *Run) int { return r.Count(Passed) },
	"failed":  func(r *Run) int { return r.Count(Failed) },
	"skipped": func(r *Run) int { return r.Count(Skipped) },
	"notRun":  func(r *Run) int { return r.Count(NotRun) },
	"len":     func(p []Pair) int { return len(p) },
}).Parse(`# Kubernetes' own e2e suite for DRA, with ladder-scheduler as the default scheduler

Suite: ` + "`k8s.io/kubernetes/test/e2e/dra`" + ` {{.About.Version}}, label filter ` + "`{{.About.Filter}}`" + `{{with .About.Narrowed}}, {{.}}{{end}}.
Cluster: {{.About.Cluster}}. Written by ` + "`ladder-lab upstream`" + `.

| | {{.C.Stock.Scheduler}} | {{.C.Ours.Scheduler}} |
|---|---|---|
| passed | {{passed .C.Stock}} | {{passed .C.Ours}} |
| failed | {{failed .C.Stock}} | {{failed .C.Ours}} |
| skipped by the test | {{skipped .C.Stock}} | {{skipped .C.Ours}} |
| not run | {{notRun .C.Stock}} | {{notRun .C.Ours}} |
| time | {{minutes .C.Stock}} | {{minutes .C.Ours}} |

**{{if .C.Worse}}{{len .C.Worse}} tests pass with {{.C.Stock.Scheduler}} and not with {{.C.Ours.Scheduler}}.{{else if .C.Same}}Every test that passes with {{.C.Stock.Scheduler}} passes with {{.C.Ours.Scheduler}}: {{len .C.Same}}.{{else}}Nothing passed, so nothing was compared.{{end}}**
{{range .Trouble}}
Outside of tests: {{.}}
{{end}}
{{- define "pairs"}}
| test | with the stock scheduler | with ours |
|---|---|---|
{{range .}}| {{short .Name}} | {{.Stock.Outcome}}{{with reason .Stock.Reason}}: {{.}}{{end}} | {{.Ours.Outcome}}{{with reason .Ours.Reason}}: {{.}}{{end}} |
{{end}}{{end}}
{{- with .C.Worse}}
## Worse with ours
{{template "pairs" .}}{{end}}
{{- with .C.Better}}
## Passed with ours only
{{template "pairs" .}}{{end}}
{{- with .C.Neither}}
## Unable to run here, with either scheduler
{{template "pairs" .}}{{end}}
{{- with .Again}}
## Passed at a further attempt

| test | attempts with the stock scheduler | with ours |
|---|---|---|
{{range .}}| {{short .Name}} | {{.Stock.Attempts}} | {{.Ours.Attempts}} |
{{end}}{{end}}
{{- with .About.Substitutes}}
## Images
{{range .}}
- {{.}}{{end}}
{{end}}
{{- with .LeftOut}}
## Left out by the filter
{{range .}}
{{.Reason}}:
{{range .Names}}- {{short .}}
{{end}}{{end}}{{end}}
{{- with .C.Same}}
## Passed with both

{{range .}}- {{short .Name}}
{{end}}{{end}}`))

// Report writes the comparison as Markdown.
func Report(w io.Writer, c *Comparison, about About) error {
	data := map[string]any{"C": c, "About": about, "LeftOut": leftOut(about.LeftOut), "Again": again(c), "Trouble": trouble(c)}
	if err := reportTemplate.Execute(w, data); err != nil {
		return fmt.Errorf("writing the report, %w", err)
	}
	return nil
}

// again are the tests that needed more than one attempt in a run.
func again(c *Comparison) []Pair {
	var pairs []Pair
	for _, p := range slices.Concat(c.Same, c.Better, c.Worse) {
		if p.Stock.Outcome == Passed && p.Stock.Attempts > 1 || p.Ours.Outcome == Passed && p.Ours.Attempts > 1 {
			pairs = append(pairs, p)
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return byName(a.Spec, b.Spec) })
	return pairs
}

func trouble(c *Comparison) []string {
	var all []string
	for _, r := range []*Run{c.Stock, c.Ours} {
		for _, t := range r.Trouble {
			all = append(all, r.Scheduler+": "+t)
		}
	}
	return all
}

// leftOut groups tests by the labels that keep them out.
func leftOut(specs []Spec) []group {
	names := map[string][]string{}
	for _, s := range specs {
		why := because(s.Labels)
		names[why] = append(names[why], s.Name)
	}
	var groups []group
	for why, tests := range names {
		groups = append(groups, group{Reason: why, Names: tests})
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.Reason, b.Reason) })
	return groups
}

// because says in words what the labels of a test mean that keeps it out.
func because(labels []string) string {
	var off, features, other []string
	for _, l := range labels {
		feature, isFeature := strings.CutPrefix(l, "Feature:")
		gate, isGate := strings.CutPrefix(l, "FeatureGate:")
		switch {
		case isGate:
			if gate != "DynamicResourceAllocation" { // locked on, and on every test
				off = append(off, gate)
			}
		case isFeature && feature != "DynamicResourceAllocation" && feature != "OffByDefault":
			features = append(features, feature)
		case l == "Slow", l == "Flaky":
			other = append(other, strings.ToLower(l))
		}
	}
	var why []string
	if slices.Contains(labels, "Feature:OffByDefault") {
		why = append(why, "needs a feature gate that is off by default, among "+strings.Join(off, ", "))
	}
	if len(features) > 0 {
		why = append(why, "needs "+strings.Join(features, ", "))
	}
	if len(other) > 0 {
		why = append(why, "marked "+strings.Join(other, ", "))
	}
	if len(why) == 0 {
		why = append(why, "needs a kubelet")
	}
	text := strings.Join(why, "; ")
	return strings.ToUpper(text[:1]) + text[1:]
}

// short drops what every name of the area begins with and the labels in it.
func short(name string) string {
	name = strings.TrimPrefix(name, "[sig-node] ")
	var words []string
	for word := range strings.FieldsSeq(name) {
		if strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]") {
			continue
		}
		words = append(words, word)
	}
	return cell(strings.Join(words, " "))
}

// cell makes text fit a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "`", "'").Replace(text)
}
