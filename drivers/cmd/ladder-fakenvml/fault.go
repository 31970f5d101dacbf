package main

// This file has things happen to GPUs by command.

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fakenvml"
)

// happening is one command: what it is given and what it does.
type happening struct {
	use, short string
	args       int
	do         func(c fakenvml.Control, args []string) error
}

// happenings are all of them. A GPU is named by its number, its UUID, its PCI
// address, or the name of its device.
var happenings = []happening{
	{"xid GPU CODE", "Tell an XID event", 2, numbered(func(c fakenvml.Control, gpu int, code uint64) error { return c.XID(gpu, code) })},
	{"lost GPU", "Have a GPU fall off the bus", 1, of(fakenvml.Control.Lost)},
	{"restored GPU", "Undo lost", 1, of(fakenvml.Control.Restored)},
	{"vanish GPU", "Have a GPU be there no more", 1, of(fakenvml.Control.Vanish)},
	{"reappear GPU", "Undo vanish", 1, of(fakenvml.Control.Reappear)},
	{"reset GPU", "Reset a GPU, as nvidia-smi --gpu-reset does", 1, of(fakenvml.Control.Reset)},
	{"recovery GPU ACTION", "Have the driver ask for an action: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset", 2, numbered(fakenvml.Control.RecoveryAction)},
	{"single-bit GPU COUNT", "Count correctable ECC errors", 2, numbered(func(c fakenvml.Control, gpu int, n uint64) error {
		return c.ECC(gpu, fakenvml.Errors{SingleBit: n})
	})},
	{"double-bit GPU COUNT", "Count uncorrectable ECC errors", 2, numbered(func(c fakenvml.Control, gpu int, n uint64) error {
		return c.ECC(gpu, fakenvml.Errors{DoubleBit: n})
	})},
	{"sram GPU COUNT", "Count uncorrectable ECC errors of SRAM", 2, numbered(func(c fakenvml.Control, gpu int, n uint64) error {
		return c.ECC(gpu, fakenvml.Errors{SRAM: n})
	})},
	{"remap GPU none|pending|failure", "Make what the row remapper reports", 2, remap},
	{"nvlink GPU LINK up|down", "Take a link up or down", 3, nvlink},
	{"set GPU NAME VALUE", "Set a number of the GPU's state: temperature, power, pcie_replays, …", 3, set},
	{"hang FUNCTION DURATION [GPU]", "Have calls of a function hang", -2, hang},
	{"fail FUNCTION RETURN [GPU]", "Have calls of a function end with an nvmlReturn_t, by number", -2, fail},
	{"clear", "Take back hang and fail", 0, plain(fakenvml.Control.ClearFaults)},
	{"unload", "Take the kernel driver away", 0, plain(fakenvml.Control.UnloadDriver)},
	{"load", "Undo unload", 0, plain(fakenvml.Control.LoadDriver)},
	{"reboot", "Restart the machine", 0, plain(fakenvml.Control.Reboot)},
}

func faultCommand() *cobra.Command {
	var at folder
	cmd := &cobra.Command{Use: "fault", Short: "Have things happen to GPUs"}
	at.addFlags(cmd.PersistentFlags())
	for _, h := range happenings {
		count := cobra.ExactArgs(h.args)
		if h.args < 0 {
			count = cobra.RangeArgs(-h.args, 1-h.args)
		}
		cmd.AddCommand(&cobra.Command{Use: h.use, Short: h.short, Args: count, RunE: func(_ *cobra.Command, args []string) error {
			dir, err := at.find()
			if err != nil {
				return err
			}
			return h.do(fakenvml.Control{Dir: dir}, args)
		}})
	}
	return cmd
}

// refused is an error of the machine, unless the arguments name what there is not.
func refused(err error) error {
	if unknown := new(fakenvml.UnknownNameError); err == nil || errors.As(err, &unknown) {
		return err
	}
	return &exit.Error{Err: err}
}

func plain(do func(fakenvml.Control) error) func(fakenvml.Control, []string) error {
	return func(c fakenvml.Control, _ []string) error { return refused(do(c)) }
}

func of(do func(fakenvml.Control, int) error) func(fakenvml.Control, []string) error {
	return func(c fakenvml.Control, args []string) error {
		gpu, err := c.Find(args[0])
		if err != nil {
			return err
		}
		return refused(do(c, gpu))
	}
}

func numbered(do func(fakenvml.Control, int, uint64) error) func(fakenvml.Control, []string) error {
	return func(c fakenvml.Control, args []string) error {
		gpu, err := c.Find(args[0])
		if err != nil {
			return err
		}
		number, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return fmt.Errorf("%q must be a number", args[1])
		}
		return refused(do(c, gpu, number))
	}
}

func remap(c fakenvml.Control, args []string) error {
	states := map[string]fakenvml.Remap{"none": {}, "pending": {Uncorrectable: 1, Pending: true}, "failure": {Uncorrectable: 1, Failure: true}}
	state, known := states[args[1]]
	if !known {
		return fmt.Errorf("%q must be none, pending or failure", args[1])
	}
	return of(func(c fakenvml.Control, gpu int) error { return c.Remap(gpu, state) })(c, args)
}

func nvlink(c fakenvml.Control, args []string) error {
	if args[2] != "up" && args[2] != "down" {
		return fmt.Errorf("%q must be up or down", args[2])
	}
	return numbered(func(c fakenvml.Control, gpu int, link uint64) error {
		return c.NVLink(gpu, int(link), args[2] == "up") //nolint:gosec // of 32 bits
	})(c, args)
}

func set(c fakenvml.Control, args []string) error {
	value, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return fmt.Errorf("%q must be a number", args[2])
	}
	return of(func(c fakenvml.Control, gpu int) error { return c.Set(gpu, args[1], value) })(c, args)
}

// where is the GPU that the last argument names, if there is one.
func where(c fakenvml.Control, args []string) (int, error) {
	if len(args) < 3 {
		return fakenvml.AllGPUs, nil
	}
	return c.Find(args[2])
}

func hang(c fakenvml.Control, args []string) error {
	duration, err := time.ParseDuration(args[1])
	if err != nil || duration < 0 {
		return fmt.Errorf("%q must be a time like 1.5s", args[1])
	}
	gpu, err := where(c, args)
	if err != nil {
		return err
	}
	return refused(c.Hang(args[0], gpu, duration))
}

func fail(c fakenvml.Control, args []string) error {
	code, err := strconv.ParseUint(strings.TrimSpace(args[1]), 10, 10)
	if err != nil || code > 999 {
		return fmt.Errorf("%q must be the number of an nvmlReturn_t", args[1])
	}
	gpu, err := where(c, args)
	if err != nil {
		return err
	}
	return refused(c.Fail(args[0], gpu, code))
}
