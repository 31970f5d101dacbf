package binaries

// Tools that the tests of the chart run: both majors of Helm that are in use,
// and the plugin that tests templates (run as a program of its own).

import "time"

// Names of the chart's tools.
const (
	Helm3        = "helm3"
	Helm4        = "helm4"
	HelmUnittest = "helm-unittest"
)

// Versions of the chart's tools; the files in modules/ pin the same ones.
const (
	Helm3Version        = "v3.22.0"
	Helm4Version        = "v4.3.1"
	HelmUnittestVersion = "v1.1.2"
)

// chartTools are listed apart from what makes up a cluster.
var chartTools = []program{
	{
		name: Helm3, version: Helm3Version, module: "helm3", pkg: "helm.sh/helm/v3/cmd/helm",
		// Helm 3 is told for which Kubernetes it renders where no cluster is asked.
		ldflags: "-s -w -X helm.sh/helm/v3/internal/version.version=" + Helm3Version +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37" +
			" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=37",
		expect: 2 * time.Minute, probe: []string{"version"},
	},
	{
		name: Helm4, version: Helm4Version, module: "helm4", pkg: "helm.sh/helm/v4/cmd/helm",
		ldflags: "-s -w -X helm.sh/helm/v4/internal/version.version=" + Helm4Version, expect: time.Minute, probe: []string{"version"},
	},
	{
		name: HelmUnittest, version: HelmUnittestVersion, module: "helm-unittest",
		pkg: "github.com/helm-unittest/helm-unittest/cmd/helm-unittest", ldflags: "-s -w", expect: 2 * time.Minute,
	},
}
