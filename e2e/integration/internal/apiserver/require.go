package apiserver

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ClaimController is the account of the controller of Kubernetes that makes
// claims from templates.
const ClaimController = "system:serviceaccount:kube-system:resource-claim-controller"

// As is a client of another user.
func As(t *testing.T, s *Server, user rest.ImpersonationConfig) client.Client {
	t.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = user
	c, err := client.New(config, client.Options{Scheme: s.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// AsMaster is a client of another user with every right.
func AsMaster(t *testing.T, s *Server, user string) client.Client {
	t.Helper()
	return As(t, s, rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}})
}

// Create creates an object, or ends the test.
func Create(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// WaitFor polls until try succeeds.
func WaitFor(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 60*time.Second, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v, last: %v", what, err, last)
	}
}

// RequireRefused checks that a request was refused, by what, and the words.
func RequireRefused(t *testing.T, err error, by string, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted, want a refusal")
	}
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want status Forbidden", err)
	}
	for _, w := range append([]string{"ValidatingAdmissionPolicy '" + by + "'"}, words...) {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the refusal lacks %q: %v", w, err)
		}
	}
}
