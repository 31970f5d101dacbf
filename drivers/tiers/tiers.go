// Package tiers says which fake GPUs a real node has: its labels name a tier of
// a catalog, and the catalog has the boards.
//
// A catalog is a fleet file (package fleet of policies) whose groups are the
// tiers, so a board is described in one place only and has the same attributes
// on a fake node, in the lab and in a benchmark. [Default] has a tier for every
// board that is known, whole and partitioned.
package tiers

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/policies/fleet"
)

// Labels of a node that has fake GPUs.
const (
	// LabelTier names the tier. The driver runs on nodes that have the label.
	LabelTier = "gpuladder.dev/fake-tier"
	// LabelGPUs is the number of GPUs, 1 to fleet.MaxGPUsPerNode, in place of
	// the tier's own.
	LabelGPUs = "gpuladder.dev/fake-gpus"
)

//go:embed catalog.yaml
var embedded []byte

// Catalog is a set of tiers.
type Catalog struct {
	fleet *fleet.Fleet
}

// Default returns the catalog that is built in.
func Default() *Catalog {
	c, err := parse("the built-in catalog", embedded)
	if err != nil {
		panic(err) // it is part of the program, and tested
	}
	return c
}

// Load reads a catalog from a file; no path means the built-in one. The error
// says the file and the field.
func Load(path string) (*Catalog, error) {
	if path == "" {
		return Default(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading tier catalog, %w", err)
	}
	return parse(path, data)
}

func parse(name string, data []byte) (*Catalog, error) {
	f, err := fleet.Parse(name, bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("reading tier catalog, %w", err)
	}
	var errs field.ErrorList
	for i := range f.Groups {
		if f.Groups[i].Board == "" {
			errs = append(errs, field.Required(field.NewPath("groups").Index(i).Child("board"), "a tier has GPUs"))
		}
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, fmt.Errorf("reading tier catalog %s, %w", name, err)
	}
	return &Catalog{fleet: f}, nil
}

// Names are the names of the tiers, in the order of the file.
func (c *Catalog) Names() []string {
	names := make([]string, len(c.fleet.Groups))
	for i := range c.fleet.Groups {
		names[i] = c.fleet.Groups[i].Name
	}
	return names
}

// Choice is what the labels of a node say. Two nodes of one choice have the
// same hardware but for its identity.
type Choice struct {
	// Tier is the name of the tier.
	Tier string
	// GPUs is the number of GPUs.
	GPUs int
}

// String is how logs and Events call it: 8 GPUs of tier h100.
func (c Choice) String() string {
	if c.GPUs == 1 {
		return "1 GPU of tier " + c.Tier
	}
	return fmt.Sprintf("%d GPUs of tier %s", c.GPUs, c.Tier)
}

// ErrNoTier occurs when a node has no label that names a tier: it has no GPUs.
var ErrNoTier = errors.New("the node has no label " + LabelTier)

// Choose reads the labels of a node. The error is [ErrNoTier] without the
// label; otherwise it says which label is wrong and what would be right.
func (c *Catalog) Choose(labels map[string]string) (Choice, error) {
	tier, labelled := labels[LabelTier]
	if !labelled {
		return Choice{}, ErrNoTier
	}
	at := slices.IndexFunc(c.fleet.Groups, func(g fleet.Group) bool { return g.Name == tier })
	if at < 0 {
		return Choice{}, fmt.Errorf("label %s: there is no tier %q; there are %s", LabelTier, tier, strings.Join(c.Names(), ", "))
	}
	choice := Choice{Tier: tier, GPUs: c.fleet.Groups[at].GPUs}
	if text, labelled := labels[LabelGPUs]; labelled {
		gpus, err := strconv.Atoi(text)
		if err != nil || gpus < 1 || gpus > fleet.MaxGPUsPerNode {
			return Choice{}, fmt.Errorf("label %s: must be a number from 1 to %d, is %q", LabelGPUs, fleet.MaxGPUsPerNode, text)
		}
		choice.GPUs = gpus
	}
	return choice, nil
}

// Pool is the hardware that a choice gives to a node. The node's name goes into
// the UUIDs. Choices come from Choose of the same catalog.
func (c *Catalog) Pool(node string, choice Choice) (inventory.Pool, error) {
	var groups []fleet.Group
	for _, group := range c.fleet.Groups {
		if group.Name == choice.Tier {
			group.Resize(choice.GPUs)
			groups = append(groups, group)
		}
	}
	resized := fleet.Fleet{Boards: c.fleet.Boards, Groups: groups}
	pool, err := resized.Pool(choice.Tier, node)
	if err != nil {
		return inventory.Pool{}, fmt.Errorf("making %v, %w", choice, err)
	}
	return inventory.Pool(pool), nil
}

// ForNode is the hardware that its labels give to a node.
func (c *Catalog) ForNode(node string, labels map[string]string) (inventory.Pool, error) {
	choice, err := c.Choose(labels)
	if err != nil {
		return inventory.Pool{}, err
	}
	return c.Pool(node, choice)
}
