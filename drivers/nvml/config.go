package nvml

// This file is the configuration: what a person writes into a file, and what
// the program adds.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/nvml/sharing"
	"gpuladder.dev/ladder/drivers/xid"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// PolicyKind is the kind of the configuration file; its apiVersion is that of
// Ladder's objects.
const PolicyKind = "NVMLDriver"

// Policy is the configuration file: which GPUs are published, as what, and
// what counts against them.
type Policy struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// GPUs says which GPUs the driver touches. Others it neither publishes nor
	// asks how they are.
	GPUs GPUs `json:"gpus,omitempty"`
	// Publish says as what they are published.
	Publish Publish `json:"publish,omitempty"`
	// Health changes what the health table says.
	Health Health `json:"health,omitempty"`
}

// GPUs chooses: a GPU is published if one of Allow matches, or there is none,
// and none of Deny does.
type GPUs struct {
	Allow []Match `json:"allow,omitempty"`
	Deny  []Match `json:"deny,omitempty"`
}

// Match is what must be true of a GPU; what is left out matches any.
type Match struct {
	// UUID as NVML prints it: GPU-….
	UUID string `json:"uuid,omitempty"`
	// PCIAddress with or without domain and function: 0000:3b:00.0, 3b:00.
	PCIAddress string `json:"pciAddress,omitempty"`
	// Index is NVML's, from 0. It is the place in the order of PCI addresses, and
	// shifts when a GPU is missing: prefer the address.
	Index *int `json:"index,omitempty"`
	// Model is the attribute `model`: H100.
	Model string `json:"model,omitempty"`
}

// Publish says as what GPUs are published.
type Publish struct {
	// Partitions are published of boards in MIG mode. Default true. Without
	// them such a board is published as a whole.
	Partitions *bool `json:"partitions,omitempty"`
	// WholeMIG publishes boards in MIG mode as a whole too. Default true.
	WholeMIG *bool `json:"wholeMIG,omitempty"`
	// Profiles are the only ones that are published, by name: 1g.10gb. Default
	// all that the board has.
	Profiles []string `json:"profiles,omitempty"`
}

// Health changes severities: healthy, suspect or failed.
type Health struct {
	// XIDs by code, as text: "13".
	XIDs map[string]string `json:"xids,omitempty"`
	// Signals by the names of the health table: nvlink-down.
	Signals map[string]string `json:"signals,omitempty"`
}

// LoadPolicy reads a configuration file. No path means no file: the defaults.
// Fields that it does not know are errors.
func LoadPolicy(path string) (Policy, error) {
	if path == "" {
		return Policy{}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Policy{}, fmt.Errorf("reading configuration, %w", err)
	}
	policy, err := ParsePolicy(data)
	if err != nil {
		return Policy{}, fmt.Errorf("reading configuration %s, %w", path, err)
	}
	return policy, nil
}

// ParsePolicy reads a configuration file's content.
func ParsePolicy(data []byte) (Policy, error) {
	var policy Policy
	if err := yaml.UnmarshalStrict(data, &policy); err != nil {
		return Policy{}, err
	}
	var errs field.ErrorList
	if version := v1alpha1.GroupVersion.String(); policy.APIVersion != version {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), policy.APIVersion, []string{version}))
	}
	if policy.Kind != PolicyKind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), policy.Kind, []string{PolicyKind}))
	}
	return policy, append(errs, policy.validate()...).ToAggregate()
}

// Validate says what can't be meant.
func (p *Policy) Validate() error { return p.validate().ToAggregate() }

// Severities that a policy can name.
var severities = map[string]inventory.Severity{
	inventory.Healthy.String(): inventory.Healthy, inventory.Suspect.String(): inventory.Suspect, inventory.Failed.String(): inventory.Failed,
}

// What UUIDs and names of MIG profiles look like.
var (
	uuidForm    = regexp.MustCompile(`^(?i)GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	profileForm = regexp.MustCompile(`^[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z]+([.,][a-z]+)*)*$`)
)

func (p *Policy) validate() field.ErrorList {
	var errs field.ErrorList
	gpus := field.NewPath("gpus")
	for name, list := range map[string][]Match{"allow": p.GPUs.Allow, "deny": p.GPUs.Deny} {
		for i, match := range list {
			at := gpus.Child(name).Index(i)
			if match == (Match{}) {
				errs = append(errs, field.Required(at, "say uuid, pciAddress, index or model"))
			}
			if match.Index != nil && *match.Index < 0 {
				errs = append(errs, field.Invalid(at.Child("index"), *match.Index, "must not be negative"))
			}
			if match.UUID != "" && !uuidForm.MatchString(match.UUID) {
				errs = append(errs, field.Invalid(at.Child("uuid"), match.UUID, "must be whole, as nvidia-smi -L prints it: GPU- and 32 hexadecimal digits in five groups"))
			}
			if match.PCIAddress != "" {
				if _, err := parseAddress(match.PCIAddress); err != nil {
					errs = append(errs, field.Invalid(at.Child("pciAddress"), match.PCIAddress, err.Error()))
				}
			}
		}
	}
	if !p.Publish.partitions() && !p.Publish.wholeMIG() {
		errs = append(errs, field.Forbidden(field.NewPath("publish"), "of a board in MIG mode nothing would be left: publish partitions, the whole, or deny it"))
	}
	for i, profile := range p.Publish.Profiles {
		if !profileForm.MatchString(profile) {
			errs = append(errs, field.Invalid(field.NewPath("publish", "profiles").Index(i), profile, "must be the name of a MIG profile, such as 1g.10gb or 1g.10gb+me"))
		}
	}
	health := field.NewPath("health")
	for code, severity := range p.Health.XIDs {
		if number, err := strconv.Atoi(code); err != nil || number < 1 {
			errs = append(errs, field.Invalid(health.Child("xids"), code, "must be the number of an XID"))
		}
		errs = append(errs, validSeverity(health.Child("xids").Key(code), severity)...)
	}
	for name, severity := range p.Health.Signals {
		if _, known := xid.RowOf(xid.Signal(name)); !known {
			errs = append(errs, field.NotSupported(health.Child("signals"), name, signalNames()))
		}
		errs = append(errs, validSeverity(health.Child("signals").Key(name), severity)...)
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

func validSeverity(at *field.Path, severity string) field.ErrorList {
	if _, known := severities[severity]; known {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, severity, []string{"healthy", "suspect", "failed"})}
}

func signalNames() []string {
	var names []string
	for _, row := range xid.Signals() {
		names = append(names, string(row.Signal))
	}
	return names
}

func (p *Publish) partitions() bool { return p.Partitions == nil || *p.Partitions }
func (p *Publish) wholeMIG() bool   { return p.WholeMIG == nil || *p.WholeMIG || !p.partitions() }

// profile says whether a profile is published.
func (p *Publish) profile(name string) bool {
	return len(p.Profiles) == 0 || slices.Contains(p.Profiles, name)
}

// severityOfXID is what the policy, or else the table, says of an XID.
func (h *Health) severityOfXID(code int) inventory.Severity {
	if severity, changed := severities[h.XIDs[strconv.Itoa(code)]]; changed {
		return severity
	}
	return xid.SeverityOf(code)
}

// row of a signal, with the policy's severity.
func (h *Health) row(signal xid.Signal) xid.SignalRow {
	row, _ := xid.RowOf(signal)
	if severity, changed := severities[h.Signals[string(signal)]]; changed {
		row.Severity = severity
	}
	return row
}

// includes says whether a GPU is one that the driver touches.
func (g *GPUs) includes(gpu *identity) bool {
	matches := func(m Match) bool { return m.matches(gpu) }
	return (len(g.Allow) == 0 || slices.ContainsFunc(g.Allow, matches)) && !slices.ContainsFunc(g.Deny, matches)
}

func (m *Match) matches(gpu *identity) bool {
	if m.PCIAddress != "" {
		if at, err := parseAddress(m.PCIAddress); err != nil || at != gpu.Address {
			return false
		}
	}
	return (m.UUID == "" || strings.EqualFold(m.UUID, gpu.UUID)) &&
		(m.Index == nil || *m.Index == gpu.Index) &&
		(m.Model == "" || m.Model == gpu.Model)
}

// Editor makes what a container needs to use a GPU, or a MIG device, by UUID.
type Editor interface {
	Edits(uuid string) (specs.ContainerEdits, error)
}

// Config is what an inventory works with.
type Config struct {
	// NVML is the library. It is opened by Run.
	NVML nvml.Interface
	// Editor makes the edits of containers.
	Editor Editor
	// Sharing has devices shared as claims ask for; without it they are Exclusive
	// only. Its GPUs are set by [New].
	Sharing *sharing.Config
	// Policy is the configuration file.
	Policy Policy
	// MemoryFile remembers the GPUs that were seen since the node has booted; ""
	// remembers them only as long as the driver runs. BootIDFile is read for the
	// ID of the boot.
	MemoryFile, BootIDFile string
	// RemoveUnknown destroys MIG instances that no claim has when the driver
	// starts. Otherwise their place is published as taken: not at all.
	RemoveUnknown bool
	// Sysfs are where PCIe root and NUMA node are read; see [deviceattribute].
	Sysfs []deviceattribute.MachineModifier

	// CallLimit is how long a call of NVML may take, and StartLimit how long the
	// first answers of Pool and Health are waited for.
	CallLimit, StartLimit time.Duration
	// EditLimit is how long it may take to make a partition, or edits.
	EditLimit time.Duration
	// PollPeriod is how often each GPU is asked how it is.
	PollPeriod time.Duration
	// RetryLimit is the longest wait before a driver that is away, or a GPU that
	// is lost, is looked for again. The first wait is a thirtieth of it.
	RetryLimit time.Duration
	// Settle is how long NVIDIA's driver must not ask for anything after an XID
	// for which it never did before the XID is taken for over.
	Settle time.Duration

	Clock clock.WithTicker
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// Defaults for a production node.
const (
	DefaultCallLimit  = 10 * time.Second
	DefaultStartLimit = 15 * time.Second
	DefaultEditLimit  = 45 * time.Second
	DefaultPollPeriod = 10 * time.Second
	DefaultRetryLimit = 30 * time.Second
	DefaultSettle     = 2 * time.Minute
)

func (c *Config) defaults() error {
	if c.NVML == nil || c.Editor == nil {
		return errors.New("the library or the editor is missing")
	}
	if err := c.Policy.Validate(); err != nil {
		return err
	}
	for _, d := range []struct {
		value *time.Duration
		to    time.Duration
	}{
		{&c.CallLimit, DefaultCallLimit},
		{&c.StartLimit, DefaultStartLimit},
		{&c.EditLimit, DefaultEditLimit},
		{&c.PollPeriod, DefaultPollPeriod},
		{&c.RetryLimit, DefaultRetryLimit},
		{&c.Settle, DefaultSettle},
	} {
		if *d.value < 0 {
			return errors.New("periods and limits must not be negative")
		}
		if *d.value == 0 {
			*d.value = d.to
		}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return nil
}

// Held returns the names of the devices that claims have prepared.
type Held func(ctx context.Context) ([]string, error)
