package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/buildinfo"
	"gpuladder.dev/ladder/policies/decide"
)

// flushTimeout bounds how long outcomes are written after the signal to end.
const flushTimeout = 5 * time.Second

// NewCommand returns the command ladder-scheduler.
func NewCommand() *cobra.Command {
	opts := options.NewOptions()
	var own Options
	var version bool
	command := &cobra.Command{
		Use:   v1alpha1.SchedulerName,
		Short: "Place Pods on accelerators by policy, in strict order and reproducibly",
		Long: `ladder-scheduler is kube-scheduler with the plugin Ladder in place of
DynamicResources. Pods with accelerators are placed by their policy's tiers:
a lower one only when no device of a higher one is eligible. All other Pods
are placed as kube-scheduler places them. It takes kube-scheduler's flags and
configuration.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return opts.ComponentGlobalsRegistry.Set()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				_, err := fmt.Fprint(cmd.OutOrStdout(), versionText())
				return err
			}
			return run(cmd, opts, own)
		},
	}
	opts.Flags.FlagSet("global").BoolVar(&version, "version", false, "Print the versions of the program, of its decision engine and of Kubernetes, and end.")
	addFlags(command, opts, &own)
	return command
}

func addFlags(command *cobra.Command, opts *options.Options, own *Options) {
	sets := opts.Flags
	sets.FlagSet("ladder").StringVar(&own.Journal, "journal", "", "File to append input events and decisions to, as JSON lines; empty for none.")
	sets.FlagSet("ladder").IntVar(&own.JournalKeep, "journal-keep", DefaultJournalKeep,
		"How many earlier files of the journal, of 256 MiB each, are kept; negative for all.")
	globalflag.AddGlobalFlags(sets.FlagSet("global"), command.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	width, _, _ := term.TerminalSize(command.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(command, *sets, width)
}

// versionText is what --version prints. kube-scheduler's own flag of that name
// would know neither this program's version nor, built from a module,
// Kubernetes'.
func versionText() string {
	return buildinfo.Read().Text(v1alpha1.SchedulerName,
		"decision engine "+decide.EngineVersion, "kube-scheduler "+buildinfo.Module("k8s.io/kubernetes"))
}

// run runs the scheduler until the process is told to end.
func run(command *cobra.Command, opts *options.Options, own Options) error {
	gates := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
		return fmt.Errorf("setting up logs, %w", err)
	}
	cliflag.PrintFlags(command.Flags())
	if opts.InformerName == nil {
		name, err := cache.NewInformerName(v1alpha1.SchedulerName)
		if err != nil {
			return fmt.Errorf("naming informers, %w", err)
		}
		opts.InformerName = name
	}
	told := genericapiserver.SetupSignalContext()
	ctx, cancel := context.WithCancel(context.WithoutCancel(told))
	defer cancel()
	s, err := Setup(ctx, opts, own)
	if err != nil {
		return err
	}
	if mutable, ok := gates.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	// With leader election the process ends as soon as ctx does, so what is
	// still to be told is written before.
	go func() {
		<-told.Done()
		flush, done := context.WithTimeout(context.WithoutCancel(told), flushTimeout)
		defer done()
		if err := s.Core.Flush(flush); err != nil {
			klog.FromContext(ctx).Error(err, "Ending with outcomes untold")
		}
		cancel()
	}()
	if err := s.Run(ctx); err != nil && told.Err() == nil {
		return fmt.Errorf("running the scheduler, %w", err)
	}
	return nil
}
