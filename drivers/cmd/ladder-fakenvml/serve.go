package main

// This file takes faults by the socket of `ladder fault`.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/xid"
	"gpuladder.dev/ladder/policies/fault"
	"gpuladder.dev/ladder/policies/fleet"
)

func serveCommand() *cobra.Command {
	var at folder
	var socket string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Take faults of GPUs by a socket, as `ladder fault` asks for them",
		Long: "Take faults of GPUs by a socket, as `ladder fault` asks for them: xid, lost and remap. The other kinds are the\n" +
			"driver's own, which this program does not touch.\n\n" +
			"An XID that counts against the GPU has the driver ask for an action as well, which it does until the fault is cleared.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return errors.New("--socket is required")
			}
			dir, err := at.find()
			if err != nil {
				return err
			}
			listener, err := fault.Listen(socket)
			if err == nil {
				err = fault.Serve(cmd.Context(), listener, newBoards(dir, clock.RealClock{}))
			}
			if err != nil {
				return &exit.Error{Err: err}
			}
			return nil
		},
	}
	at.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&socket, "socket", "", "where faults are asked for")
	return cmd
}

// faultsName is the file of the faults in force, in the library's folder.
const faultsName = "faults.json"

// boards are the GPUs of a folder as what faults are injected into.
type boards struct {
	control fakenvml.Control
	path    string
	clock   clock.PassiveClock

	mu sync.Mutex
}

var _ fault.Interface = &boards{}

func newBoards(dir string, clock clock.PassiveClock) *boards {
	return &boards{control: fakenvml.Control{Dir: dir}, path: filepath.Join(dir, faultsName), clock: clock}
}

// kept is the file's content.
type kept struct {
	Last   int           `json:"last"`
	Faults []fault.Fault `json:"faults"`
}

func (b *boards) read() (kept, error) {
	var now kept
	data, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return now, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &now)
	}
	if err != nil {
		return kept{}, fmt.Errorf("reading faults, %w", err)
	}
	return now, nil
}

func (b *boards) write(now kept) error {
	data, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("keeping faults, %w", err)
	}
	return durable.WriteFile(b.path, data, 0o600)
}

// board is the number of the GPU that a device is, or is part of.
func (b *boards) board(device string) (int, error) {
	gpu, err := b.control.Find(fleet.GPUOf(device))
	if unknown := new(fakenvml.UnknownGPUError); errors.As(err, &unknown) {
		return 0, fault.UnknownDevice(device, unknown.Known)
	}
	return gpu, err
}

// List implements [fault.Interface].
func (b *boards) List(context.Context) ([]fault.Fault, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, err := b.read()
	return now.Faults, err
}

// Inject implements [fault.Interface].
func (b *boards) Inject(_ context.Context, spec fault.Spec) (fault.Fault, error) {
	if !slices.Contains([]fault.Kind{fault.XID, fault.Lost, fault.Remap}, spec.Kind) {
		return fault.Fault{}, fmt.Errorf("%w: %s is a fault of a driver, this is the hardware", fault.ErrUnsupported, spec.Kind)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	gpu, err := b.board(spec.Device)
	if err != nil {
		return fault.Fault{}, err
	}
	now, err := b.read()
	if err != nil {
		return fault.Fault{}, err
	}
	now.Last++
	made := fault.Fault{ID: strconv.Itoa(now.Last), Spec: spec, Since: b.clock.Now().UTC()}
	now.Faults = append(now.Faults, made)
	if err := errors.Join(b.write(now), b.apply(gpu, now.Faults)); err != nil {
		return fault.Fault{}, err
	}
	if spec.Kind == fault.XID {
		err = b.control.XID(gpu, uint64(spec.Code)) //nolint:gosec // checked to be positive
	}
	return made, err
}

// Clear implements [fault.Interface]. What is cleared is as after a repair.
func (b *boards) Clear(_ context.Context, which fault.Selector) ([]fault.Fault, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if which.Device != "" {
		if _, err := b.board(which.Device); err != nil {
			return nil, err
		}
	}
	now, err := b.read()
	if err != nil {
		return nil, err
	}
	var cleared, left []fault.Fault
	for _, f := range now.Faults {
		if which.Matches(f) {
			cleared = append(cleared, f)
		} else {
			left = append(left, f)
		}
	}
	if len(cleared) == 0 && which.ID != "" {
		return nil, fault.UnknownFault(which.ID)
	}
	now.Faults = left
	if err := b.write(now); err != nil {
		return nil, err
	}
	for _, f := range cleared {
		gpu, err := b.board(f.Device)
		if errors.Is(err, fault.ErrNotFound) {
			continue // there is other hardware now
		}
		if err == nil {
			err = b.apply(gpu, left)
		}
		if err != nil {
			return nil, err
		}
	}
	return cleared, nil
}

// Actions that NVIDIA's driver asks for, as NVML numbers them.
const (
	actionNone   = 0
	actionReset  = 1
	actionReboot = 2
)

// apply makes a GPU what the faults that are in force say.
func (b *boards) apply(gpu int, faults []fault.Fault) error {
	var lost uint64
	remap, action := fakenvml.Remap{}, uint64(actionNone)
	for _, f := range faults {
		if at, err := b.board(f.Device); err != nil || at != gpu {
			continue
		}
		switch f.Kind {
		case fault.Lost:
			lost = 1
		case fault.Remap:
			remap = fakenvml.Remap{Uncorrectable: 1, Pending: true}
		case fault.XID:
			action = max(action, actionFor(f.Code))
		}
	}
	return errors.Join(b.control.Set(gpu, "lost", lost), b.control.Remap(gpu, remap), b.control.RecoveryAction(gpu, action))
}

// actionFor is what the driver asks for after an XID.
func actionFor(code int) uint64 {
	switch {
	case xid.SeverityOf(code) == inventory.Healthy:
		return actionNone
	case xid.ActionOf(code) == xid.RestartNode:
		return actionReboot
	}
	return actionReset
}
