package node

// This file is what a program has to do with the cluster, and serves what others
// ask it for.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// Connect makes a client without a limit of its own: the API server's priority
// and fairness and --parallelism bound what is sent.
func Connect(kubeconfig string) (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster, %w", err)
	}
	config.QPS = -1
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	return client, nil
}

// lookUp waits for the API server; a node that it does not have is an error.
func lookUp(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	var node *corev1.Node
	backoff := wait.Backoff{Duration: time.Second, Factor: 1.6, Jitter: 0.1, Steps: 1 << 10, Cap: 15 * time.Second}
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var err error
		node, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return true, nil
		}
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return false, err
		}
		klog.FromContext(ctx).Error(err, "Looking up the node; trying again")
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking up node %s, %w", name, err)
	}
	return node, nil
}

// ErrAnotherNode ends Run: the Node was deleted and registered again. Slices are
// owned by a Node's UID, and those of one that is gone are removed. The next
// process reads the new one.
var ErrAnotherNode = errors.New("it was deleted and registered again, and slices of the old one are removed; the driver has to start anew")

// follow watches a Node, and has see look at it, until ctx is done, or until
// there is another of its name.
func follow(ctx context.Context, client kubernetes.Interface, node *corev1.Node, see func(*corev1.Node)) error {
	another := make(chan types.UID, 1)
	saw := func(object any) {
		now, is := object.(*corev1.Node)
		if !is || now.Name != node.Name {
			return
		}
		if now.UID == node.UID {
			see(now)
			return
		}
		select {
		case another <- now.UID:
		default: // one is enough
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node.Name).String()
	}))
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: saw, UpdateFunc: func(_, now any) { saw(now) },
	}); err != nil {
		return fmt.Errorf("watching node %s, %w", node.Name, err)
	}
	watching, stop := context.WithCancel(ctx)
	factory.StartWithContext(watching)
	defer factory.Shutdown()
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case uid := <-another:
		return fmt.Errorf("watching node %s, UID %s instead of %s: %w", node.Name, uid, node.UID, ErrAnotherNode)
	}
}

// recorderFor makes Events until it is stopped.
func recorderFor(ctx context.Context, client kubernetes.Interface) (recorder events.EventRecorder, stop func()) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "There will be no Events")
	}
	return broadcaster.NewRecorder(scheme.Scheme, v1alpha1.DriverName), broadcaster.Shutdown
}

// serve serves HTTP until ctx is done.
func serve(ctx context.Context, address string, handler http.Handler) error {
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serving metrics, %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving metrics, %w", err)
	case <-ctx.Done():
		return server.Close()
	}
}
