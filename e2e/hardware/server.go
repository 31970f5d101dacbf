package hardware

// This file is the API server, and what the check writes into it.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
)

// Names of what is written.
const (
	nodeName  = "ladder-hardware"
	namespace = "default"
	request   = "gpu"
)

// startWithin bears a machine that is busy with other things.
const startWithin = 5 * time.Minute

// server is etcd and kube-apiserver on loopback.
type server struct {
	env        *envtest.Environment
	client     kubernetes.Interface
	kubeconfig string
	class      *resourcev1.DeviceClass
}

// startServer starts one, with the node and Ladder's device class in it.
func startServer(ctx context.Context, assets, folder string) (made *server, err error) {
	log.SetLogger(klog.Background()) // or controller-runtime complains that it has none
	s := &server{env: &envtest.Environment{BinaryAssetsDirectory: assets, ControlPlaneStartTimeout: startWithin}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	config, err := s.env.Start()
	if err != nil {
		return nil, fmt.Errorf("starting an API server, %w", err)
	}
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client, %w", err)
	}
	s.kubeconfig = filepath.Join(folder, "kubeconfig.yaml")
	if err := os.WriteFile(s.kubeconfig, s.env.KubeConfig, 0o600); err != nil {
		return nil, fmt.Errorf("writing a kubeconfig, %w", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if _, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the node, %w", err)
	}
	if s.class, err = s.client.ResourceV1().DeviceClasses().Create(ctx, compile.DeviceClass(v1alpha1.DriverName), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the device class, %w", err)
	}
	return s, nil
}

func (s *server) stop() error {
	if err := s.env.Stop(); err != nil {
		return fmt.Errorf("stopping the API server, %w", err)
	}
	return nil
}

// slices are those of the node, once the pool is complete; nil before.
func (s *server) slices(ctx context.Context) ([]*resourcev1.ResourceSlice, error) {
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing slices, %w", err)
	}
	var all []*resourcev1.ResourceSlice
	newest := int64(-1)
	for i := range list.Items {
		slice := &list.Items[i]
		if slice.Spec.Driver != v1alpha1.DriverName || slice.Spec.Pool.Name != nodeName || slice.Spec.Pool.Generation < newest {
			continue
		}
		if slice.Spec.Pool.Generation > newest {
			all, newest = nil, slice.Spec.Pool.Generation
		}
		all = append(all, slice)
	}
	if len(all) == 0 || int64(len(all)) != all[0].Spec.Pool.ResourceSliceCount {
		return nil, nil
	}
	return all, nil
}

// features of the allocator are those that are on in the scheduler by default.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	FractionalCapacityRange: true, PartitionableDevices: true, PrioritizedList: true,
}

// class is a lister of the one device class.
type class struct{ *resourcev1.DeviceClass }

func (c class) List() ([]*resourcev1.DeviceClass, error) {
	return []*resourcev1.DeviceClass{c.DeviceClass}, nil
}

func (c class) Get(name string) (*resourcev1.DeviceClass, error) {
	if name != c.Name {
		return nil, fmt.Errorf("there is no device class %s", name)
	}
	return c.DeviceClass, nil
}

// errNothingFits occurs where the allocator finds no device.
var errNothingFits = errors.New("the allocator finds no device that fits")

// allocate creates a claim for the device of a name, and has Kubernetes' own
// allocator allocate it, from the slices in the API server: what the scheduler
// does for a Pod.
func (s *server) allocate(ctx context.Context, name, expression string) (*resourcev1.ResourceClaim, error) {
	claim, err := s.client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: request, Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: s.class.Name,
				Selectors:       []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}},
			},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating claim %s, %w", name, err)
	}
	slices, err := s.slices(ctx)
	if err != nil {
		return nil, err
	}
	none := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, features, none, class{s.class}, slices, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		return nil, fmt.Errorf("making an allocator, %w", err)
	}
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, []*resourcev1.ResourceClaim{claim})
	if err != nil {
		return nil, fmt.Errorf("allocating claim %s, %w", name, err)
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("allocating claim %s, %w", name, errNothingFits)
	}
	claim.Status.Allocation = &results[0]
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: claim.UID}}
	if claim, err = s.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("writing the allocation of claim %s, %w", name, err)
	}
	return claim, nil
}

// release takes the allocation back and deletes the claim.
func (s *server) release(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	claim.Status = resourcev1.ResourceClaimStatus{}
	if _, err := s.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("taking the allocation of claim %s back, %w", claim.Name, err)
	}
	if err := s.client.ResourceV1().ResourceClaims(namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting claim %s, %w", claim.Name, err)
	}
	return nil
}
