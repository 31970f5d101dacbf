//go:build e2e

package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// What a run that was killed left in a cluster that is used again.

// labelSuite is on the namespace of every suite, and ownPrefix begins the name
// of what suites make outside of it.
const (
	labelSuite = "gpuladder.dev/e2e"
	ownPrefix  = "e2e-"
)

// sweep removes it: namespaces with their Pods, policies, and whatever was
// broken on purpose.
func (w *world) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within.cleanup)
	defer cancel()
	namespaces := &corev1.NamespaceList{}
	if err := w.client.List(ctx, namespaces, client.HasLabels{labelSuite}); err != nil {
		return fmt.Errorf("looking for what an earlier run left, %w", err)
	}
	var tainted []device
	for _, d := range w.devices("") {
		if len(w.taints(d)) > 0 {
			tainted = append(tainted, d)
		}
	}
	if len(namespaces.Items)+len(tainted) == 0 {
		return nil
	}
	start := time.Now()
	fmt.Fprintf(os.Stderr, "an earlier run has not ended in order: removing %d namespaces and mending %d devices\n", len(namespaces.Items), len(tainted))
	err := errors.Join(w.sweepCluster(ctx), w.undoFaults(ctx, tainted))
	if err != nil {
		return fmt.Errorf("removing what an earlier run left, %w", err)
	}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		// With their own time to end: a Pod that is forced away leaves its device prepared.
		if err := w.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(ns.Name)); err != nil {
			return fmt.Errorf("removing what an earlier run left, %w", err)
		}
		if err := w.client.Delete(ctx, ns); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing what an earlier run left, %w", err)
		}
	}
	return workload.WaitFor(ctx, within.cleanup, "the namespaces of an earlier run to be gone", func(ctx context.Context) (bool, string, error) {
		left := &corev1.NamespaceList{}
		if err := w.client.List(ctx, left, client.HasLabels{labelSuite}); err != nil {
			return again(err)
		}
		var names []string
		for _, ns := range left.Items {
			names = append(names, ns.Name)
		}
		return len(names) == 0, fmt.Sprintf("%v are left after %s", names, time.Since(start).Round(time.Second)), nil
	})
}

// sweepCluster removes what suites make outside of their namespaces.
func (w *world) sweepCluster(ctx context.Context) error {
	var errs []error
	for _, list := range []client.ObjectList{
		&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{},
		&v1alpha1.TenantQuotaList{}, &v1alpha1.AcceleratorPolicyList{},
	} {
		err := w.client.List(ctx, list)
		if err == nil {
			err = meta.EachListItem(list, func(item runtime.Object) error {
				if o := item.(client.Object); strings.HasPrefix(o.GetName(), ownPrefix) {
					errs = append(errs, client.IgnoreNotFound(w.client.Delete(ctx, o)))
				}
				return nil // the others are removed all the same
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// undoFaults ends what was broken on purpose.
func (w *world) undoFaults(ctx context.Context, tainted []device) error {
	var errs []error
	if n, ok := w.provider.(nodes); ok {
		for _, node := range w.gpuNodes() {
			_, err := n.fault(ctx, node, "clear")
			errs = append(errs, err)
		}
	}
	for _, d := range tainted {
		// A board that was taken out can't be mended: nodes are equipped after this.
		if err := w.mendDevice(ctx, d); err != nil {
			fmt.Fprintf(os.Stderr, "mending %s, %v\n", d, err)
		}
	}
	return errors.Join(append(errs, w.startScheduler(ctx))...)
}
