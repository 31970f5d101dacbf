package charts_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
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
	labels []string
	// kind is its type; empty where that is not known.
	kind string
}

const histogram = "histogram"

// upstream are metrics that come with kube-scheduler and with Prometheus.
var upstream = map[string]metric{
	"scheduler_pending_pods": {labels: []string{"queue"}},
	"up":                     {},
}

var descriptor = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// registered finds the metrics of every part: those of the scheduler, of the
// controller and of NVIDIA's GPUs by their declarations (…Opts{Subsystem: …,
// Name: …} and the labels after them), since they are shown only once they have
// a value; controller-runtime's by asking its registry; the driver's by reading
// them.
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
	for _, module := range []string{"scheduler", "controllers", "drivers/nvml"} {
		declared(t, filepath.Join(repository(t), module), found)
	}
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
		slices.Sort(labels[m[1]])
		found[m[1]] = metric{labels: slices.Compact(labels[m[1]]), kind: m[2]}
	}
}

// declared adds the metrics that the Go files of a module declare, by Opts or by
// a function of the same file that makes a metric of a name and labels.
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
		makers := makers(file, constants)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if function, ok := call.Fun.(*ast.Ident); ok && makers[function.Name].kind != "" {
				if name, ok := literal(call.Args[0], constants); ok {
					maker := makers[function.Name]
					found[prometheus.BuildFQName(maker.namespace, maker.subsystem, name)] = metric{
						kind: maker.kind, labels: literals(call.Args[min(2, len(call.Args)):], constants), // after the help
					}
				}
				return true
			}
			o := optsOf(call.Args[0], constants)
			if o.name == "" {
				return true
			}
			m := metric{kind: o.kind}
			if len(call.Args) > 1 {
				if list, ok := call.Args[1].(*ast.CompositeLit); ok {
					m.labels = literals(list.Elts, constants)
				}
			}
			found[prometheus.BuildFQName(o.namespace, o.subsystem, o.name)] = m
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// opts are what is read of …Opts{Namespace, Subsystem, Name}.
type opts struct{ kind, namespace, subsystem, name string }

// makers are the functions of a file whose first parameter, a metric's name, goes
// into the Opts that they make.
func makers(file *ast.File, constants map[string]string) map[string]opts {
	found := map[string]opts{}
	for _, d := range file.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Recv != nil || function.Type.Params.NumFields() == 0 || function.Body == nil {
			continue
		}
		const unnamed = "\x00"
		known := maps.Clone(constants)
		known[function.Type.Params.List[0].Names[0].Name] = unnamed
		ast.Inspect(function.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 {
				if o := optsOf(call.Args[0], known); o.name == unnamed {
					found[function.Name.Name] = o
				}
			}
			return true
		})
	}
	return found
}

// optsOf reads …Opts{Namespace, Subsystem, Name}, by value or by address.
func optsOf(e ast.Expr, constants map[string]string) opts {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return opts{}
	}
	kind := ""
	switch t := lit.Type.(type) {
	case *ast.SelectorExpr:
		kind = t.Sel.Name
	case *ast.Ident:
		kind = t.Name
	}
	kind, ok = strings.CutSuffix(kind, "Opts")
	if !ok {
		return opts{}
	}
	parts := map[string]string{}
	for _, element := range lit.Elts {
		if kv, ok := element.(*ast.KeyValueExpr); ok {
			if field, ok := kv.Key.(*ast.Ident); ok {
				parts[field.Name], _ = literal(kv.Value, constants)
			}
		}
	}
	return opts{strings.ToLower(kind), parts["Namespace"], parts["Subsystem"], parts["Name"]}
}

func literals(list []ast.Expr, constants map[string]string) (texts []string) {
	for _, e := range list {
		if text, ok := literal(e, constants); ok {
			texts = append(texts, text)
		}
	}
	return texts
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
	for _, name := range []string{
		"ladder_requests_total", "ladder_decision_seconds", "ladder_driver_devices", "ladder_driver_xids_total",
		"ladder_tenant_waiting_pods", "ladder_tenant_wait_seconds", "ladder_unhealthy_pods_total", "controller_runtime_reconcile_errors_total",
	} {
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
					ok = ok && m.kind == histogram
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
	known := map[string]metric{"a_total": {labels: []string{"kind"}}, "b_seconds": {kind: histogram}}
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

// docs/reference/metrics.md lists every metric of Ladder's own, with its type
// and labels, and no other.
func TestMetricsReference(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(repository(t), "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]metric{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(ladder_\\w+)` \\| (\\w+) \\| ([^|]*) \\| .+ \\|$").FindAllStringSubmatch(string(raw), -1) {
		m := metric{kind: row[2]}
		for _, label := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[3], -1) {
			m.labels = append(m.labels, label[1])
		}
		if _, twice := listed[row[1]]; twice {
			t.Errorf("%s is listed twice", row[1])
		}
		listed[row[1]] = m
	}
	own := 0
	for name, m := range registered(t) {
		if !strings.HasPrefix(name, "ladder_") {
			continue
		}
		own++
		doc, ok := listed[name]
		switch {
		case !ok:
			t.Errorf("%s, a %s with the labels %v, is not listed", name, m.kind, m.labels)
		case doc.kind != m.kind || !slices.Equal(slices.Sorted(slices.Values(doc.labels)), slices.Sorted(slices.Values(m.labels))):
			t.Errorf("%s is listed as a %s with the labels %v, and is a %s with %v", name, doc.kind, doc.labels, m.kind, m.labels)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("%s is listed, but nobody registers it", name)
	}
	if own < 30 {
		t.Errorf("only %d metrics were found", own)
	}
}

// Each alert says what is wrong, how bad it is, and where to read on, and stands
// in the runbooks' index.
func TestAlertsHaveRunbooks(t *testing.T) {
	used := map[string]bool{}
	index, err := os.ReadFile(filepath.Join(repository(t), "docs", "runbooks", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
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
		severity, _, _ := unstructured.NestedString(rule, "labels", "severity")
		if severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", name, severity)
		}
		if row := "| [" + name + "](" + page + ") | " + severity + " |"; !strings.Contains(string(index), row) {
			t.Errorf("docs/runbooks/README.md has no row that begins with %q", row)
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
