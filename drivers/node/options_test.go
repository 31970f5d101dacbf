package node

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelpOfFlags: pflag takes a word in back quotes for the type of the value,
// which help then shows behind the flag.
func TestHelpOfFlags(t *testing.T) {
	o, cmd := &Options{}, &cobra.Command{}
	o.AddFlags(cmd)
	o.AddFaultFlags(cmd)
	if cmd.Flags().Lookup("allow-faults") == nil {
		t.Fatal("--allow-faults is missing")
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if shown, _ := pflag.UnquoteUsage(flag); shown != "" && shown != flag.Value.Type() {
			t.Errorf("--%s is shown with %q", flag.Name, shown)
		}
	})
}
