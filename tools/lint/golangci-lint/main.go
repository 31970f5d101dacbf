// The program golangci-lint is golangci-lint with kube-api-linter linked in,
// so that both come from Go modules at pinned versions and nothing has to be
// downloaded by a linter. It knows every linter that the usual program knows,
// and kubeapilinter as a module plugin.
package main

import (
	"fmt"
	"os"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"

	// Registers kubeapilinter.
	_ "sigs.k8s.io/kube-api-linter"
)

func main() {
	if err := commands.Execute(commands.BuildInfo{Version: "2.15.0"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitcodes.Failure)
	}
}
