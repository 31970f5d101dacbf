package hardware

// This file writes reports.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Report is what a check has found.
type Report struct {
	// Passed: every step succeeded, and nothing differs.
	Passed bool `json:"passed"`
	// Simulated: nothing of it is of real hardware.
	Simulated bool      `json:"simulated,omitempty"`
	Started   time.Time `json:"started"`
	System    string    `json:"system"`
	// DriverVersion and CUDAVersion are those of NVIDIA's driver.
	DriverVersion string `json:"driverVersion,omitempty"`
	CUDAVersion   string `json:"cudaVersion,omitempty"`
	// Bus are the PCI addresses of the GPUs that the kernel sees.
	Bus         []string     `json:"pciBus,omitempty"`
	GPUs        []GPU        `json:"gpus,omitempty"`
	Steps       []Step       `json:"steps"`
	Comparisons []Comparison `json:"comparisons,omitempty"`
	// Troubles are what the driver finds wrong with the GPUs; they are no failure
	// of the check.
	Troubles []string `json:"troubles,omitempty"`

	smi *SMI
}

// GPU is one GPU as nvidia-smi shows it.
type GPU struct {
	Name    string `json:"name"`
	Address string `json:"pciAddress"`
	UUID    string `json:"uuid"`
	Memory  string `json:"memory"`
	MIG     string `json:"mig"`
}

// Step is one step of a check.
type Step struct {
	Name         string `json:"name"`
	Passed       bool   `json:"passed"`
	Milliseconds int64  `json:"milliseconds"`
	// Said is what was found, or what is wrong.
	Said string `json:"said,omitempty"`
}

// String is the step in one line.
func (s Step) String() string {
	return strings.TrimRight(fmt.Sprintf("%-4s %s (%d ms) %s", passed(s.Passed), s.Name, s.Milliseconds, s.Said), " ")
}

func passed(is bool) string {
	if is {
		return "ok"
	}
	return "FAIL"
}

func (r *Report) passed() bool {
	for _, step := range r.Steps {
		if !step.Passed {
			return false
		}
	}
	return len(r.Comparisons) > 0 && len(differences(r.Comparisons)) == 0
}

// JSON is the report for programs.
func (r *Report) JSON() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing report, %w", err)
	}
	return append(data, '\n'), nil
}

// Markdown is the report for people.
func (r *Report) Markdown() string {
	var out strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	name := "no GPU"
	if len(r.GPUs) > 0 {
		name = fmt.Sprintf("%d × %s", len(r.GPUs), r.GPUs[0].Name)
	}
	put("# Hardware check: %s\n", name)
	if r.Simulated {
		put("**A simulation: the GPUs of this report do not exist.**\n")
	}
	result := "Passed"
	if !r.Passed {
		result = "**Failed**"
	}
	put("%s, %s, %s, NVIDIA driver %s, CUDA %s. Made by `go tool mage hw`.\n", result, r.Started.Format(time.DateOnly), r.System, r.DriverVersion, r.CUDAVersion)
	table := func(title string, head ...string) func(cells ...string) {
		put("## %s\n", title)
		put("| %s |", strings.Join(head, " | "))
		put("|%s", strings.Repeat("---|", len(head)))
		return func(cells ...string) {
			for i := range cells {
				cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cells[i])
			}
			put("| %s |", strings.Join(cells, " | "))
		}
	}
	row := table("GPUs, as nvidia-smi shows them", "PCI address", "name", "memory", "MIG", "UUID")
	for _, g := range r.GPUs {
		row(g.Address, g.Name, g.Memory, g.MIG, g.UUID)
	}
	put("")
	row = table("Steps", "", "step", "ms", "")
	for _, s := range r.Steps {
		row(passed(s.Passed), s.Name, fmt.Sprint(s.Milliseconds), s.Said)
	}
	put("")
	row = table("What Ladder published from NVML, beside nvidia-smi -q -x", "", "GPU", "what", "published", "nvidia-smi")
	for _, c := range r.Comparisons {
		row(passed(c.Same), c.GPU, c.What, c.Driver, c.SMI)
	}
	if len(r.Troubles) > 0 {
		put("\n## What the driver finds wrong with the GPUs\n")
		for _, t := range r.Troubles {
			put("- %s", t)
		}
	}
	return out.String()
}

// name is that of the files: the first GPU and the driver, as 2026-11-30-nvidia-h200-580.105.08.
func (r *Report) name() string {
	words := []string{r.Started.Format(time.DateOnly)}
	if r.Simulated {
		words = append(words, "simulated")
	}
	if len(r.GPUs) > 0 {
		words = append(words, r.GPUs[0].Name)
	}
	words = append(words, r.DriverVersion)
	return strings.Trim(strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '-':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, strings.Join(words, "-")), "-")
}

// Write writes both forms into a folder, which is made, and returns the paths.
func (r *Report) Write(folder string) ([]string, error) {
	data, err := r.JSON()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // documentation
		return nil, fmt.Errorf("writing report, %w", err)
	}
	base := filepath.Join(folder, r.name())
	for path, content := range map[string][]byte{base + ".json": data, base + ".md": []byte(r.Markdown())} {
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // as above
			return nil, fmt.Errorf("writing report, %w", err)
		}
	}
	return []string{base + ".json", base + ".md"}, nil
}
