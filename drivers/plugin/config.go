// Package plugin is a DRA driver on a node: it registers with kubelet, has the
// engine prepare what kubelet asks for, publishes the node's devices with the
// taints that their health calls for, and tells kubelet of their health. Which
// hardware it is, is up to the inventory.
//
// # Permissions
//
// The driver's service account needs, cluster-wide:
//
//	""                  nodes            get, list, watch
//	""                  pods             none
//	resource.k8s.io     resourceslices   get, list, watch, create, update, patch, delete
//	resource.k8s.io     resourceclaims   get, list
//	events.k8s.io       events           create, patch
//
// Claims are listed only to make a lost checkpoint again. Nodes are watched by
// the fake driver, for their labels; others get theirs once.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Publishing is how much of the slices is published.
type Publishing int

// Ways of publishing.
const (
	// PublishAll is the normal way.
	PublishAll Publishing = iota
	// PublishNoChange leaves the slices as they are.
	PublishNoChange
	// PublishNothing takes the slices back.
	PublishNothing
)

// Gate can hold back what is published.
type Gate interface {
	Publishing() Publishing
	// Changed returns a channel that receives after Publishing has changed.
	Changed() <-chan struct{}
}

// Config is what a driver works with.
type Config struct {
	// NodeName and NodeUID are those of the Node object; the pool has its name.
	NodeName string
	NodeUID  types.UID
	// PodUID is that of the driver's own Pod. It makes a rolling update
	// possible, in which two of them run at once; "" does without.
	PodUID types.UID
	Client kubernetes.Interface
	// Inventory is the hardware.
	Inventory inventory.Inventory
	// DataFolder holds the driver's files and its socket, RegistrarFolder the
	// socket by which kubelet finds it, CDIFolder the specs for the runtime.
	DataFolder, RegistrarFolder, CDIFolder string
	// Presence is what [Join] has returned for the data folder, where something is
	// written into it before [New]; otherwise New joins. Run leaves at its end.
	Presence *Presence
	// BootIDFile is read for the ID of the node's boot.
	BootIDFile string

	// HealthPeriod is how often the hardware is asked, and kubelet told. It
	// must be well below the 30 seconds after which kubelet stops believing.
	HealthPeriod time.Duration
	// Recovery is how long a trouble must be over before it is forgotten.
	Recovery time.Duration
	// CollectPeriod is how often claims are looked for that are over;
	// StaleAfter how long they must have been.
	CollectPeriod, StaleAfter time.Duration

	Clock clock.WithTicker
	// Registry takes the metrics; Recorder the Events.
	Registry prometheus.Registerer
	Recorder events.EventRecorder
	// Hooks are nil but for faults by request. Gate may be nil.
	Hooks engine.Hooks
	Gate  Gate
	// Settled is that of [engine.Config]; nil but where the pool is replaced.
	Settled func(ctx context.Context, pool inventory.Pool) error
}

// Defaults for a production node.
const (
	DefaultHealthPeriod  = 5 * time.Second
	DefaultRecovery      = 30 * time.Second
	DefaultCollectPeriod = time.Minute
	DefaultStaleAfter    = 10 * time.Minute
)

// DataFolder is where a driver keeps its files below kubelet's plugins.
func DataFolder(plugins string) string { return filepath.Join(plugins, v1alpha1.DriverName) }

// maxHealthPeriod leaves room for one report that is late.
const maxHealthPeriod = 12 * time.Second

// Default sets what was left out.
func (c *Config) Default() {
	for _, d := range []struct {
		value *time.Duration
		to    time.Duration
	}{
		{&c.HealthPeriod, DefaultHealthPeriod},
		{&c.Recovery, DefaultRecovery},
		{&c.CollectPeriod, DefaultCollectPeriod},
		{&c.StaleAfter, DefaultStaleAfter},
	} {
		if *d.value == 0 {
			*d.value = d.to
		}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.RegistrarFolder == "" {
		c.RegistrarFolder = kubeletplugin.KubeletRegistryDir
	}
	if c.CDIFolder == "" {
		c.CDIFolder = kubeletplugin.DefaultCDIDir
	}
}

// Validate says what can't work.
func (c *Config) Validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("the node's name is missing")
	case c.DataFolder == "":
		return errors.New("the data folder is missing")
	case c.BootIDFile == "":
		return errors.New("the file with the boot ID is missing")
	case c.HealthPeriod < 0 || c.HealthPeriod > maxHealthPeriod:
		return fmt.Errorf("the health period must be above 0 and up to %v, is %v", maxHealthPeriod, c.HealthPeriod)
	case c.Recovery < 0 || c.CollectPeriod < 0 || c.StaleAfter < 0:
		return errors.New("periods must not be negative")
	}
	return nil
}

// registrarSocket and pluginSocket are where the library puts its sockets.
func (c *Config) registrarSocket() string {
	if c.PodUID == "" {
		return filepath.Join(c.RegistrarFolder, v1alpha1.DriverName+"-reg.sock")
	}
	return filepath.Join(c.RegistrarFolder, kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistrarFolder, v1alpha1.DriverName, c.PodUID))
}

func (c *Config) pluginSocket() string {
	if c.PodUID == "" {
		return filepath.Join(c.DataFolder, "dra.sock")
	}
	return filepath.Join(c.DataFolder, "dra-"+string(c.PodUID)+".sock")
}
