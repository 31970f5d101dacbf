package hardware

// This file reads what nvidia-smi says.

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"gpuladder.dev/ladder/drivers/fakenvml"
)

// SMI is what nvidia-smi -q -x says, as far as it is compared.
type SMI struct {
	// Simulated: it is of no real GPU.
	Simulated bool     `xml:"-"`
	Driver    string   `xml:"driver_version"`
	CUDA      string   `xml:"cuda_version"`
	GPUs      []SMIGPU `xml:"gpu"`
}

// SMIGPU is one GPU.
type SMIGPU struct {
	Product      string         `xml:"product_name"`
	Architecture string         `xml:"product_architecture"`
	UUID         string         `xml:"uuid"`
	Minor        string         `xml:"minor_number"`
	BusID        string         `xml:"pci>pci_bus_id"`
	Memory       string         `xml:"fb_memory_usage>total"`
	MIG          string         `xml:"mig_mode>current_mig"`
	Partitions   []SMIPartition `xml:"mig_devices>mig_device"`
}

// SMIPartition is a MIG device.
type SMIPartition struct {
	GPUInstance     string `xml:"gpu_instance_id"`
	ComputeInstance string `xml:"compute_instance_id"`
}

// errNoLog occurs where there is XML of something else.
var errNoLog = errors.New("it is no nvidia_smi_log")

// ParseSMI reads the XML.
func ParseSMI(data []byte) (*SMI, error) {
	var said struct {
		XMLName xml.Name
		SMI
	}
	if err := xml.Unmarshal(data, &said); err != nil {
		return nil, fmt.Errorf("reading nvidia-smi's XML, %w", err)
	}
	if said.XMLName.Local != "nvidia_smi_log" {
		return nil, fmt.Errorf("reading nvidia-smi's XML, %w", errNoLog)
	}
	simulated, err := labelled(data)
	if err != nil {
		return nil, fmt.Errorf("reading nvidia-smi's XML, %w", err)
	}
	said.Simulated = simulated
	return &said.SMI, nil
}

// labelled looks for the comment of the simulation.
func labelled(data []byte) (bool, error) {
	tokens := xml.NewDecoder(bytes.NewReader(data))
	for {
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if comment, is := token.(xml.Comment); is && strings.Contains(string(comment), fakenvml.SMILabel) {
			return true, nil
		}
	}
}

// askSMI runs nvidia-smi.
func askSMI(ctx context.Context, program string) (*SMI, error) {
	var said, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-q", "-x")
	cmd.Stdout, cmd.Stderr = &said, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s -q -x, %w, %s", program, err, firstLine(said.String()+complaint.String()))
	}
	return ParseSMI(said.Bytes())
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// address is the bus ID as the kernel writes it: 00000000:3B:00.0 is
// 0000:3b:00.0.
func (g *SMIGPU) address() string {
	domain, rest, _ := strings.Cut(strings.ToLower(g.BusID), ":")
	number, err := strconv.ParseUint(domain, 16, 32)
	if err != nil {
		return strings.ToLower(g.BusID)
	}
	return fmt.Sprintf("%04x:%s", number, rest)
}

// of finds a GPU by its UUID.
func (s *SMI) of(uuid string) *SMIGPU {
	for i := range s.GPUs {
		if strings.EqualFold(s.GPUs[i].UUID, uuid) {
			return &s.GPUs[i]
		}
	}
	return nil
}
