// Package policy_test runs the real ladder-controller, under the account and
// with the roles that an installation gives it, against a real API server that
// has the shipped admission policies.
package policy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
	"gpuladder.dev/ladder/e2e/integration/internal/apiserver"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/catalog"
)

// within is the longest that anything here may take on a busy machine.
const within = 60 * time.Second

var shared struct {
	sync.Mutex
	dir     string
	program string
	running *process.Process
	err     error
}

func TestMain(m *testing.M) {
	code := apiserver.Main(&leader{m})
	os.RemoveAll(shared.dir)
	os.Exit(code)
}

// leader stops the controller before the API server goes.
type leader struct{ m *testing.M }

func (l *leader) Run() int {
	code := l.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.running != nil {
		shared.running.Stop(context.Background(), 10*time.Second)
	}
	return code
}
