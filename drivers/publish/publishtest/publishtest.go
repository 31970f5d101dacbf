// Package publishtest is an API server for tests that publish slices.
package publishtest

import (
	"fmt"
	"sync/atomic"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// NewClientset has the objects, and names slices as the API server does.
func NewClientset(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	var serial atomic.Int64
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice)
		if slice.Name == "" {
			slice.Name = fmt.Sprintf("%s%05d", slice.GenerateName, serial.Add(1))
		}
		return false, nil, nil
	})
	return client
}
