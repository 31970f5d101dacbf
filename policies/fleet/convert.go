package fleet

// This file makes fleets from the node lists of public traces.

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds of a row: a petabyte of memory and a million cores.
const (
	maxMiB   = 1 << 30
	maxMilli = 1 << 30
)

// FromOpenBNodes makes a fleet from the list of GPU nodes of Alibaba's trace of
// 2023 (openb_node_list_gpu_node.csv: sn, cpu_milli, memory_mib, gpu, model).
//
// Nodes of equal shape become one group, called after the shape, in the order
// in which the shapes first appear; the number of nodes and of GPUs is kept,
// the trace's own node names are not. T4 and A10 are the catalog's boards. The
// others (P100, V100M16, V100M32, and G1, G2, G3, which the trace made
// anonymous) become boards of the file with the trace's word as their model.
// Of those, memory, architecture and compute capability are placeholders of
// this converter and no facts: the nominal figures where the name says which
// board it is, and figures that meet no minimum (1 GiB, capability 0.0,
// architecture "Unknown") where it does not.
func FromOpenBNodes(r io.Reader) (*Fleet, error) {
	f, err := convertNodes(r, nodeColumns{
		model: "model", gpus: "gpu", cpu: "cpu_milli", milliPerCPU: 1, memoryMiB: "memory_mib",
	})
	if err != nil {
		return nil, fmt.Errorf("converting openb nodes, %w", err)
	}
	return f, nil
}

// FromNodesCSV makes a fleet from the node list of Alibaba's trace of 2026
// (node_info_df.csv: gpu_model, gpu_capacity_num, cpu_num, node_name), by the
// rules of [FromOpenBNodes]. That trace says nothing about the nodes' memory:
// they get the default of their group. A800 and H800 have nominal figures; the
// two series that the trace made anonymous meet no minimum.
func FromNodesCSV(r io.Reader) (*Fleet, error) {
	f, err := convertNodes(r, nodeColumns{
		model: "gpu_model", gpus: "gpu_capacity_num", cpu: "cpu_num", milliPerCPU: 1000,
	})
	if err != nil {
		return nil, fmt.Errorf("converting nodes, %w", err)
	}
	return f, nil
}

// nodeColumns says in which columns a trace keeps what.
type nodeColumns struct {
	model, gpus, cpu string
	milliPerCPU      int64
	memoryMiB        string // empty: the trace does not say
}

// shape is what makes nodes equal.
type shape struct {
	model                     string
	gpus, cpuMilli, memoryMiB int64
}

func convertNodes(r io.Reader, in nodeColumns) (*Fleet, error) {
	columns := []string{in.model, in.gpus, in.cpu}
	if in.memoryMiB != "" {
		columns = append(columns, in.memoryMiB)
	}
	nodes, err := openTable(r, columns...)
	if err != nil {
		return nil, err
	}
	f := New()
	groups, boards := map[shape]int{}, map[string]string{}
	for row, err := range nodes.rows() {
		if err != nil {
			return nil, err
		}
		of, err := in.shape(row)
		if err != nil {
			return nil, err
		}
		index, known := groups[of]
		if !known {
			index = len(f.Groups)
			groups[of] = index
			f.Groups = append(f.Groups, of.group(f.boardFor(of.model, boards)))
		}
		f.Groups[index].Nodes++
	}
	f.Default()
	return f, f.Validate().ToAggregate()
}

func (in nodeColumns) shape(r row) (shape, error) {
	of := shape{model: r.text(in.model)}
	var err error
	if of.gpus, err = r.number(in.gpus, 0, MaxGPUsPerNode); err != nil {
		return of, err
	}
	if (of.gpus == 0) != (of.model == "") {
		return of, r.errorf(in.model, "a node has both a model and GPUs or neither, this one has %d of %q", of.gpus, of.model)
	}
	cpus, err := r.number(in.cpu, 1, maxMilli/in.milliPerCPU)
	if err != nil {
		return of, err
	}
	of.cpuMilli = cpus * in.milliPerCPU
	if in.memoryMiB != "" {
		of.memoryMiB, err = r.number(in.memoryMiB, 1, maxMiB)
	}
	return of, err
}

// group has the shape in its name, so that it is the same whatever else the
// file holds: t4-x2-104c-512g.
func (s shape) group(board string) Group {
	name := fmt.Sprintf("cpu-%s", unit(s.cpuMilli, 1000, "c", "m"))
	if s.gpus > 0 {
		name = fmt.Sprintf("%s-x%d-%s", label(s.model), s.gpus, unit(s.cpuMilli, 1000, "c", "m"))
	}
	group := Group{Board: board, GPUs: int(s.gpus), CPU: *resource.NewMilliQuantity(s.cpuMilli, resource.DecimalSI)}
	if s.memoryMiB > 0 {
		name += "-" + unit(s.memoryMiB, 1024, "g", "mi")
		group.Memory = mib(s.memoryMiB)
	}
	group.Name = name
	return group
}

// unit prints a number in the large unit if that is exact, else in the small one.
func unit(value, per int64, large, small string) string {
	if value%per == 0 {
		return fmt.Sprintf("%d%s", value/per, large)
	}
	return fmt.Sprintf("%d%s", value, small)
}

// label turns a model into a part of a DNS label.
func label(model string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, model), "-")
}

// nominal are boards that traces name and the catalog lacks. Memory is what
// the board is sold with, not what it reports.
var nominal = map[string]Board{
	"P100":           {Model: "P100", ProductName: "Tesla P100", Architecture: "Pascal", ComputeCapability: "6.0", Memory: mib(16 << 10)},
	"V100M16":        {Model: "V100M16", ProductName: "Tesla V100 16GB", Architecture: "Volta", ComputeCapability: "7.0", Memory: mib(16 << 10)},
	"V100M32":        {Model: "V100M32", ProductName: "Tesla V100 32GB", Architecture: "Volta", ComputeCapability: "7.0", Memory: mib(32 << 10)},
	"A800-SXM4-80GB": {Model: "A800", ProductName: "NVIDIA A800-SXM4-80GB", Architecture: "Ampere", ComputeCapability: "8.0", Memory: mib(80 << 10)},
	"H800":           {Model: "H800", ProductName: "NVIDIA H800", Architecture: "Hopper", ComputeCapability: "9.0", Memory: mib(80 << 10)},
}

// boardFor returns the board of a trace's model and adds it to the file if the
// catalog does not have it. made holds the answers given so far.
func (f *Fleet) boardFor(model string, made map[string]string) string {
	if model == "" {
		return ""
	}
	if name, known := made[model]; known {
		return name
	}
	if _, known := f.board(model); !known {
		board, named := nominal[model]
		if !named {
			board = Board{
				Model: model, ProductName: "anonymous " + model, Architecture: "Unknown",
				ComputeCapability: "0.0", Memory: mib(1 << 10),
			}
		}
		board.Name = model
		board.Default()
		f.Boards = append(f.Boards, board)
	}
	made[model] = model
	return model
}
