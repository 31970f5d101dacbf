package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// operator is a cluster with the Prometheus operator.
const operator = "--api-versions=monitoring.coreos.com/v1/PrometheusRule,monitoring.coreos.com/v1/ServiceMonitor"

// What is not a value, or not a good one, is refused in words that name it.
func TestBadValuesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		says []string
	}{
		"an unknown part":                {[]string{"--set=schedular.replicas=2"}, []string{"schedular"}},
		"an unknown value of a part":     {[]string{"--set=scheduler.replica=2"}, []string{"scheduler", "replica"}},
		"an unknown global value":        {[]string{"--set=global.image.tags=x"}, []string{"tags"}},
		"an unknown nested value":        {[]string{"--set=driver.devicePlugin.resource=x"}, []string{"resource"}},
		"an unknown mode":                {[]string{"--set=global.schedulerMode=third"}, []string{"schedulerMode"}},
		"no scheduler":                   {[]string{"--set=scheduler.replicas=0"}, []string{"replicas"}},
		"a word for a number":            {[]string{"--set-string=controller.replicas=two"}, []string{"replicas"}},
		"an age that is none":            {[]string{"--set=controller.records.maxAge=week"}, []string{"maxAge"}},
		"fewer records than none":        {[]string{"--set=controller.records.perNamespace=-1"}, []string{"perNamespace"}},
		"no patience":                    {[]string{"--set=controller.records.patience=0s"}, []string{"patience"}},
		"a size that is none":            {[]string{"--set=scheduler.journal.size=much"}, []string{"size"}},
		"a request that is none":         {[]string{"--set=driver.resources.requests.cpu=one"}, []string{"cpu"}},
		"a relative folder":              {[]string{"--set=driver.kubeletDir=var/lib/kubelet"}, []string{"kubeletDir"}},
		"a driver name with a quote":     {[]string{`--set=policies.guard.drivers={gpu'}`}, []string{"drivers"}},
		"no guarded driver":              {[]string{"--set-json=policies.guard.drivers=[]"}, []string{"drivers"}},
		"a policy that is not there":     {[]string{"--set=policies.catalog={h200-first}"}, []string{"catalog"}},
		"a guard as a word":              {[]string{"--set-string=policies.guard.enabled=yes"}, []string{"enabled"}},
		"replacing with one scheduler":   {[]string{"--set=global.schedulerMode=replace"}, []string{"scheduler.replicas", "at least 2"}},
		"two writers of a volume":        {[]string{"--set=scheduler.replicas=2,scheduler.journal.storage=persistentVolumeClaim"}, []string{"scheduler.journal.storage", "emptyDir"}},
		"policies before their kind":     {[]string{"--set=policies.catalog={h100-first}"}, []string{"policies.catalog", "helm upgrade"}},
		"ServiceMonitors without a kind": {[]string{"--set=monitoring.serviceMonitors.enabled=true"}, []string{"Prometheus operator first"}},
		"rules without a kind":           {[]string{"--set=monitoring.alerts.enabled=true"}, []string{"Prometheus operator first"}},
		"a health period of none":        {[]string{"--set=driver.health.period=0s"}, []string{"health", "period"}},
		"a health period too long":       {[]string{"--set=driver.health.period=13s"}, []string{"health", "period"}},
		"a health period of a minute":    {[]string{"--set=driver.health.period=1m"}, []string{"health", "period"}},
		"no recovery":                    {[]string{"--set=driver.health.recovery=0s"}, []string{"health", "recovery"}},
		"no recovery in two words":       {[]string{"--set=driver.health.recovery=0m00s"}, []string{"health", "recovery"}},
		"a part that no one expects":     {[]string{"--set=monitoring.alerts.expected={driver}"}, []string{"expected"}},
		"alerts without a source":        {[]string{"--set=monitoring.alerts.enabled=true", operator}, []string{"monitoring.alerts.expected", "monitoring.serviceMonitors.enabled"}},
		"alerts for a part that is off":  {[]string{"--set=monitoring.alerts.enabled=true,monitoring.serviceMonitors.enabled=true,scheduler.enabled=false", operator}, []string{"monitoring.alerts.expected", "scheduler"}},
		"an old cluster":                 {[]string{"--kube-version=1.36.4"}, []string{"1.37"}},
	} {
		for _, program := range []string{binaries.Helm3, binaries.Helm4} {
			t.Run(program+"/"+name, func(t *testing.T) {
				_, err := helm(t, program).Template(t.Context(), tc.args...)
				if err == nil {
					t.Fatal("accepted")
				}
				for _, word := range tc.says {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("the refusal lacks %q: %v", word, err)
					}
				}
			})
		}
	}
}

// parts returns the folders that hold values: the chart's and its parts', by
// the prefix of their values.
func parts(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{"": chartDir(t)}
	files, err := filepath.Glob(filepath.Join(chartDir(t), "charts", "*", "values.yaml"))
	if err != nil || len(files) != 6 {
		t.Fatalf("parts: %v, %v", files, err)
	}
	for _, f := range files {
		dirs[filepath.Base(filepath.Dir(f))+"."] = filepath.Dir(f)
	}
	return dirs
}

type valuesSchema struct {
	Type                 any                      `json:"type"`
	Ref                  string                   `json:"$ref"`
	Properties           map[string]*valuesSchema `json:"properties"`
	AdditionalProperties any                      `json:"additionalProperties"`
	Items                *valuesSchema            `json:"items"`
	Definitions          map[string]*valuesSchema `json:"definitions"`
}

// follow resolves a reference within the same file.
func (s *valuesSchema) follow(root *valuesSchema) *valuesSchema {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		return root.Definitions[name]
	}
	return s
}

func readSchema(t *testing.T, dir string) *valuesSchema {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s valuesSchema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// Schema, values and their comments speak of the same: each value has a schema
// and a comment, each schema a value, and every object is closed.
func TestSchemasMatchValues(t *testing.T) {
	for prefix, dir := range parts(t) {
		root := readSchema(t, dir)
		var documented []string
		for _, v := range readValues(t, dir) {
			documented = append(documented, v.path)
			s := root
			for name := range strings.SplitSeq(v.path, ".") {
				if s = s.Properties[name]; s == nil {
					t.Errorf("%s%s has no schema", prefix, v.path)
					break
				}
				s = s.follow(root)
			}
			if v.comment == "" {
				t.Errorf("%s%s has no comment", prefix, v.path)
			}
		}
		var walk func(path string, s *valuesSchema)
		walk = func(path string, s *valuesSchema) {
			s = s.follow(root)
			if s.Items != nil {
				walk(path+"[]", s.Items)
			}
			if s.Type != "object" {
				return
			}
			part := prefix == "" && slices.Contains([]string{"crds", "driver", "scheduler", "controller", "policies", "monitoring"}, path)
			if s.AdditionalProperties == nil && !part {
				t.Errorf("%s%s takes any value", prefix, path)
			}
			for name, next := range s.Properties {
				if strings.Contains(path, "[]") || strings.Contains(path, "resources") || strings.HasPrefix(path+name, "global") && prefix != "" {
					continue
				}
				full := strings.TrimPrefix(path+"."+name, ".")
				walk(full, next)
				if next := next.follow(root); next.Properties == nil && !slices.Contains(documented, full) && next.AdditionalProperties != nil {
					t.Errorf("%s%s has a schema and no default", prefix, full)
				}
			}
		}
		walk("", root)
	}
}
