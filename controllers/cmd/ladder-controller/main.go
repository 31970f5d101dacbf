// Command ladder-controller runs Ladder's controllers: the one that turns
// AcceleratorPolicies into revisions and claim templates, the one that removes
// AllocationDecisions whose time is over, and the one that opens the gates of
// tenants' Pods in fair order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gpuladder.dev/ladder/controllers/health"
	"gpuladder.dev/ladder/controllers/policy"
	"gpuladder.dev/ladder/controllers/quota"
	"gpuladder.dev/ladder/controllers/rebuild"
	"gpuladder.dev/ladder/controllers/records"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/buildinfo"
	"gpuladder.dev/ladder/policies/tenants"
)

// leaseName is the leader's Lease.
const leaseName = "ladder-controller"

// shortestLease leaves time for a few attempts at renewal, which are two
// seconds apart.
const shortestLease = 9 * time.Second

type options struct {
	leaderElect             bool
	leaderElectionNamespace string
	lease                   time.Duration
	metricsBindAddress      string
	healthProbeBindAddress  string
	version                 bool
	retention               records.Retention
	recordPatience          time.Duration
	quota                   bool
	quotaConfig             string
}

func (o *options) addFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "wait for the Lease before working, so that several can run and one works")
	fs.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", "ladder-system", "namespace of the Lease")
	fs.DurationVar(&o.lease, "leader-election-lease", 15*time.Second, "how long the one that works may fail to renew the Lease before another takes its place; it gives up itself after two thirds of that")
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":8080", "address of the metrics; 0 for none")
	fs.BoolVar(&o.version, "version", false, "print the version of the program, and end")
	fs.DurationVar(&o.retention.MaxAge, "record-max-age", records.DefaultMaxAge, "how long an AllocationDecision is kept; 0 for ever")
	fs.IntVar(&o.retention.MaxPerNamespace, "records-per-namespace", records.DefaultMaxPerNamespace, "how many AllocationDecisions a namespace may have before the oldest go; 0 for any number")
	fs.BoolVar(&o.quota, "quota", true, "open the gates of tenants' Pods, take borrowed devices back and write the status of TenantQuotas")
	fs.StringVar(&o.quotaConfig, "quota-config", "", "file with what devices are worth and the times of the turns; empty for the defaults")
	fs.DurationVar(&o.recordPatience, "record-patience", rebuild.DefaultPatience, "how late the AllocationDecision of a bound Pod may be before it is put together from the Pod and its claims")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
}

func main() {
	var opts options
	opts.addFlags(flag.CommandLine)
	config.RegisterFlags(flag.CommandLine) // --kubeconfig
	klog.InitFlags(flag.CommandLine)       // -v
	flag.Parse()
	if opts.version {
		fmt.Print(buildinfo.Read().Text("ladder-controller"))
		return
	}
	ctrl.SetLogger(klog.Background())

	if err := run(ctrl.SetupSignalHandler(), opts); err != nil {
		klog.Background().Error(err, "ladder-controller failed")
		klog.Flush()
		os.Exit(1)
	}
	klog.Flush()
}

// run works until ctx ends and then gives the Lease back.
func run(ctx context.Context, opts options) error {
	if args := flag.Args(); len(args) > 0 {
		return fmt.Errorf("reading the command line, unexpected arguments %q", args)
	}
	if opts.lease < shortestLease {
		return fmt.Errorf("reading the command line, --leader-election-lease is %s, must be at least %s", opts.lease, shortestLease)
	}
	if opts.retention.MaxAge < 0 || opts.retention.MaxPerNamespace < 0 {
		return fmt.Errorf("reading the command line, --record-max-age is %s and --records-per-namespace %d, must not be below 0",
			opts.retention.MaxAge, opts.retention.MaxPerNamespace)
	}
	settings, err := tenants.ReadConfig(opts.quotaConfig)
	if err != nil {
		return fmt.Errorf("reading --quota-config, %w", err)
	}
	if opts.recordPatience <= 0 {
		return fmt.Errorf("reading the command line, --record-patience is %s, must be above 0", opts.recordPatience)
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster, %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("building a scheme, %w", err)
	}
	renew := opts.lease * 2 / 3
	m, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(opts.quota),
		Metrics:                       server.Options{BindAddress: opts.metricsBindAddress},
		HealthProbeBindAddress:        opts.healthProbeBindAddress,
		LeaderElection:                opts.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       opts.leaderElectionNamespace,
		LeaseDuration:                 &opts.lease,
		RenewDeadline:                 &renew,
		LeaderElectionReleaseOnCancel: true, // main ends right after run
	})
	if err != nil {
		return fmt.Errorf("building the manager, %w", err)
	}
	if err := errors.Join(m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("adding probes, %w", err)
	}
	controllers, err := newControllers(m, opts, settings)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if err := c.Register(ctx, m); err != nil {
			return fmt.Errorf("registering controller %s, %w", c.Name(), err)
		}
	}
	return m.Start(ctx)
}

// cacheOptions is what the controllers that run read from memory.
func cacheOptions(withQuota bool) cache.Options {
	options := policy.CacheOptions()
	if withQuota {
		options = quota.CacheOptions(options)
	}
	return options
}

// controller is what every package of a controller offers.
type controller interface {
	Name() string
	Register(context.Context, ctrl.Manager) error
}

// newControllers is the list of all controllers.
func newControllers(m ctrl.Manager, opts options, settings tenants.Config) ([]controller, error) {
	clk := clock.RealClock{}
	recorder := m.GetEventRecorder("ladder-controller")
	list := []controller{
		policy.NewController(clk, m.GetClient(), m.GetAPIReader(), recorder),
		health.NewController(clk, m.GetClient(), m.GetAPIReader(), recorder),
		rebuild.NewController(clk, m.GetClient(), m.GetAPIReader(), opts.recordPatience),
		records.NewController(clk, m.GetClient(), m.GetAPIReader(), opts.retention),
	}
	if opts.quota {
		c, err := quota.NewController(clk, m.GetClient(), recorder, settings)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}
