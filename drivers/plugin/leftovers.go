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

// Presence says that a driver runs on the node. The system ends it with the
// process.
type Presence struct{ lock *flock.Flock }

// Join makes a driver present. If no other is, it first removes the temporary
// files that drivers which were killed have left, and the kubelet plugin library
// in them: no one can be writing such a file then, provided that each driver
// joins before it writes its first. The data folder must exist.
func Join(ctx context.Context, dataFolder, cdiFolder string) (*Presence, error) {
	p := &Presence{lock: flock.New(filepath.Join(dataFolder, presenceFileName))}
	alone, err := p.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking %s, %w", p.lock.Path(), err)
	}
	if alone {
		if err := sweep(ctx, dataFolder, cdiFolder); err != nil {
			klog.FromContext(ctx).Error(err, "Going on with the files that other drivers left")
		}
	}
	// Whoever is alone is so for a moment only.
	if err := p.lock.RLock(); err != nil {
		return nil, errors.Join(fmt.Errorf("sharing %s, %w", p.lock.Path(), err), p.lock.Close())
	}
	return p, nil
}

// Leave ends it. It can be called again.
func (p *Presence) Leave() { _ = p.lock.Close() } // closing a file that was opened can't keep the lock

// sweep removes temporary files: the driver's own, and those of the library.
func sweep(ctx context.Context, dataFolder, cdiFolder string) error {
	var errs []error
	in := func(folder, prefix string) {
		removed, err := durable.Sweep(folder, prefix)
		errs = append(errs, err)
		if len(removed) > 0 {
			klog.FromContext(ctx).Info("Removed temporary files of a driver that was killed", "folder", folder, "files", removed)
		}
	}
	in(dataFolder, "")
	// Of claims, and of metadata.
	in(cdiFolder, v1alpha1.DriverName+"-")
	in(cdiFolder, v1alpha1.DriverName+"_")
	metadata, err := filepath.Glob(filepath.Join(dataFolder, metadataFolder, "*", "*"))
	errs = append(errs, err)
	for _, folder := range metadata {
		in(folder, "")
	}
	return errors.Join(errs...)
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
