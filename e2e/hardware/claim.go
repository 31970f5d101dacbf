package hardware

// This file takes one device through its life: allocated, prepared, looked at,
// taken back.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// life is a device's way through the check.
type life struct {
	*check
	board  *board
	device *resourcev1.Device
	claim  *resourcev1.ResourceClaim
}

// partition: the device is made when it is prepared.
func (l *life) partition() bool { return len(l.board.partitions) > 0 }

// run does all of it. What was prepared is taken back also after a failure.
func (l *life) run(ctx context.Context) {
	name := l.device.Name
	before, err := l.instances(ctx)
	if err != nil {
		l.step("ask nvidia-smi for the MIG devices", func() (string, error) { return "", err })
		return
	}
	if !l.step("allocate "+name, func() (string, error) { return l.allocate(ctx) }) {
		return
	}
	prepared := l.step("prepare "+name, func() (string, error) { return l.prepare(ctx) })
	if prepared {
		l.step("look at "+name, func() (string, error) { return l.look(ctx, before) })
	}
	// Also after an interrupt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepWithin)
	defer cancel()
	l.step("unprepare "+name, func() (string, error) { return l.unprepare(ctx, before) })
}

// stepWithin is more than the driver allows itself for a partition.
const stepWithin = 2 * time.Minute

// allocate has the allocator choose; a UUID and a profile are no unique choice
// among partitions, so it may be another one than the first.
func (l *life) allocate(ctx context.Context) (string, error) {
	address := strconv.Quote(l.board.address)
	expression := fmt.Sprintf(`device.attributes["resource.kubernetes.io"].pciBusID == %s && device.attributes[%q].type == %q`,
		address, v1alpha1.DriverName, attribute(l.device, "type"))
	if profile := attribute(l.device, "profile"); profile != "" {
		expression += fmt.Sprintf(` && device.attributes[%q].profile == %q`, v1alpha1.DriverName, profile)
	}
	claim, err := l.server.allocate(ctx, l.device.Name, expression)
	if err != nil {
		return "", err
	}
	l.claim = claim
	return "allocated " + claim.Status.Allocation.Devices.Results[0].Device, nil
}

func (l *life) prepare(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	devices, err := l.driver.prepare(ctx, l.claim)
	if err != nil {
		return "", err
	}
	if len(devices) == 0 {
		return "", errors.New("kubelet is told no CDI device")
	}
	return fmt.Sprintf("%d CDI devices", len(devices)), nil
}

// spec is the claim's CDI file.
func (l *life) spec() (*specs.Spec, error) {
	found, err := filepath.Glob(filepath.Join(l.driver.cdi(), "*"+string(l.claim.UID)+"*"))
	if err != nil {
		return nil, fmt.Errorf("looking for the CDI file, %w", err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("looking for the CDI file, %w", fs.ErrNotExist)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return nil, fmt.Errorf("reading the CDI file, %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, fmt.Errorf("reading the CDI file, %w", err)
	}
	return spec, nil
}

// gpuNode is the device node of one GPU.
var gpuNode = regexp.MustCompile(`^/dev/nvidia([0-9]+)$`)

// look compares what was made with what nvidia-smi says: a container gets the
// node of this GPU and of no other, and a partition is there.
func (l *life) look(ctx context.Context, before []SMIPartition) (string, error) {
	spec, err := l.spec()
	if err != nil {
		return "", err
	}
	var minors, caps []string
	mounts := 0
	for _, device := range spec.Devices {
		for _, node := range device.ContainerEdits.DeviceNodes {
			if match := gpuNode.FindStringSubmatch(node.Path); match != nil {
				minors = append(minors, match[1])
			} else if strings.HasPrefix(node.Path, "/dev/nvidia-caps/") {
				caps = append(caps, node.Path)
			}
		}
		mounts += len(device.ContainerEdits.Mounts)
	}
	g := l.report.smi.of(l.board.uuid())
	if g == nil {
		return "", fmt.Errorf("nvidia-smi has no GPU %s", l.board.uuid())
	}
	if want := []string{g.Minor}; !slices.Equal(minors, want) {
		return "", fmt.Errorf("a container gets the nodes of GPUs %v, nvidia-smi says that it is number %v", minors, want)
	}
	said := fmt.Sprintf("/dev/nvidia%s, %d mounts", g.Minor, mounts)
	if !l.partition() {
		return said, nil
	}
	if len(caps) != 2 {
		return "", fmt.Errorf("a container gets the capabilities %v, and needs that of the GPU instance and of the compute instance", caps)
	}
	now, err := l.instances(ctx)
	if err != nil {
		return "", err
	}
	made := slices.DeleteFunc(now, func(p SMIPartition) bool { return slices.Contains(before, p) })
	if len(made) != 1 {
		return "", fmt.Errorf("nvidia-smi lists %d new MIG devices, before there were %d", len(made), len(before))
	}
	return fmt.Sprintf("%s, GPU instance %s, compute instance %s", said, made[0].GPUInstance, made[0].ComputeInstance), nil
}

// instances are the MIG devices of the GPU that nvidia-smi lists now.
func (l *life) instances(ctx context.Context) ([]SMIPartition, error) {
	if !l.partition() {
		return nil, nil
	}
	now, err := askSMI(ctx, l.SMI)
	if err != nil {
		return nil, err
	}
	g := now.of(l.board.uuid())
	if g == nil {
		return nil, fmt.Errorf("nvidia-smi has no GPU %s", l.board.uuid())
	}
	return g.Partitions, nil
}

// errLeft occurs where something of a claim outlives it.
var errLeft = errors.New("the CDI file is still there")

// unprepare takes the device back, and looks that nothing of it is left.
func (l *life) unprepare(ctx context.Context, before []SMIPartition) (string, error) {
	if err := l.driver.unprepare(ctx, l.claim); err != nil {
		return "", err
	}
	if _, err := l.spec(); err == nil {
		return "", errLeft
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	after, err := l.instances(ctx)
	if err != nil {
		return "", err
	}
	if !slices.Equal(after, before) {
		return "", fmt.Errorf("there are %d MIG devices, before there were %d", len(after), len(before))
	}
	if err := l.server.release(ctx, l.claim); err != nil {
		return "", err
	}
	return "nothing is left of it", nil
}
