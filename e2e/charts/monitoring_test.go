package charts_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	_ "sigs.k8s.io/controller-runtime/pkg/controller" // registers the controller's metrics
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// metric is one that a part registers.
type metric struct {
	labels    []string
	histogram bool
}

// upstream are metrics that come with kube-scheduler and with Prometheus.
var upstream = map[string]metric{
	"scheduler_pending_pods": {labels: []string{"queue"}},
	"up":                     {},
}

var descriptor = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// registered finds the metrics of every part: the scheduler's by their
// declarations (…Opts{Subsystem: …, Name: …} and the labels after them), since
// it shows them only once they have a value; controller-runtime's by asking its
// registry; the driver's by reading them.
func registered(t *testing.T) map[string]metric {
	t.Helper()
	found := map[string]metric{}
	for name, m := range upstream {
		found[name] = m
	}
	registry, ok := metrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatalf("controller-runtime's registry is a %T", metrics.Registry)
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		if m := descriptor.FindStringSubmatch(d.String()); m != nil {
			found[m[1]] = metric{labels: strings.Split(m[2], ",")}
		}
	}
	declared(t, filepath.Join(repository(t), "scheduler"), found)
	exposed(t, runningParts(t)["ladder-driver"].metrics, found)
	return found
}

var (
	typeLine = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	sample   = regexp.MustCompile(`(?m)^([a-z_]+)\{([^}]*)\}`)
	label    = regexp.MustCompile(`([a-z_]+)="`)
)

// exposed adds the metrics that a running part shows.
func exposed(t *testing.T, url string, found map[string]metric) {
	t.Helper()
	body, err := read(t.Context(), url, "")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, s := range sample.FindAllStringSubmatch(body, -1) {
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			labels[s[1]] = append(labels[s[1]], l[1])
		}
	}
	for _, m := range typeLine.FindAllStringSubmatch(body, -1) {
		found[m[1]] = metric{labels: labels[m[1]], histogram: m[2] == "histogram"}
	}
}

// declared adds the metrics that the Go files of a module declare.
func declared(t *testing.T, module string, found map[string]metric) {
	t.Helper()
	err := filepath.WalkDir(module, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), "Opts{") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, raw, 0)
		if err != nil {
			return err
		}
		constants := map[string]string{}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, name := range spec.Names {
					if text, ok := literal(spec.Values[i], nil); ok {
						constants[name.Name] = text
					}
				}
			}
			return true
		})
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name, histogram := metricName(call.Args[0], constants)
			if name == "" {
				return true
			}
			m := metric{histogram: histogram}
			if len(call.Args) > 1 {
				if list, ok := call.Args[1].(*ast.CompositeLit); ok {
					for _, element := range list.Elts {
						if text, ok := literal(element, constants); ok {
							m.labels = append(m.labels, text)
						}
					}
				}
			}
			found[name] = m
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// metricName reads …Opts{Namespace, Subsystem, Name}, by value or by address.
func metricName(e ast.Expr, constants map[string]string) (name string, histogram bool) {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return "", false
	}
	kind := ""
	switch t := lit.Type.(type) {
	case *ast.SelectorExpr:
		kind = t.Sel.Name
	case *ast.Ident:
		kind = t.Name
	}
	if !strings.HasSuffix(kind, "Opts") {
		return "", false
	}
	parts := map[string]string{}
	for _, element := range lit.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			if field, ok := kv.Key.(*ast.Ident); ok {
				parts[field.Name], _ = literal(kv.Value, constants)
			}
		}
	}
	if parts["Name"] == "" {
		return "", false
	}
	return prometheus.BuildFQName(parts["Namespace"], parts["Subsystem"], parts["Name"]), kind == "HistogramOpts"
}

func literal(e ast.Expr, constants map[string]string) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok := constants[e.Name]
		return text, ok
	}
	return "", false
}

// queries returns every PromQL expression of the chart, by where it stands.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, rule := range alerts(t) {
		found["alert "+rule["alert"].(string)] = rule["expr"].(string)
	}
	text, _, _ := unstructured.NestedString(find(t, render(t, "full"), "ConfigMap", "ladder-dashboard").Object, "data", "ladder.json")
	var dashboard struct {
		UID    string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Fatalf("the dashboard is no JSON: %v", err)
	}
	for _, panel := range dashboard.Panels {
		for i, target := range panel.Targets {
			found["panel "+panel.Title+" "+strconv.Itoa(i)] = strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
		}
	}
	if dashboard.UID == "" || len(found) < 15 {
		t.Errorf("uid %q, %d queries", dashboard.UID, len(found))
	}
	return found
}

func alerts(t *testing.T) []map[string]any {
	t.Helper()
	rule := find(t, render(t, "full"), "PrometheusRule", "ladder")
	groups, _, err := unstructured.NestedSlice(rule.Object, "spec", "groups")
	if err != nil || len(groups) == 0 {
		t.Fatalf("groups %v, %v", groups, err)
	}
	var list []map[string]any
	for _, g := range groups {
		for _, r := range g.(map[string]any)["rules"].([]any) {
			list = append(list, r.(map[string]any))
		}
	}
	return list
}

// added are labels that Prometheus gives a series when it reads it.
var added = []string{"job", "instance", "pod", "namespace", "le"}

// Every query parses, and asks for metrics and labels that a part registers.
func TestQueriesNameRegisteredMetrics(t *testing.T) {
	known := registered(t)
	for _, name := range []string{"ladder_requests_total", "ladder_decision_seconds", "ladder_driver_devices", "controller_runtime_reconcile_errors_total"} {
		if len(known[name].labels) == 0 {
			t.Fatalf("%s is not found among the metrics: %v", name, sorted(known))
		}
	}
	for where, query := range queries(t) {
		for _, wrong := range judge(query, known) {
			t.Errorf("%s: %s: %s", where, wrong, query)
		}
	}
}

// judge says what is wrong with a query.
func judge(query string, known map[string]metric) (wrong []string) {
	expr, err := metricsql.Parse(query)
	if err != nil {
		return []string{err.Error()}
	}
	var grouping, available []string
	metricsql.VisitAll(expr, func(e metricsql.Expr) {
		switch e := e.(type) {
		case *metricsql.FuncExpr:
			if !slices.Contains(functions, e.Name) {
				wrong = append(wrong, e.Name+" is no function that is used here")
			}
		case *metricsql.AggrFuncExpr:
			grouping = append(grouping, e.Modifier.Args...)
		case *metricsql.MetricExpr:
			for _, filters := range e.LabelFilterss {
				name := ""
				for _, f := range filters {
					if f.Label == "__name__" {
						name = f.Value
					}
				}
				m, ok := known[name]
				if base, isBucket := strings.CutSuffix(name, "_bucket"); !ok && isBucket {
					m, ok = known[base]
					ok = ok && m.histogram
				}
				if !ok {
					wrong = append(wrong, "nobody registers "+name)
				}
				available = append(available, m.labels...)
				for _, f := range filters {
					if f.Label != "__name__" && !slices.Contains(added, f.Label) && !slices.Contains(m.labels, f.Label) {
						wrong = append(wrong, name+" has no label "+f.Label)
					}
				}
			}
		}
	})
	for _, label := range grouping {
		if !slices.Contains(added, label) && !slices.Contains(available, label) {
			wrong = append(wrong, "no metric has the label "+label)
		}
	}
	return wrong
}

// functions are those of PromQL that the chart uses; the parser knows more.
var functions = []string{"rate", "increase", "histogram_quantile", "absent"}

// The judge can find fault.
func TestJudge(t *testing.T) {
	known := map[string]metric{"a_total": {labels: []string{"kind"}}, "b_seconds": {histogram: true}}
	for query, says := range map[string]string{
		"sum by (kind) (rate(a_total[5m])) > 0":                             "",
		"histogram_quantile(0.9, sum by (le) (rate(b_seconds_bucket[5m])))": "",
		`sum(rate(a_total{kind="x",job="y"}[5m]))`:                          "",
		"sum by (class) (rate(a_total[5m]))":                                "no metric has the label class",
		`rate(a_total{class="x"}[5m])`:                                      "a_total has no label class",
		"rate(c_total[5m])":                                                 "nobody registers c_total",
		"rate(a_total_bucket[5m])":                                          "nobody registers a_total_bucket",
		"rate(a_total[5m]":                                                  "unexpected token",
		"range_median(a_total[5m])":                                         "no function",
	} {
		wrong := strings.Join(judge(query, known), "; ")
		if (says == "") != (wrong == "") || !strings.Contains(wrong, says) {
			t.Errorf("%s: got %q, want %q", query, wrong, says)
		}
	}
}

// Each alert says what is wrong, how bad it is, and where to read on.
func TestAlertsHaveRunbooks(t *testing.T) {
	used := map[string]bool{}
	for _, rule := range alerts(t) {
		name := rule["alert"].(string)
		url, _, _ := unstructured.NestedString(rule, "annotations", "runbook_url")
		page, ok := strings.CutPrefix(url, "https://runbooks.example.com/ladder/")
		if !ok {
			t.Errorf("%s links to %q", name, url)
			continue
		}
		used[page] = true
		text, err := os.ReadFile(filepath.Join(repository(t), "docs", "runbooks", page))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !strings.HasPrefix(string(text), "# "+name+"\n") {
			t.Errorf("the runbook %s is not about %s", page, name)
		}
		if severity, _, _ := unstructured.NestedString(rule, "labels", "severity"); severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", name, severity)
		}
		if summary, _, _ := unstructured.NestedString(rule, "annotations", "summary"); !strings.HasSuffix(summary, ".") {
			t.Errorf("%s has the summary %q", name, summary)
		}
	}
	pages, err := filepath.Glob(filepath.Join(repository(t), "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(raw), "# Ladder") && !used[filepath.Base(page)] {
			t.Errorf("%s is the runbook of no alert", page)
		}
	}
}

// Each ServiceMonitor finds a Service of the chart, and the port there.
func TestServiceMonitorsFindServices(t *testing.T) {
	objects := render(t, "full")
	monitors := 0
	for _, object := range objects {
		if object.GetKind() != "ServiceMonitor" {
			continue
		}
		monitors++
		service := find(t, objects, "Service", object.GetName())
		wanted, _, _ := unstructured.NestedStringMap(object.Object, "spec", "selector", "matchLabels")
		if len(wanted) == 0 {
			t.Errorf("%s selects everything", key(object))
		}
		for label, v := range wanted {
			if service.GetLabels()[label] != v {
				t.Errorf("%s does not select its Service: %s is %q there", key(object), label, service.GetLabels()[label])
			}
		}
		endpoints, _, _ := unstructured.NestedSlice(object.Object, "spec", "endpoints")
		ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
		if len(endpoints) != 1 || len(ports) != 1 || endpoints[0].(map[string]any)["port"] != ports[0].(map[string]any)["name"] {
			t.Errorf("%s reads %v, the Service has %v", key(object), endpoints, ports)
		}
		if object.GetLabels()["release"] != "prometheus" {
			t.Errorf("%s lacks the labels of the values", key(object))
		}
	}
	if monitors != 3 {
		t.Errorf("got %d ServiceMonitors, want 3", monitors)
	}
}
