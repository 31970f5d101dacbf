// Package cluster reads Ladder's objects from an API server, as the user of the
// kubeconfig.
package cluster

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Flags say which cluster.
type Flags struct{ kubeconfig, context string }

// Flags adds --kubeconfig and --context to a command.
func (f *Flags) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, else ~/.kube/config)")
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig")
}

// Client reads from one cluster.
type Client struct {
	// Namespace is the context's.
	Namespace string
	dynamic   dynamic.Interface
}

func (f *Flags) load() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
}

// Config reads the kubeconfig, for a client of another kind than [Client].
func (f *Flags) Config() (*rest.Config, error) {
	config, err := f.load().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig, %w", err)
	}
	return config, nil
}

// Connect reads the kubeconfig. It does not talk to the API server yet.
func (f *Flags) Connect() (*Client, error) {
	config := f.load()
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig, %w; or give files with -f", err)
	}
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig, %w", err)
	}
	client, err := dynamic.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster, %w", err)
	}
	return &Client{Namespace: namespace, dynamic: client}, nil
}

// pageSize is how many records are asked for at once.
const pageSize = 500

// LastDecision is the newest AllocationDecision about a Pod of this name. Where
// the Pod that is there now is known, one about it goes before those about
// earlier ones.
func (c *Client) LastDecision(ctx context.Context, namespace, pod string, present *corev1.Pod) (*v1alpha1.AllocationDecision, error) {
	var newest, own *v1alpha1.AllocationDecision
	err := c.each(ctx, "allocationdecisions", namespace, func(u *unstructured.Unstructured) error {
		if name, _, _ := unstructured.NestedString(u.Object, "spec", "pod"); name != pod {
			return nil
		}
		record := &v1alpha1.AllocationDecision{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, record); err != nil {
			return fmt.Errorf("reading AllocationDecision %s/%s, %w", namespace, u.GetName(), err)
		}
		if newest == nil || Newer(record, newest) {
			newest = record
		}
		if present != nil && !IsEarlier(record, present) && (own == nil || Newer(record, own)) {
			own = record
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if newest == nil {
		return nil, noDecision(namespace, pod, present)
	}
	return cmp.Or(own, newest), nil
}

// IsEarlier says whether a record is about another Pod than this one, which had
// its name before. Of a record or Pod without a UID that can't be told.
func IsEarlier(record *v1alpha1.AllocationDecision, pod *corev1.Pod) bool {
	return record.Spec.PodUID != "" && pod.UID != "" && record.Spec.PodUID != pod.UID
}

// Newer says whether a was decided after b; of two at one instant the one with
// more attempts, then the greater name.
func Newer(a, b *v1alpha1.AllocationDecision) bool {
	at, bt := decidedAt(a), decidedAt(b)
	switch {
	case !at.Equal(&bt):
		return bt.Before(&at)
	case a.Spec.Attempt != b.Spec.Attempt:
		return a.Spec.Attempt > b.Spec.Attempt
	}
	return a.Name > b.Name
}

func decidedAt(d *v1alpha1.AllocationDecision) metav1.MicroTime {
	if d.Spec.DecidedAt == nil {
		return metav1.MicroTime{Time: d.CreationTimestamp.Time}
	}
	return *d.Spec.DecidedAt
}

// Policy gets a policy and its revisions.
func (c *Client) Policy(ctx context.Context, name string) (*v1alpha1.AcceleratorPolicy, []*v1alpha1.PolicyRevision, error) {
	u, err := c.dynamic.Resource(v1alpha1.GroupVersion.WithResource("acceleratorpolicies")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, explain("getting AcceleratorPolicy "+name, v1alpha1.GroupName, err)
	}
	policy := &v1alpha1.AcceleratorPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, policy); err != nil {
		return nil, nil, fmt.Errorf("reading AcceleratorPolicy %s, %w", name, err)
	}
	var revisions []*v1alpha1.PolicyRevision
	err = c.each(ctx, "policyrevisions", "", func(u *unstructured.Unstructured) error {
		r := &v1alpha1.PolicyRevision{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, r); err != nil {
			return fmt.Errorf("reading PolicyRevision %s, %w", u.GetName(), err)
		}
		if r.Spec.Policy == name {
			revisions = append(revisions, r)
		}
		return nil
	})
	return policy, revisions, err
}

// each lists one of Ladder's resources.
func (c *Client) each(ctx context.Context, resource, namespace string, do func(*unstructured.Unstructured) error) error {
	return c.eachOf(ctx, v1alpha1.GroupVersion.WithResource(resource), namespace, do)
}

// eachOf lists a resource page by page.
func (c *Client) eachOf(ctx context.Context, resource schema.GroupVersionResource, namespace string, do func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := c.dynamic.Resource(resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return explain("listing "+resource.Resource, resource.Group, err)
		}
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// explain adds what a person can do about an error of the API server.
func explain(doing, group string, err error) error {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s, %w; ask for the right to read %s", doing, err, group)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s, %w; see that the name is right and Ladder's CRDs are installed", doing, err)
	}
	return fmt.Errorf("%s, %w", doing, err)
}
