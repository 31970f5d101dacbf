package lab

// What is written into the cluster before anybody uses it: accounts and roles,
// Ladder's kinds, and its admission policies.

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/policies/api/crds"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// installWithin bounds each step of the installation.
const installWithin = 60 * time.Second

//go:embed manifests/*.yaml
var manifests embed.FS

// installBase writes what the components need before they start.
func (l *Lab) installBase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, installWithin)
	defer cancel()
	c, err := client.New(l.config, client.Options{})
	if err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	definitions, err := apply.DecodeFS(crds.FS, ".")
	if err != nil {
		return err
	}
	base, err := apply.DecodeFS(manifests, "manifests")
	if err != nil {
		return err
	}
	// Kinds first: they take the longest until they are served.
	if err := apply.Objects(ctx, c, append(definitions, base...)...); err != nil {
		return err
	}
	return apply.Established(ctx, c, l.client.Discovery(), definitions...)
}

// installAdmission writes the shipped admission policies and device classes and
// returns when they are in force.
func (l *Lab) installAdmission(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, installWithin)
	defer cancel()
	objects, err := admission(l.opts)
	if err != nil {
		return err
	}
	c, err := client.New(l.config, client.Options{})
	if err != nil {
		return fmt.Errorf("making a client, %w", err)
	}
	if err := apply.Objects(ctx, c, objects...); err != nil {
		return err
	}
	if err := l.admissionInForce(ctx); err != nil {
		return err
	}
	l.sayAfter("admission policies are in force")
	return nil
}

// admission returns the admission policies of a lab with these options: always
// those that turn a label into a claim and guard Ladder's objects, and where
// somebody opens it, before them, those of the gate of tenants' Pods.
func admission(o Options) ([]*unstructured.Unstructured, error) {
	accounts := catalog.Accounts{Controller: userLadderController.name, Scheduler: userLadderScheduler.name}
	objects, err := catalog.Admission(accounts)
	if err != nil || !o.gated() {
		return objects, err
	}
	gate, err := catalog.Quota(accounts)
	return append(gate, objects...), err
}

// admissionInForce waits until a Pod that names a policy that does not exist is
// refused: the API server reads admission policies by watching them, so they
// act a moment after they were written.
func (l *Lab) admissionInForce(ctx context.Context) error {
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "admission-probe", Labels: map[string]string{v1alpha1.LabelPolicy: "ladder-lab-none-has-this-name"},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "ladder-scheduler",
			Containers:         []corev1.Container{{Name: "probe", Image: "none"}},
		},
	}
	last := errors.New("a Pod that names no policy is let in")
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := l.client.CoreV1().Pods(Namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			last = err
		}
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the admission policies, %w, last answer: %w", err, last)
	}
	return nil
}

// accountsReady waits for the account of Pods that name none: until
// kube-controller-manager has made it, no Pod can be created in the namespace.
func (l *Lab) accountsReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, installWithin)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := l.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for the service account of the namespace %s, %w", metav1.NamespaceDefault, err)
	}
	return nil
}
