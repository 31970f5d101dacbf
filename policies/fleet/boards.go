package fleet

// This file is the catalog of boards: what real boards say about themselves.

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Board is what a GPU reports about itself, in NVIDIA's words.
type Board struct {
	// Name is how fleet files call the board.
	Name string `json:"name"`
	// Model is the attribute `model`, which policies name in their tiers: H100.
	Model string `json:"model"`
	// ProductName is NVML's nvmlDeviceGetName.
	ProductName string `json:"productName"`
	// Architecture as NVIDIA's go-nvlib prints it: Hopper, "Ada Lovelace".
	Architecture string `json:"architecture"`
	// Brand as go-nvlib prints it. Default: Nvidia, as on all current boards.
	Brand string `json:"brand,omitempty"`
	// ComputeCapability is the CUDA compute capability: "9.0".
	ComputeCapability string `json:"computeCapability"`
	// Memory is NVML's nvmlDeviceGetMemoryInfo total, in bytes. It is less than
	// what the board is sold as: the part that the firmware keeps is not in it.
	Memory resource.Quantity `json:"memory"`
	// DriverVersion is that of NVIDIA's driver as NVML prints it: "580.105.08".
	// Default: [DefaultDriverVersion].
	DriverVersion string `json:"driverVersion,omitempty"`
}

// DefaultDriverVersion is the driver of boards for which no capture says which
// one they were seen with.
const DefaultDriverVersion = "580.126.20"

const defaultBrand = "Nvidia"

// Default sets what the file left out.
func (b *Board) Default() {
	if b.Brand == "" {
		b.Brand = defaultBrand
	}
	if b.DriverVersion == "" {
		b.DriverVersion = DefaultDriverVersion
	}
}

// catalog has one entry per board, in order of name. A "capture" is the output
// of nvidia-smi -q -x from a real board, kept in NVIDIA/k8s-test-infra under
// tests/e2e/go/assertions/nvidiasmi/testdata/hardware. Compute capabilities
// are those of https://developer.nvidia.com/cuda-gpus.
var catalog = []Board{
	{
		// Name and 23028 MiB from published nvidia-smi output of several boards;
		// no capture, so the driver is the default. Amazon's A10G is another board.
		Name: "A10", Model: "A10", ProductName: "NVIDIA A10",
		Architecture: "Ampere", ComputeCapability: "8.6", Memory: mib(23028),
	},
	{
		// Capture with driver 570.148.08: 40960 MiB.
		Name: "A100-SXM4-40GB", Model: "A100", ProductName: "NVIDIA A100-SXM4-40GB",
		Architecture: "Ampere", ComputeCapability: "8.0", Memory: mib(40960),
		DriverVersion: "570.148.08",
	},
	{
		// 81920 MiB: published nvidia-smi output, and a ResourceSlice of NVIDIA's
		// DRA driver that shows 85899345920 bytes (its issue 35). No capture.
		Name: "A100-SXM4-80GB", Model: "A100", ProductName: "NVIDIA A100-SXM4-80GB",
		Architecture: "Ampere", ComputeCapability: "8.0", Memory: mib(81920),
	},
	{
		// Capture with driver 580.105.08: 81559 MiB, less than an A100 of 80 GB.
		Name: "H100-SXM5-80GB", Model: "H100", ProductName: "NVIDIA H100 80GB HBM3",
		Architecture: "Hopper", ComputeCapability: "9.0", Memory: mib(81559),
		DriverVersion: "580.105.08",
	},
	{
		// Name and 23034 MiB from published nvidia-smi output; no capture.
		Name: "L4", Model: "L4", ProductName: "NVIDIA L4",
		Architecture: "Ada Lovelace", ComputeCapability: "8.9", Memory: mib(23034),
	},
	{
		// Capture with driver 595.91.07: 46068 MiB.
		Name: "L40S", Model: "L40S", ProductName: "NVIDIA L40S",
		Architecture: "Ada Lovelace", ComputeCapability: "8.9", Memory: mib(46068),
		DriverVersion: "595.91.07",
	},
	{
		// Capture with driver 595.91.07: 15360 MiB; the name still says Tesla,
		// the brand does not.
		Name: "T4", Model: "T4", ProductName: "Tesla T4",
		Architecture: "Turing", ComputeCapability: "7.5", Memory: mib(15360),
		DriverVersion: "595.91.07",
	},
}

// Boards returns the catalog, in order of name.
func Boards() []Board {
	boards := make([]Board, len(catalog))
	for i := range catalog {
		boards[i] = catalog[i]
		boards[i].Memory = catalog[i].Memory.DeepCopy()
		boards[i].Default()
	}
	return boards
}

// board finds a board by name, in the catalog and then in the file.
func (f *Fleet) board(name string) (Board, bool) {
	for _, list := range [][]Board{catalog, f.Boards} {
		for i := range list {
			if list[i].Name == name {
				board := list[i]
				board.Default()
				return board, true
			}
		}
	}
	return Board{}, false
}

func mib(n int64) resource.Quantity {
	return *resource.NewQuantity(n<<20, resource.BinarySI)
}

// numbers is a version as NVIDIA prints it: one to three numbers.
var numbers = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,2}$`)

// semver turns a version as NVIDIA prints it ("580.105.08", "9.0") into the
// semantic version that an attribute must be: three numbers, no leading zeros.
func semver(version string) (string, error) {
	if !numbers.MatchString(version) {
		return "", fmt.Errorf("%q must be one to three numbers joined by dots", version)
	}
	parts := strings.Split(version, ".")
	for i, part := range parts {
		number, err := strconv.Atoi(part)
		if err != nil {
			return "", fmt.Errorf("reading version %q, %w", version, err)
		}
		parts[i] = strconv.Itoa(number)
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, "."), nil
}

// cudaVersions are the CUDA versions that the branches of NVIDIA's driver
// report (nvmlSystemGetCudaDriverVersion), by the release notes of the
// branches. A branch that is not here publishes no CUDA version at all.
var cudaVersions = map[string]string{
	"535": "12.2.0",
	"550": "12.4.0",
	"570": "12.8.0",
	"580": "13.0.0",
	"595": "13.2.0",
}

// cudaVersion is the CUDA version of a driver version, if it is known.
func cudaVersion(driver string) (string, bool) {
	branch, _, _ := strings.Cut(driver, ".")
	version, ok := cudaVersions[branch]
	return version, ok
}
