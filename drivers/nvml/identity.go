package nvml

// This file says which GPU a GPU is.

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// address is a place on the PCI bus. NVML lists function 0 only.
type address struct {
	Domain, Bus, Device uint32
}

// String is the kernel's form: 0000:3b:00.0.
func (a address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.0", a.Domain, a.Bus, a.Device)
}

// name is the device's in the pool: gpu-3b-00, or gpu-10000-3b-00 where the
// domain is not 0.
func (a address) name() string {
	if a.Domain == 0 {
		return fmt.Sprintf("gpu-%02x-%02x", a.Bus, a.Device)
	}
	return fmt.Sprintf("gpu-%04x-%02x-%02x", a.Domain, a.Bus, a.Device)
}

// parseAddress reads what a person writes: domain and function may be missing,
// the domain may have the eight digits that NVML prints.
func parseAddress(text string) (address, error) {
	wrong := errors.New("must be a PCI address, such as 0000:3b:00.0")
	rest, function, given := strings.Cut(strings.ToLower(text), ".")
	if given && function != "0" {
		return address{}, wrong
	}
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return address{}, wrong
	}
	var numbers [3]uint32
	for i, bits := range []int{32, 8, 5} {
		number, err := strconv.ParseUint(parts[i], 16, bits)
		if err != nil {
			return address{}, wrong
		}
		numbers[i] = uint32(number)
	}
	return address{Domain: numbers[0], Bus: numbers[1], Device: numbers[2]}, nil
}

// addressOf reads NVML's.
func addressOf(info *nvml.PciInfo) address {
	return address{Domain: info.Domain, Bus: info.Bus, Device: info.Device}
}

// identity is which GPU it is, for those who choose and for those who look for
// it again.
type identity struct {
	Address address `json:"address"`
	UUID    string  `json:"uuid"`
	Index   int     `json:"index"`
	Model   string  `json:"model"`
}
