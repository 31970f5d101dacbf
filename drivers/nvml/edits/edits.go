// Package edits says what a container needs to use an NVIDIA GPU: device nodes,
// NVIDIA's libraries and programs, and hooks. It is NVIDIA's own nvcdi, of the
// container toolkit, behind one method.
package edits

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Roots are where NVIDIA's driver is.
type Roots struct {
	// Driver is where its files are, as this process sees them: / where they are
	// installed as usual.
	Driver string
	// DriverOnHost is the same folder as the container runtime sees it. Default:
	// Driver.
	DriverOnHost string
	// Dev is the folder that has dev in it, as this process sees it, and
	// DevOnHost as the runtime does. Defaults: Driver, DriverOnHost.
	Dev, DevOnHost string
	// Proc is the folder that has proc with what NVIDIA's kernel driver says of MIG
	// instances. Default: /, the kernel's own. nvcdi reads only that, so with
	// another one MIG devices are not its work; see mig.go.
	Proc string
	// Hook is nvidia-cdi-hook on the host. Without it there are no hooks: no
	// library cache is updated in containers, and no links are made.
	Hook string
}

// Defaults sets what was left out.
func (r *Roots) Defaults() {
	for _, d := range []struct {
		value *string
		to    func() string
	}{
		{&r.Driver, func() string { return "/" }},
		{&r.DriverOnHost, func() string { return r.Driver }},
		{&r.Dev, func() string { return r.Driver }},
		{&r.Proc, func() string { return "/" }},
		{&r.DevOnHost, func() string {
			if r.Dev != r.Driver {
				return r.Dev
			}
			return r.DriverOnHost
		}},
	} {
		if *d.value == "" {
			*d.value = d.to()
		}
		*d.value = filepath.Clean(*d.value)
	}
}

// LibraryOf finds NVML below a driver root, as the loader would: "" where it is
// not, and for / , where the loader looks itself.
func LibraryOf(driverRoot string) string {
	if filepath.Clean("/"+driverRoot) == "/" {
		return ""
	}
	for _, folder := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib"} {
		found, err := filepath.Glob(filepath.Join(driverRoot, folder, "libnvidia-ml.so.1"))
		if err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Generator makes edits. It is safe for concurrent use.
type Generator struct {
	library nvml.Interface
	roots   Roots
	log     logger
}

// New returns a generator that asks NVML which GPU has which device nodes. NVML
// must be open whenever it is used.
func New(ctx context.Context, library nvml.Interface, roots Roots) *Generator {
	roots.Defaults()
	return &Generator{library: library, roots: roots, log: logger{klog.FromContext(ctx)}}
}

// Edits are those for a GPU, or a MIG device, by its UUID. nvcdi is asked anew
// each time: what it finds changes with NVIDIA's driver.
func (g *Generator) Edits(uuid string) (specs.ContainerEdits, error) {
	options := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(g.library), nvcdi.WithLogger(g.log),
		nvcdi.WithDriverRoot(g.roots.Driver), nvcdi.WithDevRoot(g.roots.Dev),
		// Another library of NVIDIA's, which would be opened beside NVML.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	}
	if g.roots.Hook == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		options = append(options, nvcdi.WithNVIDIACDIHookPath(g.roots.Hook))
	}
	generator, err := nvcdi.New(options...)
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("asking nvcdi, %w", err)
	}
	var devices []specs.Device
	if g.roots.Proc != "/" && strings.HasPrefix(uuid, "MIG-") {
		devices, err = g.migDevices(generator, uuid)
	} else {
		devices, err = generator.GetDeviceSpecsByID(uuid)
	}
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("finding the device nodes of %s, %w", uuid, err)
	}
	common, err := generator.GetCommonEdits()
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("finding NVIDIA's libraries, %w", err)
	}
	spec := &specs.Spec{ContainerEdits: *common.ContainerEdits, Devices: devices}
	if err := g.onHost().Transform(spec); err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("finding the paths on the host, %w", err)
	}
	made := spec.ContainerEdits
	for i := range spec.Devices {
		add(&made, &spec.Devices[i].ContainerEdits)
	}
	if len(made.DeviceNodes) == 0 {
		return specs.ContainerEdits{}, fmt.Errorf("finding the device nodes of %s, there are none below %s", uuid, g.roots.Dev)
	}
	sortEdits(&made)
	return made, nil
}

// onHost makes paths of this process those of the runtime.
func (g *Generator) onHost() transform.Transformer {
	return root.NewDriverTransformer(
		root.WithDriverRoot(g.roots.Driver), root.WithTargetDriverRoot(g.roots.DriverOnHost),
		root.WithDevRoot(g.roots.Dev), root.WithTargetDevRoot(g.roots.DevOnHost),
	)
}

// add adds what is not there yet.
func add(to, more *specs.ContainerEdits) {
	for _, variable := range more.Env {
		if !slices.Contains(to.Env, variable) {
			to.Env = append(to.Env, variable)
		}
	}
	for _, node := range more.DeviceNodes {
		if !slices.ContainsFunc(to.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node.Path }) {
			to.DeviceNodes = append(to.DeviceNodes, node)
		}
	}
	for _, mount := range more.Mounts {
		if !slices.ContainsFunc(to.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == mount.ContainerPath }) {
			to.Mounts = append(to.Mounts, mount)
		}
	}
	for _, gid := range more.AdditionalGIDs {
		if !slices.Contains(to.AdditionalGIDs, gid) {
			to.AdditionalGIDs = append(to.AdditionalGIDs, gid)
		}
	}
	to.Hooks = append(to.Hooks, more.Hooks...) // in their order, which counts
}

// sortEdits gives the same edits the same bytes. Hooks run in their order.
func sortEdits(edits *specs.ContainerEdits) {
	slices.Sort(edits.Env)
	slices.SortFunc(edits.DeviceNodes, func(a, b *specs.DeviceNode) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(edits.Mounts, func(a, b *specs.Mount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
}

// logger is nvcdi's. What it warns of is mostly that a file of some version of
// NVIDIA's driver is not there, again for each claim.
type logger struct{ klog.Logger }

func (l logger) Debugf(format string, args ...any)   { l.V(5).Info(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.V(6).Info(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.V(4).Info(fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.V(3).Info(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any)   { l.V(1).Info(fmt.Sprintf(format, args...)) }
