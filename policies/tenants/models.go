package tenants

// Which models a turn is for, where it is not for any that a policy takes.

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// modelsOn are the models that a Pod may use, as it says, sorted; empty: any. It
// counts on Pods of a policy alone: on others anybody may write it.
func modelsOn(pod *corev1.Pod) []string {
	if templateOf(pod) == "" {
		return nil
	}
	return either(v1alpha1.TurnModels(pod))
}

// modelsFor are the models that a Pod may use, unless it was let use any and does
// not say so yet.
func (m *Mirror) modelsFor(id string) []string {
	if m.widened[id] {
		return nil
	}
	return modelsOn(m.pods[id])
}

// widen lets a Pod use any model, whatever it says.
func (m *Mirror) widen(id string) {
	if len(modelsOn(m.pods[id])) > 0 {
		m.widened[id] = true
	}
}

// either is what may be used where each of the lists holds for some: their
// union, sorted. An empty list is any model, and so is what it is a part of.
func either(lists ...[]string) []string {
	if slices.ContainsFunc(lists, func(models []string) bool { return len(models) == 0 }) {
		return nil
	}
	models := slices.Concat(lists...)
	slices.Sort(models)
	return slices.Compact(models)
}

// mayUse are the models that a Pod of a gang that was let in may use; empty: any.
func (m *Mirror) mayUse(g *gang, id string) []string {
	switch pod := m.pods[id]; {
	case !HasGate(pod):
		return m.modelsFor(id)
	case m.isAsked(id, fair.Open):
		return m.asked[id].Models // it is just being written
	}
	return g.models
}
