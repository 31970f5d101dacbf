package decision

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
	"gpuladder.dev/ladder/tools/internal/cluster"
	"gpuladder.dev/ladder/tools/internal/command"
)

// printer writes decisions for a person. The first error of writing stays.
type printer struct {
	command.Streams
	text bytes.Buffer
}

func (p *printer) line(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	p.text.WriteString(strings.TrimRight(line, " ") + "\n")
}

func (p *printer) flush(w io.Writer) error {
	_, err := p.text.WriteTo(w)
	return err
}

// short writes a decision in a line, and a line for each tier.
func (p *printer) short(d *decide.Decision) {
	p.line("%s  %s", p.Paint(command.Strong, d.Namespace+"/"+d.Pod), p.headline(d))
	width := 0
	for _, t := range d.Tiers {
		width = max(width, len(t.Name))
	}
	for _, t := range d.Tiers {
		var counts []string
		for _, r := range t.Rejections {
			counts = append(counts, fmt.Sprintf("%d %s", r.Count, r.Code))
		}
		p.line("  %-*s  %-11s  %s", width, t.Name, tierWords[t.Outcome], strings.Join(counts, ", "))
	}
}

// gated writes a Pod that was not decided in a line.
func (p *printer) gated(g Gated) {
	why := ""
	if slices.Contains(g.Gates, v1alpha1.GateQuota) {
		why = fmt.Sprintf(" (`ladder quota explain %s -n %s` says why)", g.Pod, g.Namespace)
	}
	p.line("%s  %s: %s%s", p.Paint(command.Strong, g.Namespace+"/"+g.Pod), p.Paint(command.Notice, "Gated"), cluster.AtGates(g.Gates), why)
}

// headline is the outcome in one line.
func (p *printer) headline(d *decide.Decision) string {
	if d.Outcome != v1alpha1.OutcomeAllocated {
		return p.outcome(d.Outcome) + ": " + reason(d)
	}
	return fmt.Sprintf("%s: %son %s: %s", p.outcome(d.Outcome), tierOf(d), d.Node, devices(d))
}

// reason is the message without the outcome that it opens with.
func reason(d *decide.Decision) string {
	return strings.TrimPrefix(d.Message, string(d.Outcome)+": ")
}

func (p *printer) outcome(o v1alpha1.Outcome) string {
	style := command.Bad
	switch o {
	case v1alpha1.OutcomeAllocated:
		style = command.Good
	case v1alpha1.OutcomePending:
		style = command.Notice
	}
	return p.Paint(style, string(o))
}

// tierOf names the chosen tier and the revision that has it, or nothing where
// there is none.
func tierOf(d *decide.Decision) string {
	switch {
	case d.Tier == "":
		return ""
	case d.Policy == "":
		return fmt.Sprintf("tier %s, ", d.Tier)
	}
	return fmt.Sprintf("tier %s of %s revision %d, ", d.Tier, d.Policy, d.PolicyRevision)
}

// devices names the chosen devices and their models, in order.
func devices(d *decide.Decision) string {
	var names []string
	for _, x := range d.Devices {
		name := x.Device
		if x.Pool != d.Node {
			name = x.Pool + "/" + name
		}
		if x.Model != "" {
			name += " (" + x.Model + ")"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "no device"
	}
	return strings.Join(names, ", ")
}

// full writes a decision with its evidence: what was chosen first, then tier by
// tier what became of the devices, with examples.
func (p *printer) full(d *decide.Decision) {
	p.line("Pod %s: %s", p.Paint(command.Strong, d.Namespace+"/"+d.Pod), p.outcome(d.Outcome))
	if d.Outcome == v1alpha1.OutcomeAllocated {
		if d.Tier != "" && d.TierIndex != nil {
			p.fact("tier", "%s (%d of %d)", d.Tier, *d.TierIndex+1, len(d.Tiers))
		}
		p.fact("node", "%s", d.Node)
		for _, x := range d.Devices {
			model := ""
			if x.Model != "" {
				model = " (" + x.Model + ")"
			}
			p.fact("device", "%s%s in pool %s of %s%s", x.Device, model, x.Pool, x.Driver, request(x))
		}
	} else {
		p.fact("why", "%s", reason(d))
		if d.Class != "" {
			p.fact("class", "%s", d.Class)
		}
	}
	if d.Claim != "" {
		p.fact("claim", "%s", d.Claim)
	}
	if d.Policy != "" {
		p.fact("policy", "%s", strings.Join(nonEmpty(d.Policy, fmt.Sprintf("revision %d", d.PolicyRevision), shortHash(d.PolicyHash)), ", "))
	}
	if d.DecidedAt != nil {
		engine := ""
		if d.EngineVersion != "" {
			engine = "engine " + d.EngineVersion
		}
		p.fact("decided", "%s", strings.Join(nonEmpty(d.DecidedAt.UTC().Format(time.RFC3339), fmt.Sprintf("attempt %d", d.Attempt), engine), ", "))
	}
	if d.InputDigest != "" {
		p.fact("input", "%s", shortHash(d.InputDigest))
	}
	if d.Journal != "" {
		p.fact("journal", "%s", d.Journal)
	}
	if len(d.Tiers) == 0 {
		return
	}
	p.line("")
	p.line("Tiers, the most wanted first:")
	for i, t := range d.Tiers {
		p.line("  %d. %s  %s", i+1, p.Paint(command.Strong, t.Name), tierWords[t.Outcome])
		for _, r := range t.Rejections {
			p.line("     %5d  %-24s %s", r.Count, r.Code, p.Paint(command.Faint, words[r.Code]))
			p.examples(r)
		}
	}
}

func (p *printer) examples(r v1alpha1.Rejection) {
	for _, e := range r.Examples {
		place := e.Device
		switch {
		case e.Node != "" && e.Pool != "" && e.Pool != e.Node:
			place = fmt.Sprintf("%s %s/%s", e.Node, e.Pool, e.Device)
		case e.Node != "":
			place = fmt.Sprintf("%s %s", e.Node, e.Device)
		case e.Pool != "":
			place = fmt.Sprintf("%s/%s", e.Pool, e.Device)
		}
		if e.Detail != "" {
			place += ": " + e.Detail
		}
		p.line("              %s", place)
	}
	if left := int(r.Count) - len(r.Examples); left > 0 && len(r.Examples) > 0 {
		p.line("              and %d more", left)
	}
}

// nonEmpty leaves empty words out.
func nonEmpty(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}

func (p *printer) fact(name, format string, args ...any) {
	p.line("  %-8s %s", name, fmt.Sprintf(format, args...))
}

func request(x v1alpha1.DecidedDevice) string {
	switch {
	case x.Request == "":
		return ""
	case x.Claim != "":
		return fmt.Sprintf(", for %s of claim %s", x.Request, x.Claim)
	}
	return ", for " + x.Request
}

// shortHash leaves enough of a hash to tell two apart by eye.
func shortHash(h string) string {
	const keep = len(v1alpha1.HashPrefix) + 12
	if len(h) > keep {
		return h[:keep]
	}
	return h
}
