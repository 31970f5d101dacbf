package fleet

// This file reads a fleet from whatever file describes one.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ReadFile reads a fleet from a file: a fleet file, or, if its name ends in
// .csv, one of the node lists that [FromOpenBNodes] and [FromNodesCSV] convert,
// told apart by their header. Errors start with the path or say it.
func ReadFile(path string) (*Fleet, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening fleet, %w", err)
	}
	defer func() { _ = file.Close() }()
	if strings.ToLower(filepath.Ext(path)) != ".csv" {
		return Parse(path, file)
	}
	f, err := fromCSV(file)
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s, %w", path, err)
	}
	return f, nil
}

func fromCSV(r io.Reader) (*Fleet, error) {
	buffered := bufio.NewReader(r)
	// A header is short; what is longer than the buffer is none.
	start, err := buffered.Peek(128)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	header, _, _ := strings.Cut(string(start), "\n")
	switch {
	case strings.Contains(header, "gpu_capacity_num"):
		return FromNodesCSV(buffered)
	case strings.Contains(header, "cpu_milli"):
		return FromOpenBNodes(buffered)
	}
	return nil, errors.New("line 1: the header is that of no known node list: neither cpu_milli nor gpu_capacity_num is in it")
}
