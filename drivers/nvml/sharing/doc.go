// Package sharing sets NVIDIA's GPUs up to be shared, by NVIDIA's own programs
// and the GPU's compute mode, and sets them back.
//
// Time slicing is the compute mode DEFAULT and the length of a turn, which
// `nvidia-smi compute-policy` sets. MPS is the compute mode EXCLUSIVE_PROCESS,
// so that no program goes past it, and one control daemon for each claim
// (`nvidia-cuda-mps-control -d`), with folders of its own.
//
// # What is remembered
//
// A file in the driver's data folder has what was begun, written before
// anything is changed: for which claim, how, and the compute mode that was
// there before. So whatever a crash leaves is found, and a GPU gets its mode
// back. It is of one boot of the node; no setting outlives that.
//
// # Programs
//
// They run in the driver root, which is made their root folder, under a time
// limit; one that can't be killed is left behind. A daemon has a mount namespace
// of its own, in which /dev/shm is the claim's folder, as it is in the claim's
// containers: programs and daemon meet there, and nobody else's do. So the
// driver root has to be neither writable nor to know the data folder.
//
// # Two drivers at once
//
// All is done under a lock on a file, one thing after another. What a program
// keeps waiting keeps others waiting, for no longer than the limits.
package sharing

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Mode is a GPU's compute mode, by NVML's numbers.
type Mode int32

// Modes that are set here.
const (
	ModeDefault          Mode = 0
	ModeExclusiveProcess Mode = 3
)

// GPU is what has to be known of one.
type GPU struct {
	UUID string
	// Partitioned boards are in MIG mode.
	Partitioned bool
}

// GPUs is what is needed of NVML.
type GPUs interface {
	// GPU is that of a device. The error is ErrGone for one that is lost or not
	// there, of which nothing has to be set back.
	GPU(ctx context.Context, device string) (GPU, error)
	// ComputeMode and SetComputeMode are of the device's GPU.
	ComputeMode(ctx context.Context, device string) (Mode, error)
	SetComputeMode(ctx context.Context, device string, mode Mode) error
}

// ErrGone: the GPU of a device is lost, with all that was set on it.
var ErrGone = errors.New("the GPU is gone")

// Config is what sharing works with. GPUs, Data and BootIDFile are required.
type Config struct {
	GPUs GPUs
	// Root is the driver root as this process sees it. Default: /.
	Root string
	// Data is the driver's data folder, which has daemons' folders too. DataOnHost
	// is the same folder as the container runtime sees it. Default: Data.
	Data, DataOnHost string
	// BootIDFile is read for the ID of the node's boot.
	BootIDFile string
	// Limit is how long one program may take, DaemonLimit a daemon to start or to
	// end.
	Limit, DaemonLimit time.Duration
	// Period is how often daemons are asked whether they are there.
	Period time.Duration
	Clock  clock.WithTicker
}

// Defaults for a production node. All that a claim waits for must end before
// kubelet gives up, after 45 seconds.
const (
	DefaultLimit       = 8 * time.Second
	DefaultDaemonLimit = 12 * time.Second
	DefaultPeriod      = 10 * time.Second
)

// Manager shares the GPUs of one node. It is safe for concurrent use, also by
// several processes on one folder.
type Manager struct {
	config   Config
	programs programs

	mu sync.Mutex // beside the lock on the file, which is one for each process
}

// New returns a manager. Nothing is looked at yet.
func New(config Config) (*Manager, error) {
	if config.GPUs == nil || config.Data == "" || config.BootIDFile == "" {
		return nil, errors.New("configuring sharing, the GPUs, the data folder or the file with the boot ID is missing")
	}
	for _, d := range []struct {
		value *time.Duration
		to    time.Duration
	}{{&config.Limit, DefaultLimit}, {&config.DaemonLimit, DefaultDaemonLimit}, {&config.Period, DefaultPeriod}} {
		if *d.value < 0 {
			return nil, errors.New("configuring sharing, limits must not be negative")
		}
		if *d.value == 0 {
			*d.value = d.to
		}
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	config.Root = filepath.Clean("/" + config.Root)
	data, err := filepath.Abs(config.Data)
	if err != nil {
		return nil, fmt.Errorf("configuring sharing, %w", err)
	}
	config.Data = data
	if config.DataOnHost == "" {
		config.DataOnHost = data
	}
	return &Manager{config: config, programs: programs{root: config.Root, limit: config.Limit}}, nil
}
