// Command ladder-scheduler is kube-scheduler with the plugin Ladder.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the JSON log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version metric

	"gpuladder.dev/ladder/scheduler/app"
)

func main() {
	os.Exit(cli.Run(app.NewCommand()))
}
