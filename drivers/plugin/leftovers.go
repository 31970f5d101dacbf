package plugin

// This file removes what drivers that were killed have left.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// presenceFileName is locked by each driver of the node for as long as it runs,
// shared with the others of a rolling update.
const presenceFileName = "driver.lock"

// metadataFolder is where the library keeps metadata, in the data folder.
const metadataFolder = "dra-device-metadata"

// presence says that a driver runs. The system ends it with the process.
type presence struct {
	lock *flock.Flock
	// alone: no other driver ran at the start, and none will come before join
	// has returned and sweep been called.
	alone bool
}

// join makes a driver present.
func join(folder string) (*presence, error) {
	p := &presence{lock: flock.New(filepath.Join(folder, presenceFileName))}
	alone, err := p.lock.TryLock()
	if err == nil && !alone {
		err = p.lock.RLock() // whoever is alone is so for a moment only
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s, %w", p.lock.Path(), err)
	}
	p.alone = alone
	return p, nil
}

// leave ends it.
func (p *presence) leave() { _ = p.lock.Close() } // closing a file that was opened can't keep the lock

// sweep removes temporary files: the driver's own, and those of the kubelet
// plugin library. It does nothing while another driver runs, which may be
// writing them; this one must not write yet. Others can come afterwards.
func (p *presence) sweep(ctx context.Context, config *Config) error {
	if !p.alone {
		return nil
	}
	p.alone = false
	var errs []error
	sweep := func(folder, prefix string) {
		removed, err := durable.Sweep(folder, prefix)
		errs = append(errs, err)
		if len(removed) > 0 {
			klog.FromContext(ctx).Info("Removed temporary files of a driver that was killed", "folder", folder, "files", removed)
		}
	}
	sweep(config.DataFolder, "")
	// Of claims, and of metadata.
	sweep(config.CDIFolder, v1alpha1.DriverName+"-")
	sweep(config.CDIFolder, v1alpha1.DriverName+"_")
	metadata, err := filepath.Glob(filepath.Join(config.DataFolder, metadataFolder, "*", "*"))
	errs = append(errs, err)
	for _, folder := range metadata {
		sweep(folder, "")
	}
	return errors.Join(append(errs, p.lock.RLock())...)
}

// socketPause is between the two looks at a socket that refuses: a driver that
// starts has made its socket a moment before it listens.
const socketPause = 250 * time.Millisecond

// removeSockets removes the sockets of drivers that were killed, which kubelet
// would go on to dial. One that answers belongs to the other driver of a
// rolling update.
func (d *Driver) removeSockets(ctx context.Context) error {
	dead, err := d.deadSockets()
	if err != nil || len(dead) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-d.config.Clock.After(socketPause):
	}
	again, err := d.deadSockets()
	errs := []error{err}
	for path, before := range dead {
		if now := again[path]; now == nil || !os.SameFile(before, now) {
			continue
		}
		klog.FromContext(ctx).Info("Removing the socket of a driver that was killed", "socket", path)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing socket, %w", err))
		}
	}
	return errors.Join(errs...)
}

// deadSockets are those of this driver's name on which nobody listens. What
// this driver will make itself is left to the library.
func (d *Driver) deadSockets() (map[string]fs.FileInfo, error) {
	dead := map[string]fs.FileInfo{}
	for _, of := range []struct {
		folder, own string
		ours        func(name string) bool
	}{
		{d.config.DataFolder, d.config.pluginSocket(), isPluginSocket},
		{d.config.RegistrarFolder, d.config.registrarSocket(), isRegistrarSocket},
	} {
		entries, err := os.ReadDir(of.folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dead, fmt.Errorf("looking for sockets, %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(of.folder, entry.Name())
			if entry.Type() != fs.ModeSocket || path == of.own || !of.ours(entry.Name()) || !refuses(path) {
				continue
			}
			if info, err := entry.Info(); err == nil {
				dead[path] = info
			}
		}
	}
	return dead, nil
}

// isPluginSocket: dra.sock or dra-<Pod UID>.sock, in the data folder.
func isPluginSocket(name string) bool {
	return name == "dra.sock" || strings.HasPrefix(name, "dra-") && strings.HasSuffix(name, ".sock")
}

// isRegistrarSocket: with the driver's name, and that of a Pod or a hash of it.
// There is a third form for long paths, which does not tell whose it is.
func isRegistrarSocket(name string) bool {
	pod, ours := strings.CutPrefix(name, v1alpha1.DriverName)
	pod, registrar := strings.CutSuffix(pod, "-reg.sock")
	return ours && registrar && (pod == "" || strings.HasPrefix(pod, "-"))
}

// refuses is whether nobody listens on a socket. Whatever else keeps it from
// being dialed says nothing about that.
func refuses(path string) bool {
	connection, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = connection.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
