package deviceplugin

// This file registers with kubelet, and again whenever kubelet has restarted.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Offer is what a plugin may hand out now.
type Offer struct {
	// Devices are byte-wise by name. Empty while Refused says something.
	Devices []Device
	// Refused says why there is nothing to hand out; empty if there is.
	Refused string
}

// Source is where the devices come from. It is safe for concurrent use.
type Source interface {
	// Offer waits until it is known what may be handed out, and returns it. It
	// fails only when ctx is done.
	Offer(ctx context.Context) (Offer, error)
	// Changed receives after Offer has begun to return something else. Several
	// changes may be told by one signal; none is left without one after it.
	Changed() <-chan struct{}
}

// DefaultResource is the extended resource of NVIDIA's device plugin.
const DefaultResource = "nvidia.com/gpu"

// Plugin offers the devices of a source to the kubelet of this node.
type Plugin struct {
	// Resource is the extended resource. Default: [DefaultResource].
	Resource string
	// Folder is where kubelet.sock is. Default: kubelet's own.
	Folder string
	// Source has the devices.
	Source Source
	// Poll is how often to look whether kubelet has restarted. Default: a second.
	Poll time.Duration

	registered atomic.Bool
}

// Registered says whether kubelet knows the plugin now.
func (p *Plugin) Registered() bool { return p.registered.Load() }

// Run serves kubelet until ctx is done; then it returns nil. Kubelet is told
// nothing at the end: its Pods keep their devices while the plugin is replaced.
func (p *Plugin) Run(ctx context.Context) error {
	if p.Resource == "" {
		p.Resource = DefaultResource
	}
	if p.Folder == "" {
		p.Folder = pluginapi.DevicePluginPath
	}
	if p.Poll <= 0 {
		p.Poll = time.Second
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	listing := newListing()
	offer, err := p.Source.Offer(ctx)
	if err != nil {
		return nil // ctx is done
	}
	listing.set(offer)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		p.follow(ctx, listing)
	}()
	defer func() { stop(); <-followed }()
	last := ""
	for {
		err := p.serve(ctx, listing)
		p.registered.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		var lasting *lastingError
		if errors.As(err, &lasting) {
			return err
		}
		if reason := err.Error(); reason != last { // once, however long kubelet is away
			klog.FromContext(ctx).Info("Serving kubelet anew", "because", reason)
			last = reason
		}
		if !pause(ctx, p.Poll) {
			return nil
		}
	}
}

// follow keeps the listing as the source has it.
func (p *Plugin) follow(ctx context.Context, listing *listing) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Source.Changed():
		}
		offer, err := p.Source.Offer(ctx)
		if err != nil {
			return
		}
		listing.set(offer)
	}
}

// lastingError is one that trying again does not mend.
type lastingError struct{ error }

// Why a registration ends.
var (
	errKubeletRestarted = errors.New("kubelet has restarted")
	errSocketRemoved    = errors.New("the plugin's socket was removed")
)

// serve is one registration: it listens, registers, and returns an error that
// says why it is over.
func (p *Plugin) serve(ctx context.Context, listing *listing) (err error) {
	log := klog.FromContext(ctx)
	path := p.socket()
	kubelet, err := os.Lstat(p.kubeletSocket())
	if err != nil {
		return fmt.Errorf("waiting for kubelet, %w", err)
	}
	own, listener, err := listen(path)
	if err != nil {
		return err
	}
	stopped := make(chan struct{})
	service := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(service, &server{log: log, listing: listing, stopped: stopped})
	served := make(chan error, 1)
	go func() { served <- service.Serve(listener) }()
	defer func() {
		close(stopped)
		service.Stop()
		if now, statErr := os.Lstat(path); statErr == nil && os.SameFile(now, own) {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := p.register(ctx); err != nil {
		return err
	}
	p.registered.Store(true)
	log.Info("Registered with kubelet", "resource", p.Resource, "socket", path)
	ticker := time.NewTicker(p.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-served:
			return fmt.Errorf("serving kubelet, %w", err)
		case <-ticker.C:
		}
		// A kubelet that starts removes all sockets of the folder and makes its
		// own anew.
		now, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			return errSocketRemoved
		}
		if err == nil && !os.SameFile(now, own) {
			return &lastingError{fmt.Errorf("another plugin has taken %s", path)}
		}
		if now, err := os.Lstat(p.kubeletSocket()); err == nil && !sameSocket(now, kubelet) {
			return errKubeletRestarted
		}
	}
}

// register tells kubelet of the plugin. Kubelet calls back before it answers.
func (p *Plugin) register(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	connection, err := grpc.NewClient("unix:"+p.kubeletSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to kubelet, %w", err)
	}
	defer func() { _ = connection.Close() }()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.Resource, Options: options,
	})
	if err != nil {
		return fmt.Errorf("registering with kubelet, %w", err)
	}
	return nil
}

func (p *Plugin) kubeletSocket() string {
	return filepath.Join(p.Folder, filepath.Base(pluginapi.KubeletSocket))
}

// socket is the plugin's own, one for each resource.
func (p *Plugin) socket() string {
	return filepath.Join(p.Folder, "ladder-"+strings.NewReplacer("/", "-", ".", "-").Replace(p.Resource)+".sock")
}

// listen replaces what is left of an earlier plugin. The socket that it makes
// is told from a later one by the FileInfo.
func listen(path string) (os.FileInfo, net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("listening for kubelet, %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("listening for kubelet, %w", err)
	}
	listener.SetUnlinkOnClose(false)
	own, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listening for kubelet, %w", err), listener.Close())
	}
	return own, listener, nil
}

// sameSocket tells a socket from one that was made later, also where the file
// system has given the new one the old one's inode.
func sameSocket(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

// pause waits, and says whether ctx is not done yet.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
